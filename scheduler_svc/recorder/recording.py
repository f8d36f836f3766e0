"""A Scheduler whose every input is noted down before it takes effect.

Owns the notes; knows no file and changes no decision. Invariant: whatever a caller does to the core goes
through here, looking included where looking brings the prefix index up to date, and a note holds only values
that nobody writes to any more.
"""

from collections.abc import Callable
from typing import Any

from scheduler_svc.core.block_hash import HashFunction, xxh3_128
from scheduler_svc.core.plan import (
    Capacity,
    FinishReason,
    NewRequest,
    Refusal,
    SchedulerConfig,
    SeqId,
    StepPlan,
    StepResult,
    TokenEvents,
)
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.recorder.format import Kind

Note = Callable[[tuple[Any, ...]], None]
_APPLY, _SCHEDULE, _SETTLE = int(Kind.APPLY), int(Kind.SCHEDULE), (int(Kind.SETTLE),)


class RecordedScheduler(Scheduler):
    """note: takes an entry (kind, then the kind's fields; a plan itself in the place of its digests)."""

    def __init__(self, config: SchedulerConfig, note: Note, hash_block: HashFunction = xxh3_128) -> None:
        super().__init__(config, hash_block)
        self._note = note

    def worker_ready(self, capacity: Capacity) -> None:
        self._note((int(Kind.WORKER_READY), capacity))
        super().worker_ready(capacity)

    def worker_lost(self) -> None:
        self._note((int(Kind.WORKER_LOST),))
        super().worker_lost()

    def add(self, request: NewRequest, now: float) -> Refusal | None:
        self._note((int(Kind.ADD), now, request))
        return super().add(request, now)

    def abort(self, seq_id: SeqId, now: float) -> bool:
        self._note((int(Kind.ABORT), seq_id, now))
        return super().abort(seq_id, now)

    def stop(self, seq_id: SeqId, output_len: int, reason: FinishReason, now: float) -> bool:
        self._note((int(Kind.STOP), seq_id, output_len, reason, now))
        return super().stop(seq_id, output_len, reason, now)

    def apply(self, result: StepResult, now: float) -> TokenEvents:
        self._note((_APPLY, now, result))
        return super().apply(result, now)

    def schedule(self, now: float) -> StepPlan | None:
        plan = super().schedule(now)
        self._note((_SCHEDULE, now) if plan is None else (_SCHEDULE, now, plan))
        return plan

    def flush_prefix_cache(self, namespace: str | None) -> int:
        self._note((int(Kind.FLUSH), namespace))
        return super().flush_prefix_cache(namespace)

    def _settle(self) -> None:
        self._note(_SETTLE)
        super()._settle()
