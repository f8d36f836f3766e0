"""Rows with top_k, top_p and min_p on a CUDA device: the CPU's tokens, drawn inside the graphs.

Owns the comparison; knows no service. Invariant: every runner gets the same plans, in float32.
"""

from pathlib import Path

import pytest
import torch

from gpu_worker.model_runner import ModelRunner
from gpu_worker.sample_stage import SampleStage
from gpu_worker.wire import Sampling
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
ASKING = (
    Sampling(0.6, 0.95, 20, 0.0, 1),
    Sampling(1.3, 0.9, 0, 0.0, 2**64 - 3),
    Sampling(2.0, 1.0, 7, 0.0, 3),
    Sampling(1.0, 1.0, 0, 0.1, 4),
    Sampling(3.0, 0.99, 300, 0.01, 5),
    Sampling(0.0, 0.5, 3, 0.5, 6),
    Sampling(5.0, 1.0, 0, 0.0, 7),
    Sampling(1.0, 0.8, 50, 0.0, 8, frequency_penalty=0.5),
)


def crowd() -> list[HandSequence]:
    """One of each, with prompts of different lengths."""
    return [HandSequence(row, list(range(3, 5 + row)), given) for row, given in enumerate(ASKING)]


def outputs(made: ModelRunner) -> list[list[int]]:
    rows = crowd()
    run(made, HandPlanner(256, 4), rows, 60, chunk=5)
    return [row.outputs for row in rows]


@pytest.mark.parametrize("graphs", [False, True])
def test_the_tokens_are_those_of_the_cpu(
    tmp_path: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path / "tiny", TinyShape("llama", seed=21))
    expected = outputs(make_runner(folder, num_blocks=256))
    made = make_runner(folder, num_blocks=256, on="cuda")
    if graphs:
        made.capture_graphs()
    again: list[int] = []
    draw_again = SampleStage._draw_again

    def counted(stage: SampleStage, plan, logits, tokens, places):  # type: ignore[no-untyped-def]
        again.extend(plan.sample_rows[places].tolist())
        return draw_again(stage, plan, logits, tokens, places)

    monkeypatch.setattr(SampleStage, "_draw_again", counted)
    assert outputs(made) == expected
    assert min(token for row in expected for token in row) >= 0, "a row has failed"
    assert set(again) == {7}, "only the row with a penalty is drawn again"
