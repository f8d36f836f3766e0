"""Which samples a step draws again after its graph: those whose logits change, not those that only filter."""

import numpy as np
import pytest

from gpu_worker.asks import RowAsks
from gpu_worker.wire import RowSetup, Sampling

FILTERED = Sampling(0.6, 0.95, 20, 0.05, 1)
CHANGED = {
    "penalty": Sampling(0.6, 0.95, 20, 0.05, 1, presence_penalty=0.5),
    "bias": Sampling(0.6, 1.0, 0, 0.0, 1, bias_ids=(3,), bias_values=(1.0,)),
    "grammar": Sampling(0.0, 1.0, 0, 0.0, 1, grammar="a grammar"),
}


def test_a_row_that_only_filters_asks_for_nothing() -> None:
    asks = RowAsks(4, 100)
    asks.set_up(RowSetup(2, 3, FILTERED))
    rows = np.array([2, 0], np.int32)
    assert not asks.anybody
    assert not len(asks.changed(rows, np.zeros(2, np.int64)))


@pytest.mark.parametrize("name", CHANGED)
def test_a_row_whose_logits_change_is_named_among_others(name: str) -> None:
    asks = RowAsks(4, 100)
    asks.set_up(RowSetup(2, 3, FILTERED))
    asks.set_up(RowSetup(1, 3, CHANGED[name], np.array([1, 2, 3], np.int32)))
    rows = np.array([2, 1, 0], np.int32)
    assert asks.anybody
    assert asks.changed(rows, np.zeros(3, np.int64)).tolist() == [1]
    asks.release(np.array([1], np.int32))
    assert not asks.anybody
