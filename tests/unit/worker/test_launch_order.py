"""When a plan is checked: numbers before the device is touched, the rest before a step is pending."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_worker.errors import PlanError
from gpu_worker.model_runner import ModelRunner
from tests.fixtures.hand_plans import HandPlanner, HandSequence
from tests.fixtures.tiny_runner import make_runner


@pytest.mark.parametrize(("captured", "slots", "started"), [
    (True, [4, 5, 6], 1), (True, [0, 1, 1 << 20], 0), (False, [4, 5, 6], 0), (False, [0, 1, 1 << 20], 0),
])  # fmt: skip
def test_a_captured_step_starts_before_its_plan_is_compared_with_its_rows(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, captured: bool, slots: list[int], started: int
) -> None:
    """Slots of the wrong block are in range; those past the pool are not."""
    calls = list[str]()

    def start(self: ModelRunner, *_: Any) -> str:
        calls.append("started")
        return "pending"

    monkeypatch.setattr(ModelRunner, "_replay", start)
    monkeypatch.setattr(ModelRunner, "_launch_eagerly", start)
    runner = make_runner(tiny_llama)
    if captured:
        monkeypatch.setattr(runner, "_graphs", SimpleNamespace(choose=lambda plan: "program"))
    planner, sequence = HandPlanner(64, 4), HandSequence(0, [5, 6, 7])
    plan = planner.plan([(sequence, 3)], slot_mapping=np.array(slots, np.int32))
    expected = [int(block) * 4 + place for block in sequence.table[:1] for place in range(3)]
    assert expected != slots
    with pytest.raises(PlanError, match=r"^slot_mapping: "):
        runner.launch(plan)
    assert len(calls) == started
