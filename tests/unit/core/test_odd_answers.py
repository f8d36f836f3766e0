"""A26, one fault a test: only the affected request fails, the others advance, the oddity is counted."""

import numpy as np
import pytest

from scheduler_svc.core.plan import FinishReason, SchedulerConfig, StepId, StepResult
from tests.fakes.core_driver import NO_TOKENS, CoreDriver


@pytest.fixture
def core() -> CoreDriver:
    """Three requests with their first step at the worker, and a second one behind it."""
    driver = CoreDriver(32, 4)
    for i in range(3):
        driver.add([10 * i, 10 * i + 1], 6)
    driver.fill()
    return driver


def odd(core: CoreDriver) -> tuple[int, int, int]:
    counters = core.core.stats().counters
    return counters.odd_results, counters.odd_rows, counters.rows_failed


def finish(core: CoreDriver, *failed: int) -> None:
    core.run()
    core.check_outputs()
    for seq_id, finished in core.finished.items():
        assert finished.reason is (FinishReason.ERROR if seq_id in failed else FinishReason.LENGTH)
        assert bool(finished.error) == (seq_id in failed)


def test_a26_too_few_tokens_fail_those_that_lack_one(core: CoreDriver) -> None:
    sent = core.in_flight.popleft()
    core.apply(StepResult(sent.plan.step_id, sent.tokens[:1]))
    assert odd(core) == (0, 2, 2)
    finish(core, 1, 2)


def test_a26_no_tokens_at_all_fail_all(core: CoreDriver) -> None:
    sent = core.in_flight.popleft()
    core.apply(StepResult(sent.plan.step_id, NO_TOKENS))
    finish(core, 0, 1, 2)


def test_a26_a_negative_token_fails_its_row(core: CoreDriver) -> None:
    sent = core.in_flight.popleft()
    core.apply(StepResult(sent.plan.step_id, np.where(np.arange(3) == 1, np.int32(-5), sent.tokens)))
    assert odd(core) == (0, 1, 1)
    finish(core, 1)


def test_a26_a_failed_row_is_no_oddity_and_says_why(core: CoreDriver) -> None:
    core.answer_failed([2])
    assert odd(core) == (0, 0, 1)
    assert core.finished[2].error == "NON_FINITE"
    finish(core, 2)


def test_a26_too_many_tokens_cost_nothing(core: CoreDriver) -> None:
    sent = core.in_flight.popleft()
    core.apply(StepResult(sent.plan.step_id, np.concatenate((sent.tokens, sent.tokens))))
    assert odd(core) == (0, 1, 0)
    finish(core)


def test_a26_an_unknown_failed_row_costs_nothing(core: CoreDriver) -> None:
    sent = core.in_flight.popleft()
    core.apply(StepResult(sent.plan.step_id, sent.tokens, ((77, "?"),)))
    assert odd(core) == (0, 1, 0)
    finish(core)


@pytest.mark.parametrize("step_id", [0, -1, 999])
def test_a26_an_answer_nobody_waits_for_costs_nothing(core: CoreDriver, step_id: int) -> None:
    events = core.odd_answer(step_id)
    assert not len(events.seq_ids)
    assert odd(core) == (1, 0, 0)
    finish(core)


def test_a26_a_repeated_answer_costs_nothing(core: CoreDriver) -> None:
    sent = core.in_flight[0]
    core.answer()
    core.apply(StepResult(sent.plan.step_id, sent.tokens))
    assert odd(core) == (1, 0, 0)
    finish(core)


def test_a26_an_early_answer_waits_for_its_turn_and_a_second_one_for_it_is_dropped(core: CoreDriver) -> None:
    early = core.in_flight.pop()
    for _ in range(2):
        assert not len(core.apply(StepResult(early.plan.step_id, early.tokens)).seq_ids)
    events = core.answer()
    assert events.seq_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert odd(core) == (1, 0, 0)
    finish(core)


def test_a26_an_answer_for_a_finished_request_reaches_nobody(core: CoreDriver) -> None:
    core.abort(0)
    events = core.answer()
    assert events.seq_ids.tolist() == [1, 2]
    core.run()
    assert core.outputs[0] == []
    assert core.core.stats().counters.overshoot_tokens == 2


def test_a_failed_row_whose_sequence_has_ended_fails_nobody(core: CoreDriver) -> None:
    core.abort(0)
    core.add([50, 51], 3)
    core.answer_failed([0])
    assert odd(core) == (0, 0, 0)
    core.fill()
    core.run()
    core.check_outputs()
    assert core.reason(3) is FinishReason.LENGTH


def test_a_mid_chunk_row_that_fails_ends_alone() -> None:
    core = CoreDriver(32, 4, SchedulerConfig(max_num_batched_tokens=8))
    core.add([1], 8)
    core.step()
    long = core.add(list(range(100, 130)), 2)
    core.schedule()
    while core.in_flight and 1 not in core.in_flight[0].plan.rows:
        core.answer()
    core.answer_failed([1])
    assert core.reason(long) is FinishReason.ERROR
    core.run()
    core.check_outputs()


def test_after_a_failed_step_nothing_is_planned_until_a_new_session(core: CoreDriver) -> None:
    late = core.add([70, 71], 4)
    core.fail_step()
    assert {core.reason(seq_id) for seq_id in range(3)} == {FinishReason.ERROR}
    assert core.core.schedule(0.0) is None
    core.apply(StepResult(StepId(2), NO_TOKENS, failure="REFUSED"))
    core.worker_ready()
    core.run()
    assert core.reason(late) is FinishReason.LENGTH
    core.check_outputs()
