"""The values that cross the core's border: what goes in, what comes out.

Owns the frozen types of the core's whole interface; knows neither wire nor clock. Invariant: every value can
be logged and replayed, for arrays are never written after construction.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

import numpy as np
import numpy.typing as npt
import xxhash

BlockId = NewType("BlockId", int)
SeqId = NewType("SeqId", int)
StepId = NewType("StepId", int)
Epoch = NewType("Epoch", int)

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

SAMPLED_LAST = -1
"""In `StepPlan.input_ids`: the token that this row sampled last, which the scheduler may not know yet."""


def no_ids() -> Int32Array:
    return np.empty(0, np.int32)


def branch_seed(seed: int, branch: int) -> int:
    """The seed of one branch of a request: the request's own for branch 0, so that branch i equals the single
    run with this seed.
    """
    if branch == 0:
        return seed
    return xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + branch.to_bytes(8, "little"))


def no_pairs() -> Int32Array:
    return np.empty((0, 2), np.int32)


class PreemptionMode(Enum):
    """How a sequence gives up its blocks. AUTO: what the cost model finds cheaper; RECOMPUTE where there is
    no host tier.
    """

    AUTO = "auto"
    RECOMPUTE = "recompute"
    SWAP = "swap"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    KV_POOL = "kv_pool"
    ERROR = "error"


class RefusalReason(Enum):
    EXCEEDS_MODEL_LEN = "EXCEEDS_MODEL_LEN"
    EXCEEDS_KV_POOL = "EXCEEDS_KV_POOL"
    EXCEEDS_ROWS = "EXCEEDS_ROWS"
    EMPTY_PROMPT = "EMPTY_PROMPT"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not taken: `field` is the request's, `value` and `limit` the numbers compared."""

    reason: RefusalReason
    field: str
    value: int
    limit: int
    message: str


MAX_DEPTH = 4
"""Steps in flight at most: each costs a token computed in vain when a sequence stops."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The core's settings, fixed for its life.

    max_num_seqs: rows of a step. max_num_batched_tokens: new tokens of a step. max_prefill_chunk: new tokens
    of one row in a step (0: no bound but the budget). watermark_blocks: blocks left free by an admission, but
    on an empty pool; more when many sequences run. depth: steps in flight, 1..MAX_DEPTH. match_inside_blocks:
    a cached block that begins as the prompt goes on is copied. priority_aging: seconds of waiting that weigh
    as much as one step of priority (0: priorities are strict). hash_seed: 16 random bytes, the root parent of
    the prefix index.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_chunk: int = 0
    watermark_blocks: int = 1
    depth: int = 2
    priority_aging: float = 60.0
    prefix_cache: bool = True
    match_inside_blocks: bool = True
    preemption: PreemptionMode = PreemptionMode.AUTO
    hash_seed: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a live worker offers; from its handshake. num_host_blocks 0: nothing can be swapped out."""

    epoch: Epoch
    model_fingerprint: str
    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_batch_seqs: int
    max_model_len: int
    num_host_blocks: int = 0
    bytes_per_block: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """temperature 0 is greedy; top_k 0 means all; seed is an unsigned 64-bit number.

    Penalties 0, repetition_penalty 1 and no logit_bias, (id, value) pairs, change nothing. suppressed_ids are
    not sampled before min_tokens are out. logprobs, prompt_logprobs: alternatives to report, None for none of
    it. grammar: what the output has to match, in the worker's own form, empty for anything.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    suppressed_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""

    @property
    def needs_history(self) -> bool:
        """Whether the worker needs the ids of prompt and output to sample on."""
        penalises = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalises or self.grammar) or self.prompt_logprobs is not None


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as the core sees it.

    seq_id: unique over the core's life, rising with arrival. n: branches that sample the one prompt,
    sequences seq_id to seq_id + n - 1; sampling.seed is branch 0's, see `branch_seed`. max_tokens None: to
    the context limit.
    stop_token_ids: all ids that end the sequence once min_tokens are out (the shell has joined EOS and user
    ids). priority: smaller first. namespace: prefix cache namespace. use_prefix_cache: False
    neither reads the prefix cache nor publishes. Stop strings are the shell's: it calls `Scheduler.stop`.
    """

    seq_id: SeqId
    prompt: Int32Array
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    namespace: str = ""
    use_prefix_cache: bool = True
    n: int = 1


@dataclass(frozen=True, slots=True)
class RowSetup:
    """A row that begins to stand for a sequence. Output position of a sample = its context length -
    prompt_len. token_ids: what the sequence has so far, prompt first, if its sampling needs_history, else
    nothing.
    """

    row: int
    seq_id: SeqId
    prompt_len: int
    sampling: SamplingParams
    token_ids: Int32Array = field(default_factory=no_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, exact but for the values of ids still in flight. Arrays are int32.

    R rows, T new tokens, S samples (a row that a fork sets up samples without being among the R). Applied in
    this order: `released_rows`, `setups`, table entries, `swap_out_pairs` (read after all earlier steps, on a
    stream of their own), `zero_blocks`, `copy_pairs`, `swap_in_pairs`, then the forward pass. A plan without
    rows asks for acknowledgements: its answer comes when every transfer out, its own too, is done. Row state
    is that of the worker's session: the first
    plan after `Scheduler.worker_ready` builds on no row at all.
    """

    step_id: StepId
    released_rows: Int32Array
    setups: tuple[RowSetup, ...]
    table_rows: Int32Array
    table_offsets: Int32Array
    table_blocks: Int32Array
    zero_blocks: Int32Array
    copy_pairs: Int32Array  # [N, 2] from, to
    rows: Int32Array  # [R]
    query_lens: Int32Array  # [R] new tokens
    context_lens: Int32Array  # [R] tokens after this step, the new ones counted
    input_ids: Int32Array  # [T], SAMPLED_LAST for an id in flight
    positions: Int32Array  # [T]
    slot_mapping: Int32Array  # [T]
    sample_positions: Int32Array  # [S] index into the T tokens
    sample_rows: Int32Array  # [S]
    swap_out_pairs: Int32Array = field(default_factory=no_pairs)  # [N, 2] device, host
    swap_in_pairs: Int32Array = field(default_factory=no_pairs)  # [N, 2] host, device


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the worker answered to one plan. token_ids: [S] in the plan's order, -1 where the row failed.

    failed_rows: (row, reason) pairs. failure: why the whole step failed, or None. acknowledged: steps, this
    one or older, whose swap-outs are done; transfer_seconds: what those took together. forward_seconds,
    block_move_seconds: of this step, the latter for its zeroing, copies and swap-ins. 0: not measured.
    """

    step_id: StepId
    token_ids: Int32Array
    failed_rows: tuple[tuple[int, str], ...] = ()
    failure: str | None = None
    acknowledged: tuple[StepId, ...] = ()
    forward_seconds: float = 0.0
    block_move_seconds: float = 0.0
    transfer_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenEvents:
    """The tokens that one answer made deliverable, in order: N (sequence, token) pairs.

    One token a sequence for each step; when an answer came early, the events of two steps come together.
    output_lens counts the token itself.
    """

    seq_ids: Int64Array
    token_ids: Int32Array
    output_lens: Int32Array


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a sequence. output_len: tokens delivered. matched_token: the stop id, when one ended it.

    blocks_saved: those that it shared with the other branches of its request at the fork.
    """

    seq_id: SeqId
    reason: FinishReason
    output_len: int
    prompt_len: int
    cached_prompt_tokens: int
    preemptions: int
    matched_token: int | None = None
    error: str = ""
    blocks_saved: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request got its first row; seq_id is its first sequence's. cached_prompt_tokens came from the prefix
    cache.
    """

    seq_id: SeqId
    cached_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Notices:
    """What happened to sequences since the last `Scheduler.take_notices`, in order."""

    admitted: tuple[Admitted, ...] = field(default=())
    finished: tuple[Finished, ...] = field(default=())
