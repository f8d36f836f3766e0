"""Replay: the core makes the same plans from a log, and what was altered is named."""

import ast
import inspect
import io
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.plan import NewRequest, SchedulerConfig, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.recorder.format import DamagedLog, Kind, LogReader
from scheduler_svc.recorder.recording import RecordedScheduler
from tests.fakes.core_log import Log, replayed
from tests.fakes.random_run import RandomRun, random_config

SOURCE = ast.parse(inspect.getsource(Scheduler))
PURE = {"take_notices", "num_in_flight", "has_work", "check_plan", "sequences"}
"""What a caller may do to a core without changing any decision."""


@cache
def random_log(seed: int, operations: int = 200, **settings: Any) -> Log:
    chance = random.Random(seed)
    log = Log()
    size = chance.choice([1, 2, 3, 4, 8])
    blocks, config = chance.choice([16, 32, 48, 96]) // size + 1, random_config(chance, **settings)
    host_blocks = chance.choice([0, 2 * blocks])
    driver = log.driver(blocks, size, config, max_model_len=40, vocab_size=40, host_blocks=host_blocks)
    run = RandomRun(driver, chance)
    run.operate(operations)
    run.finish()
    return log


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_with_faults_and_preemptions_replay_without_a_difference(seed: int) -> None:
    log = random_log(seed)
    difference, replayer, reader = replayed(log.data())
    assert difference is None
    assert replayer.tally.ended
    assert reader.torn == ""
    assert replayer.tally.steps == sum(isinstance(entry[-1], StepPlan) for entry in log.entries) > 0


def test_the_random_runs_hold_what_they_are_to_show() -> None:
    """Preemptions, lost workers, failed rows and steps, refused and aborted requests are in the logs."""
    counters = [replayed(random_log(seed).data())[1].core.stats().counters for seed in range(12)]
    for name in (
        "preemptions",
        "worker_losses",
        "rows_failed",
        "steps_failed",
        "odd_results",
        "rollbacks",
        "blocks_swapped_out",
    ):
        assert sum(getattr(found, name) for found in counters) > 0, name


def test_every_public_call_of_the_core_is_recorded_or_known_to_change_nothing() -> None:
    """A look calls `_settle`, which is recorded; what else can be called is recorded itself, or PURE."""
    public = {name for name in vars(Scheduler) if not name.startswith("_")}
    recorded = {name for name in vars(RecordedScheduler) if not name.startswith("_")}
    assert recorded <= public
    assert "_settle" in vars(RecordedScheduler)
    methods = {node.name: node for node in ast.walk(SOURCE) if isinstance(node, ast.FunctionDef)}
    settling = ("self._settle()", "self._checks.audit(", "self._checks.ledger(")
    looks = {
        name
        for name in public - recorded - PURE
        if any(call in ast.unparse(methods[name]) for call in settling)
    }
    assert public - recorded - looks == PURE


def test_the_core_calls_none_of_its_public_methods_itself() -> None:
    """An inner call would be recorded as if it had come from outside, and be made twice by a replay."""
    called = {
        node.func.attr
        for node in ast.walk(SOURCE)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "self"
    }
    assert all(name.startswith("_") for name in called), called


def altered(log: Log, at: int, entry: tuple[Any, ...]) -> Log:
    other = Log()
    other.config, other.entries = log.config, [*log.entries[:at], entry, *log.entries[at + 1 :]]
    return other


def some_plan(log: Log, wanted: Any = lambda plan: True) -> tuple[int, StepPlan]:
    plans = [(at, e[-1]) for at, e in enumerate(log.entries) if isinstance(e[-1], StepPlan) and wanted(e[-1])]
    return plans[len(plans) // 2]


@pytest.mark.parametrize("name", ["slot_mapping", "context_lens", "sample_rows", "input_ids"])
def test_an_altered_plan_is_named_by_step_and_field(name: str) -> None:
    log = random_log(3, max_num_seqs=8, max_num_batched_tokens=32, max_prefill_chunk=0)
    at, plan = some_plan(log, lambda plan: len(getattr(plan, name)))
    values = getattr(plan, name).copy()
    values[-1] += 1
    bent = altered(log, at, (*log.entries[at][:-1], replace(plan, **{name: values})))
    difference, _, _ = replayed(bent.data())
    assert difference is not None
    assert (difference.record, difference.step_id, difference.field) == (at + 1, plan.step_id, name)
    assert difference.expected.startswith("digest ")
    with_plans, _, _ = replayed(bent.data(plans=True))
    assert with_plans is not None
    last = len(values) - 1
    recorded, now = (f"from {last}: {value}" for value in (values[-1], getattr(plan, name)[-1]))
    assert recorded in with_plans.expected
    assert now in with_plans.got


def test_an_altered_input_shows_in_the_first_plan_that_depends_on_it() -> None:
    log = random_log(4)
    at = next(at for at, entry in enumerate(log.entries) if isinstance(entry[-1], NewRequest))
    request = log.entries[at][-1]
    bent = altered(
        log, at, (*log.entries[at][:-1], replace(request, prompt=np.append(request.prompt, np.int32(5))))
    )
    difference, _, _ = replayed(bent.data())
    assert difference is not None
    assert difference.record > at + 1
    assert difference.step_id > 0


def test_another_seed_of_the_index_changes_no_plan_of_a_cold_run_but_the_recorded_one_is_used() -> None:
    log = random_log(5)
    reader = LogReader(io.BytesIO(log.data()))
    assert reader.header.config == log.config
    assert reader.header.config.hash_seed == b"seed"


def test_a_plan_that_is_missing_or_too_many_is_named() -> None:
    log = random_log(6)
    at, plan = some_plan(log)
    difference, _, _ = replayed(altered(log, at, log.entries[at][:-1]).data())
    assert difference is not None
    assert (difference.step_id, difference.field, difference.expected) == (plan.step_id, "plan", "none")
    nothing = next(
        at for at, entry in enumerate(log.entries) if entry[0] == Kind.SCHEDULE and len(entry) == 2
    )
    difference, _, _ = replayed(altered(log, nothing, (*log.entries[nothing], plan)).data())
    assert difference is not None
    assert (difference.step_id, difference.field, difference.got) == (plan.step_id, "plan", "none")


def test_an_input_that_the_core_refuses_is_named() -> None:
    log = Log()
    log.driver(16, 2, SchedulerConfig()).add([1, 2, 3], 8)
    log.entries.append(added(log))
    difference, _, _ = replayed(log.data())
    assert difference is not None
    assert "is live" in difference.got


def added(log: Log) -> tuple[Any, ...]:
    return next(entry for entry in log.entries if isinstance(entry[-1], NewRequest))


def test_a_look_at_the_pool_is_an_input_because_it_settles_the_index() -> None:
    """Without the record, blocks of generated tokens would become findable later than they did."""
    log = Log()
    driver = log.driver(16, 2, SchedulerConfig(depth=1))
    driver.add([1, 2, 3], 8)
    before = len(log.entries)
    driver.core.stats()
    driver.core.pool_map()
    driver.core.sequence_blocks(0)  # type: ignore[arg-type]
    assert [entry[0] for entry in log.entries[before:]] == [Kind.SETTLE] * 3


@pytest.mark.parametrize("cut", [1, 5, 9, 40])
def test_a_torn_tail_is_named_and_what_is_before_it_replayed(cut: int) -> None:
    data = random_log(8).data(ended=False)
    difference, replayer, reader = replayed(data[:-cut])
    assert difference is None
    assert reader.torn
    assert replayer.tally.steps > 0
    assert not replayer.tally.ended


def test_a_damaged_record_in_the_middle_is_named_by_its_place() -> None:
    data = bytearray(random_log(8).data())
    data[len(data) // 2] ^= 1
    with pytest.raises(DamagedLog, match="at byte"):
        replayed(bytes(data))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a log"),
        (b"PK\x03\x04 and more of a zip file", "not a log"),
        (b"octavo-log\n\x09\x00", "version 9"),
    ],
)
def test_a_file_that_is_no_log_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(DamagedLog, match=said):
        LogReader(io.BytesIO(data))


def test_a_log_cut_inside_its_header_is_refused() -> None:
    data = random_log(1, 20).data()
    with pytest.raises(DamagedLog, match="header"):
        LogReader(io.BytesIO(data[:40]))


def test_results_keep_failures_and_failed_rows() -> None:
    results: list[StepResult] = []
    for seed in range(12):
        reader = LogReader(io.BytesIO(random_log(seed).data()))
        found = (record.fields[1] for record in reader if record.kind is Kind.APPLY)
        results += [reader.rebuilder.build(StepResult, fields) for fields in found]
    assert any(result.failed_rows for result in results)
    assert any(result.failure for result in results)
