"""Requests of a trace, and the token ids that stand for their contents.

Owns what a request of a trace is and how block ids become tokens; does not know file formats or the core.
Invariant: the content of a request depends on the trace alone: equal block ids give equal tokens, and nothing
else does.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.plan import Int32Array, Int64Array

UInt64Array = npt.NDArray[np.uint64]

_BLOCKS, _PROMPTS, _OUTPUTS = 0, 1, 2  # kinds of contents, each with ids of its own
_ID_BITS, _OFFSET_BITS = 33, 28
_TOKEN_BITS = 30
MAX_TOKENS = 1 << _OFFSET_BITS
"""Tokens of a request's prompt, and of its output."""


class TraceError(Exception):
    """A trace that cannot be used; the message is one line that names file, line, field, value and limit."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """arrival: seconds from the trace's begin. namespace: block ids and contents are shared only within it.

    block_ids: of consecutive blocks of the prompt, `Trace.id_block_size` tokens each; the last may be cut,
    and a rest without an id is content of this request alone. prompt, output: the token ids, where they are
    known. priority: smaller first. use_prefix_cache: whether it may read and fill the prefix cache.
    """

    arrival: float
    prompt_len: int
    output_len: int
    namespace: str = ""
    block_ids: Int32Array | None = None
    prompt: Int32Array | None = None
    output: Int32Array | None = None
    priority: int = 0
    use_prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in file order. id_block_size: tokens that a block id stands for, 0 where there are no ids."""

    name: str
    format: str
    requests: tuple[TraceRequest, ...]
    id_block_size: int = 0

    def by_arrival(self) -> "Trace":
        """The same requests in order of arrival; those that arrive together stay in file order."""
        return replace(self, requests=tuple(sorted(self.requests, key=lambda request: request.arrival)))

    def prompt_of(self, number: int) -> Int32Array:
        """[prompt_len] the prompt of request `number`: its text, or what its block ids give."""
        request = self.requests[number]
        if request.prompt is not None:
            return request.prompt
        tokens = np.empty(request.prompt_len, np.int32)
        covered = 0
        if request.block_ids is not None:
            covered = min(request.prompt_len, len(request.block_ids) * self.id_block_size)
            offsets = np.arange(self.id_block_size, dtype=np.uint64)
            blocks = _tokens(_BLOCKS, request.block_ids.astype(np.uint64)[:, None], offsets[None, :])
            tokens[:covered] = blocks.reshape(-1)[:covered]
        rest = np.arange(covered, request.prompt_len, dtype=np.uint64)
        tokens[covered:] = _tokens(_PROMPTS, np.full(1, number, np.uint64), rest)
        return tokens

    def ids_of(self, number: int) -> Int32Array:
        """[n + 1] the block ids of request `number` as tokens, and one more token that is no id.

        With a block size of 1, the index then holds the trace's own blocks, the cut one counted whole; the
        last token is there because at least one token of a prompt is always computed.
        """
        ids = self.requests[number].block_ids
        assert ids is not None
        return np.append(ids, np.int32(np.iinfo(np.int32).max))


def output_tokens(numbers: Int64Array, positions: Int64Array) -> Int32Array:
    """[k] the tokens at these output positions of these requests: content that no prompt has."""
    return _tokens(_OUTPUTS, numbers.astype(np.uint64), positions.astype(np.uint64))


def _tokens(kind: int, ids: UInt64Array, offsets: UInt64Array) -> Int32Array:
    """30 bits of a mix of kind, id and offset (the finaliser of splitmix64, public domain)."""
    x = (np.uint64(kind) << np.uint64(_ID_BITS + _OFFSET_BITS)) + (ids << np.uint64(_OFFSET_BITS)) + offsets
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Int32Array = ((x ^ (x >> np.uint64(31))) >> np.uint64(64 - _TOKEN_BITS)).astype(np.int32)
    return mixed
