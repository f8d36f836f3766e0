"""The bytes of fixed plans: a change here is a change of the protocol between two versions."""

from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.wire import StepNumbering, encode_plan
from tests.unit.scheduler_svc.plans import ints, plan, setup

GOLDEN = Path(__file__).with_name("wire_bytes.txt")
NUMBERING = StepNumbering(session_id=0x0123456789ABCDEF, epoch=0xFEDCBA9876543210, step_offset=9)

PREFILL = plan(
    10, rows=[0, 1], query_lens=[3, 2], context_lens=[3, 6], input_ids=ints(11, 12, 13, 21, 22),
    setups=(setup(0, 3, temperature=0.5, top_p=0.75, top_k=4, min_p=0.125, seed=7), setup(1, 6)),
    released_rows=ints(5), table_rows=ints(0, 1), table_offsets=ints(0, 1), table_blocks=ints(40, 41),
    zero_blocks=ints(41), copy_pairs=np.array([[2, 3]], np.int32), slot_mapping=ints(640, 641, 642, 660, 661),
)  # fmt: skip
DECODE = plan(11, rows=[0, 1], context_lens=[4, 7], slot_mapping=ints(643, 662))
CHUNK = plan(
    12, rows=[2], query_lens=[2], context_lens=[2], input_ids=ints(1, 2), sample_positions=ints(),
    sample_rows=ints(), setups=(setup(2, 9),),
)  # fmt: skip
CASES: dict[str, tuple[StepPlan, StepPlan | None]] = {
    "prefill": (PREFILL, None),
    "decode": (DECODE, PREFILL),
    "chunk": (CHUNK, DECODE),
}


def encoded(name: str) -> str:
    step, previous = CASES[name]
    return encode_plan(step, previous, NUMBERING).SerializeToString(deterministic=True).hex()


def golden() -> dict[str, str]:
    return dict(line.split(" ") for line in GOLDEN.read_text().splitlines())


@pytest.mark.parametrize("name", CASES)
def test_a_plan_has_the_bytes_it_always_had(name: str) -> None:
    assert encoded(name) == golden()[name]


def test_every_golden_plan_is_checked() -> None:
    assert set(golden()) == set(CASES)
