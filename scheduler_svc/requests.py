"""Live requests as the shell sees them, and the bounds of the queue.

Owns the request ids in use and the counts of what waits; knows neither core nor stream content. Invariant: a
request id names at most one live request, and the queue counts equal those of the requests not yet admitted.
"""

from dataclasses import dataclass

from octavo.errors import AlreadyExists, ResourceExhausted
from scheduler_svc.core.plan import NewRequest, SeqId
from scheduler_svc.streams import Outbox
from scheduler_svc.text import TextEmitter


@dataclass(slots=True, eq=False)
class Record:
    """One live request. Times are seconds of the engine's clock; emitter None: no text and no stop
    strings; tokens_only: the text is not told.

    ended: its stream has been told the end, or left. stopped: a stop string matched. outcome: why the shell
    ended it, empty while that is the core's to say.
    """

    request_id: str
    request: NewRequest
    outbox: Outbox
    emitter: TextEmitter | None
    include_stop_token: bool
    tokens_only: bool
    arrival: float
    queue_deadline: float | None = None
    admitted_at: float | None = None
    last_token_at: float | None = None
    output_len: int = 0
    ended: bool = False
    stopped: bool = False
    outcome: str = ""

    @property
    def seq_id(self) -> SeqId:
        return self.request.seq_id

    @property
    def prompt_len(self) -> int:
        return int(self.request.prompt.size)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Requests and prompt tokens that may wait for their first step."""

    requests: int = 4096
    tokens: int = 4_194_304


class Requests:
    """The live requests, by id and by sequence."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._by_id: dict[str, Record] = {}
        self._by_seq: dict[int, Record] = {}
        self.waiting_requests = 0
        self.waiting_tokens = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, record: Record) -> None:
        """Raises AlreadyExists for an id in use, ResourceExhausted (QUEUE_FULL) past the bounds."""
        if record.request_id in self._by_id:
            raise AlreadyExists(f"request_id: {record.request_id!r} is live", field="request_id")
        limits, tokens = self._limits, self.waiting_tokens + record.prompt_len
        if self.waiting_requests >= limits.requests:
            raise _queue_full(f"{self.waiting_requests} requests wait, limit {limits.requests}")
        if self.waiting_requests and tokens > limits.tokens:
            raise _queue_full(f"{tokens} prompt tokens would wait, limit {limits.tokens}")
        self._by_id[record.request_id] = record
        self._by_seq[record.seq_id] = record
        record.outbox.live.add(record.request_id)
        self.waiting_requests += 1
        self.waiting_tokens = tokens

    def admitted(self, record: Record, now: float) -> bool:
        """Notes the first admission. False when it was known."""
        if record.admitted_at is not None:
            return False
        record.admitted_at = now
        self._leave_queue(record)
        return True

    def remove(self, record: Record) -> None:
        """Forgets an ended request. Idempotent."""
        if self._by_id.get(record.request_id) is not record:
            return
        del self._by_id[record.request_id]
        del self._by_seq[record.seq_id]
        record.outbox.live.discard(record.request_id)
        if record.admitted_at is None:
            self._leave_queue(record)

    def _leave_queue(self, record: Record) -> None:
        self.waiting_requests -= 1
        self.waiting_tokens -= record.prompt_len

    def by_id(self, request_id: str) -> Record | None:
        return self._by_id.get(request_id)

    def by_seq(self, seq_id: int) -> Record | None:
        return self._by_seq.get(seq_id)

    def all(self) -> list[Record]:
        return list(self._by_id.values())

    def of_outbox(self, outbox: Outbox) -> list[Record]:
        """The live requests of one client stream."""
        return [self._by_id[request_id] for request_id in outbox.live]


def _queue_full(why: str) -> ResourceExhausted:
    return ResourceExhausted(f"the queue is full: {why}", reason="QUEUE_FULL", retry_after=1.0)
