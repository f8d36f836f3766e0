"""One request while it lives, and what may be seen of it from outside.

Owns what a request is and how far it has come while it holds no row; does not know blocks or rows' arrays.
Invariant: `tokens` is the whole context whenever the sequence has no row; while it has one, it is the context
at admission, and the row's history goes on from there.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from scheduler_svc.core.block_hash import UInt64Array
from scheduler_svc.core.decisions import Decision
from scheduler_svc.core.plan import Int32Array, NewRequest, SamplingParams, SeqId, branch_seed

NO_ROW = -1


class SeqState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


def _no_keys() -> UInt64Array:
    return np.empty((0, 2), np.uint64)


@dataclass(slots=True, eq=False)
class Sequence:
    """One branch of a live request. arrival: its number in order of `add`; arrived_at: seconds on the
    caller's clock. rank: see `rank_of`.

    followers: the branches that wait for this one to compute the prompt; leader: the one that this waits for.
    keys: [n, 2] of the full blocks of `tokens`, hashed once; keys_of: the (fingerprint, block_size) they are
    for. decision: how it was preempted last, until what that cost is known.
    """

    request: NewRequest
    arrival: int
    arrived_at: float
    tokens: Int32Array
    rank: float
    state: SeqState = SeqState.WAITING
    row: int = NO_ROW
    keys: UInt64Array = field(default_factory=_no_keys)
    keys_of: tuple[str, int] = ("", 0)
    admissions: int = 0
    preemptions: int = 0
    preempted_at: float | None = None
    cached_prompt_tokens: int = 0
    branch: int = 0
    followers: list["Sequence"] = field(default_factory=list)
    leader: "Sequence | None" = None
    blocks_saved: int = 0
    decision: Decision | None = None

    @property
    def seq_id(self) -> SeqId:
        return SeqId(self.request.seq_id + self.branch)

    @property
    def sampling(self) -> SamplingParams:
        """The request's parameters with this branch's seed."""
        sampling = self.request.sampling
        return replace(sampling, seed=branch_seed(sampling.seed, self.branch)) if self.branch else sampling

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def order(self) -> tuple[float, int]:
        """Smaller is served first and preempted last."""
        return (self.rank, self.arrival)


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A sequence as an inspector sees it. computed: tokens in the KV pool or on their way there. arrival:
    seconds. host_blocks: those that hold it while it is swapped out.
    """

    seq_id: SeqId
    state: SeqState
    prompt_len: int
    cached: int
    computed: int
    output_len: int
    num_blocks: int
    preemptions: int
    priority: int
    arrival: float
    host_blocks: int = 0
