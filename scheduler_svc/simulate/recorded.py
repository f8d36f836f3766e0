"""A log of the flight recorder as a trace: what was asked, when, and what was answered.

Owns the way from inputs to requests; knows neither the log's bytes nor a simulation. Invariant: a log becomes
a trace only if the core makes the recorded plans again, for only then do its answers belong to its requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scheduler_svc.core.plan import NewRequest, Notices, Refusal, SchedulerConfig, StepResult, TokenEvents
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.recorder.format import DamagedLog, LogReader
from scheduler_svc.recorder.replay import Replayer
from scheduler_svc.recorder.values import UnknownField
from scheduler_svc.simulate.trace import Trace, TraceError, TraceRequest


@dataclass(slots=True)
class _Asked:
    """A request while the log is read. output_len: None until it has ended."""

    arrival: float
    request: NewRequest
    tokens: list[int] = field(default_factory=list)
    output_len: int | None = None

    def as_traced(self, begin: float) -> TraceRequest:
        end = len(self.tokens) if self.output_len is None else self.output_len
        return TraceRequest(
            self.arrival - begin,
            len(self.request.prompt),
            end,
            self.request.namespace,
            prompt=self.request.prompt,
            output=np.array(self.tokens[:end], np.int32),
            priority=self.request.priority,
            use_prefix_cache=self.request.use_prefix_cache,
        )


class _Listener(Scheduler):
    """The core, overheard: who asked what and got which tokens."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.asked: dict[int, _Asked] = {}

    def add(self, request: NewRequest, now: float) -> Refusal | None:
        refusal = super().add(request, now)
        if refusal is None:
            self.asked[request.seq_id] = _Asked(now, request)
        return refusal

    def apply(self, result: StepResult, now: float) -> TokenEvents:
        events = super().apply(result, now)
        for seq_id, token in zip(events.seq_ids.tolist(), events.token_ids.tolist(), strict=True):
            self.asked[seq_id].tokens.append(token)
        return events

    def take_notices(self) -> Notices:
        notices = super().take_notices()
        for finished in notices.finished:
            self.asked[finished.seq_id].output_len = finished.output_len
        return notices


def read_log(path: Path, limit: int) -> Trace:
    """The first `limit` requests of a log (0: all) that its core took. Raises TraceError, OSError."""
    try:
        with path.open("rb") as file:
            asked = _asked_in(path, LogReader(file))
    except (DamagedLog, UnknownField) as error:
        raise TraceError(f"{path}: {error}") from error
    kept = list(asked)[:limit] if limit else list(asked)
    begin = kept[0].arrival if kept else 0.0
    return Trace(path.name, "log", tuple(one.as_traced(begin) for one in kept))


def _asked_in(path: Path, log: LogReader) -> Iterable[_Asked]:
    replayer = Replayer(log.header, log.rebuilder)
    listener = _Listener(log.header.config)
    replayer.core = listener
    for record in log:
        difference = replayer.feed(record)
        if difference is not None:
            raise TraceError(
                f"{path}: its plans are not made again, so its answers have no owner: {difference}"
            )
    return listener.asked.values()
