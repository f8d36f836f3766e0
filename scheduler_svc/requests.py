"""Live requests as the shell sees them, their sequences, and the bounds of the queue.

Owns the request ids in use and the counts of what waits; knows neither core nor stream content. Invariant: a
request id names at most one live request, a request lives as long as one of its sequences does, and the queue
counts equal those of the requests not yet admitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from octavo.errors import AlreadyExists, DeadlineExceeded, ResourceExhausted
from octavo.v1 import inference_pb2
from scheduler_svc.core.plan import NewRequest, SeqId
from scheduler_svc.logprob_writer import LogprobWriter
from scheduler_svc.streams import Outbox
from scheduler_svc.text import TextEmitter

if TYPE_CHECKING:
    from scheduler_svc.tracing import RequestTrace


@dataclass(slots=True, eq=False)
class Branch:
    """One sequence of a request. emitter None: no text and no stop strings.

    ended: its stream has been told its end, or of no end any more. stopped: a stop string matched.
    last_token_at: seconds of the engine's clock.
    """

    record: "Record"
    index: int
    seq_id: SeqId
    emitter: TextEmitter | None
    last_token_at: float | None = None
    output_len: int = 0
    ended: bool = False
    stopped: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """One live request. Times are seconds of the engine's clock; emitters: one a sequence, None: no text and
    no stop strings; tokens_only: the text is not told.

    logprobs: None if none are asked for. accepted: held back until the prompt's are whole.
    branches: its sequences, by index; their ids follow each other. running: those the core has not ended.
    first_token_at: of the first sequence. trace: its span; None while nothing is traced.
    when_over: called once, when the request is forgotten.
    ended: its stream is told nothing any more. outcome: why the shell ended it, or how its latest sequence
    ended; empty while that is the core's to say.
    """

    request_id: str
    request: NewRequest
    outbox: Outbox
    emitters: InitVar[Sequence[TextEmitter | None]]
    include_stop_token: bool
    tokens_only: bool
    arrival: float
    queue_deadline: float | None = None
    logprobs: LogprobWriter | None = None
    accepted: inference_pb2.Accepted | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    trace: "RequestTrace | None" = None
    when_over: Callable[[], None] = lambda: None
    ended: bool = False
    outcome: str = ""
    branches: tuple[Branch, ...] = field(init=False)
    running: int = field(init=False)

    def __post_init__(self, emitters: Sequence[TextEmitter | None]) -> None:
        first = self.request.seq_id
        self.branches = tuple(
            Branch(self, index, SeqId(first + index), emitter) for index, emitter in enumerate(emitters)
        )
        self.running = len(self.branches)

    @property
    def seq_id(self) -> SeqId:
        """That of the first sequence."""
        return self.request.seq_id

    @property
    def first_running(self) -> Branch:
        """The first sequence that has not ended; the first of all when none is left."""
        return next((branch for branch in self.branches if not branch.ended), self.branches[0])

    @property
    def prompt_len(self) -> int:
        return int(self.request.prompt.size)

    @property
    def output_len(self) -> int:
        """Tokens told, of all sequences."""
        return sum(branch.output_len for branch in self.branches)


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
        self._by_seq: dict[int, Branch] = {}
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
        self._by_seq.update((branch.seq_id, branch) for branch in record.branches)
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

    def sequence_over(self, branch: Branch) -> bool:
        """Notes that the core has ended a sequence; forgets the request with its last. True when that was
        it.
        """
        if self._by_seq.pop(branch.seq_id, None) is None:
            return False
        record = branch.record
        record.running -= 1
        if record.running:
            return False
        self.remove(record)
        return True

    def remove(self, record: Record) -> None:
        """Forgets a request that is over. Idempotent."""
        if self._by_id.get(record.request_id) is not record:
            return
        del self._by_id[record.request_id]
        for branch in record.branches:
            self._by_seq.pop(branch.seq_id, None)
        record.outbox.live.discard(record.request_id)
        if record.admitted_at is None:
            self._leave_queue(record)
        record.when_over()

    def _leave_queue(self, record: Record) -> None:
        self.waiting_requests -= 1
        self.waiting_tokens -= record.prompt_len

    def by_id(self, request_id: str) -> Record | None:
        return self._by_id.get(request_id)

    def by_seq(self, seq_id: int) -> Branch | None:
        return self._by_seq.get(seq_id)

    def all(self) -> list[Record]:
        return list(self._by_id.values())

    def of_outbox(self, outbox: Outbox) -> list[Record]:
        """The live requests of one client stream."""
        return [self._by_id[request_id] for request_id in outbox.live]


def queue_timeout() -> DeadlineExceeded:
    """The error of a request that waited too long for its first step."""
    return DeadlineExceeded("queue_timeout: no step was free in time", field="queue_timeout")


def _queue_full(why: str) -> ResourceExhausted:
    return ResourceExhausted(f"the queue is full: {why}", reason="QUEUE_FULL", retry_after=1.0)
