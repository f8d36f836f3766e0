"""Makes a log's decisions again and finds the first that comes out otherwise.

Owns the comparison; knows neither files nor workers. Invariant: a core made from the log is told what the
recorded one was told, in that order and nothing else, and the replay stops at the first difference.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler_svc.core.plan import Capacity, FinishReason, NewRequest, SeqId, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.recorder.digest import differing
from scheduler_svc.recorder.format import Header, Kind, Record
from scheduler_svc.recorder.values import Rebuilder

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay left the log. record: the log's record; step_id 0: no step was made or recorded."""

    record: int
    step_id: int
    field: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"record {self.record}, step {self.step_id}, {self.field}"
        return f"{where}: recorded {self.expected}, now {self.got}"


@dataclass(slots=True)
class Tally:
    """What a replay has gone through so far. ended: the log ends as one that was closed in order."""

    records: int = 0
    steps: int = 0
    tokens: int = 0
    requests: int = 0
    sessions: int = 0
    ended: bool = False


class Replayer:
    """Feeds records to a new core. plan: the one that the last record made; capacity: of the last worker."""

    def __init__(self, header: Header, rebuilder: Rebuilder) -> None:
        self.core = Scheduler(header.config)
        self.tally = Tally()
        self.plan: StepPlan | None = None
        self.result: StepResult | None = None
        self.capacity: Capacity | None = None
        self._header = header
        self._build = rebuilder.build

    def feed(self, record: Record) -> Difference | None:
        """Tells the core one input; what came out otherwise than recorded, if anything did."""
        self.plan, self.result = None, None
        self.tally.records = record.number
        try:
            return self._feed(record)
        except (ValueError, AssertionError, LookupError) as error:
            raised = f"{type(error).__name__}: {error}"
            return Difference(record.number, 0, record.kind.name, "an input", f"the core raised {raised}")

    def _feed(self, record: Record) -> Difference | None:
        core, fields = self.core, record.fields
        match record.kind:
            case Kind.SCHEDULE:
                return self._schedule(record)
            case Kind.APPLY:
                self.result = self._build(StepResult, fields[1])
                self.tally.tokens += len(core.apply(self.result, fields[0]).token_ids)
            case Kind.ADD:
                self.tally.requests += 1
                core.add(self._build(NewRequest, fields[1]), fields[0])
            case Kind.ABORT:
                core.abort(SeqId(fields[0]), fields[1])
            case Kind.STOP:
                core.stop(SeqId(fields[0]), fields[1], FinishReason(fields[2]), fields[3])
            case Kind.WORKER_READY:
                self.tally.sessions += 1
                self.capacity = self._build(Capacity, fields[0])
                core.worker_ready(self.capacity)
            case Kind.WORKER_LOST:
                core.worker_lost()
            case Kind.SETTLE:
                core.settle()
            case Kind.FLUSH:
                core.flush_prefix_cache(fields[0])
            case Kind.END:
                self.tally.ended = True
        core.take_notices()
        return None

    def _schedule(self, record: Record) -> Difference | None:
        now, *recorded = record.fields
        plan = self.plan = self.core.schedule(now)
        self.core.take_notices()
        if plan is None:
            return None if not recorded else Difference(record.number, recorded[0], "plan", "a step", "none")
        self.tally.steps += 1
        if not recorded:
            return Difference(record.number, plan.step_id, "plan", "none", "a step")
        if plan.step_id != recorded[0]:
            return Difference(record.number, recorded[0], "step_id", str(recorded[0]), str(plan.step_id))
        found = differing(self._header.digest_fields, recorded[1], plan)
        if not found:
            return None
        name, old, new = found[0]
        if len(recorded) > 2:
            expected, got = _values(getattr(self._build(StepPlan, recorded[2]), name), getattr(plan, name))
        else:
            expected, got = f"digest {old:08x}", f"{new:08x}: {_shown(getattr(plan, name))}"
        return Difference(record.number, plan.step_id, name, expected, got)


def _values(old: Any, new: Any) -> tuple[str, str]:
    """Both values, of arrays from their first unlike entry on."""
    if not isinstance(new, np.ndarray):
        return str(old), str(new)
    first, second = old.ravel(), new.ravel()
    common = min(len(first), len(second))
    unlike = np.flatnonzero(first[:common] != second[:common])
    at = int(unlike[0]) if len(unlike) else common
    return tuple(f"{len(a)} entries, from {at}: {_listed(a[at:])}" for a in (first, second))  # type: ignore[return-value]


def _shown(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    return f"{value.size} entries: {_listed(value.ravel())}"


def _listed(values: "np.ndarray[Any, Any]") -> str:
    shown = " ".join(map(str, values[:_SHOWN].tolist()))
    return shown + (" ..." if len(values) > _SHOWN else "")
