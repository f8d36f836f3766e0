"""A KV pool and row table of numbers: what a worker would read and write, without a model.

Owns one (position, token) pair a slot, with the digest of the context it was computed in, and the rows'
tables; knows neither wire nor scheduler. Invariant: every rule of a plan is checked, and a row's next token
is a hash of the pairs that it reads back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.fakes.plan_like import Int32Array, PlanLike, SetupLike
from tests.fakes.simulated_host import BadTransfer, SimulatedHost
from tests.fakes.token_hash import UInt64Array, digest_of, expected_tokens, next_token, pair_words

__all__ = ["PlanLike", "ProtocolViolation", "SimulatedKv", "digest_of", "expected_tokens"]

NEVER_WRITTEN = -1
SAMPLED_LAST = -1


class ProtocolViolation(Exception):
    """A plan broke a rule of the step protocol; `field` is the plan's field."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(f"{field_name}: {message}")
        self.field = field_name


@dataclass(slots=True)
class _Row:
    setup: SetupLike
    table: list[int] = field(default_factory=list)
    context_len: int | None = None  # None: nothing computed since the set-up
    context_digest: int | None = 0  # None: a block of it was poisoned
    sampled: tuple[int, int] | None = None  # (position of the token, token)
    spoilt: bool = False  # a block of it was poisoned at some time


class SimulatedKv:
    """A pool of num_blocks * block_size slots and the rows of one session.

    Raises ProtocolViolation on any broken rule.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, num_host_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.pool_positions = np.full((num_blocks, block_size), NEVER_WRITTEN, np.int32)
        self.pool_tokens = np.full((num_blocks, block_size), NEVER_WRITTEN, np.int32)
        self.pool_contexts = np.zeros((num_blocks, block_size), np.uint64)
        content = (self.pool_positions, self.pool_tokens, self.pool_contexts)
        self.host = SimulatedHost(num_host_blocks, content)
        self.scripts: dict[int, Sequence[int]] = {}
        self._rows: dict[int, _Row] = {}

    @property
    def live_rows(self) -> list[int]:
        return sorted(self._rows)

    def script(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Output i of any row with this prompt is tokens[i]; past the end the hash goes on."""
        self.scripts[digest_of(prompt)] = list(tokens)

    def drop_rows(self) -> None:
        """A new session: no row is known; what the pool holds stays and is nobody's."""
        self._rows.clear()
        self.host.clear()

    def poison(self, number: int, start: int) -> None:
        """Spoils what a failed row wrote from position `start` on; who shares those blocks reads rubbish."""
        row = self._row("rows", number)
        positions = np.arange(start, row.context_len or 0)
        slots = self._slots(row, positions)
        self.pool_tokens.ravel()[slots] = self.vocab_size + positions
        spoilt = set((slots // self.block_size).tolist())
        for other in self._rows.values():
            if spoilt & set(other.table):
                other.context_digest = None
                other.spoilt = True

    def apply(self, plan: PlanLike) -> Int32Array:
        """Obeys one plan and returns its sampled token ids [S]."""
        self._update_rows(plan)
        try:
            self.host.swap_out(plan.step_id, plan.swap_out_pairs)
            self._zero(plan.zero_blocks)
            self._copy(plan.copy_pairs)
            self.host.swap_in(plan.swap_in_pairs)
        except BadTransfer as broken:
            raise ProtocolViolation(broken.field, str(broken)) from broken
        owners, starts = self._check_batch(plan)
        tokens = self._resolve_inputs(plan, owners)
        self._store(plan, owners, tokens)
        words = [self._read(row, int(length)) for row, length in zip(owners, plan.context_lens, strict=True)]
        self._deepen(owners, plan.query_lens, words)
        return self._sample(plan, owners, starts, words)

    def _update_rows(self, plan: PlanLike) -> None:
        for row in plan.released_rows.tolist():
            if self._rows.pop(row, None) is None:
                raise ProtocolViolation("released_rows", f"row {row} is not set up")
        for setup in plan.setups:
            if setup.row in self._rows:
                raise ProtocolViolation("row_setups", f"row {setup.row} is still set up")
            if setup.row < 0 or setup.prompt_len < 1:
                raise ProtocolViolation("row_setups", f"row {setup.row} with prompt_len {setup.prompt_len}")
            self._rows[setup.row] = _Row(setup)
        if not len(plan.table_rows) == len(plan.table_offsets) == len(plan.table_blocks):
            raise ProtocolViolation(
                "table_rows", "table_rows, table_offsets and table_blocks differ in length"
            )
        entries = zip(
            plan.table_rows.tolist(), plan.table_offsets.tolist(), plan.table_blocks.tolist(), strict=True
        )
        for row, offset, block in entries:
            table = self._row("table_rows", row).table
            self._check_block("table_blocks", block)
            if offset < 0 or offset > len(table):
                raise ProtocolViolation(
                    "table_offsets", f"offset {offset} of row {row} after {len(table)} entries"
                )
            table[offset : offset + 1] = [block]

    def _zero(self, blocks: Int32Array) -> None:
        for block in blocks.tolist():
            self._check_block("zero_blocks", block)
        self.pool_positions[blocks] = NEVER_WRITTEN
        self.pool_tokens[blocks] = NEVER_WRITTEN

    def _copy(self, pairs: Int32Array) -> None:
        flat = pairs.reshape(-1, 2)
        sources, targets = flat[:, 0], flat[:, 1]
        for block in flat.ravel().tolist():
            self._check_block("copy_pairs", block)
        if len(np.unique(targets)) != len(targets) or np.isin(targets, sources).any():
            raise ProtocolViolation(
                "copy_pairs", f"a target is copied to twice or is also a source: {flat.tolist()}"
            )
        self.pool_positions[targets] = self.pool_positions[sources]
        self.pool_tokens[targets] = self.pool_tokens[sources]
        self.pool_contexts[targets] = self.pool_contexts[sources]

    def _check_batch(self, plan: PlanLike) -> tuple[list[_Row], Int32Array]:
        """The batch's rows, and [R + 1] where each begins in the flat tokens."""
        if not len(plan.rows) == len(plan.query_lens) == len(plan.context_lens):
            raise ProtocolViolation("rows", "rows, query_lens and context_lens differ in length")
        if len(np.unique(plan.rows)) != len(plan.rows):
            raise ProtocolViolation("rows", f"a row twice: {plan.rows.tolist()}")
        owners = [self._row("rows", row) for row in plan.rows.tolist()]
        starts = np.concatenate(([0], np.cumsum(plan.query_lens))).astype(np.int32)
        for name in ("input_ids", "positions", "slot_mapping"):
            if len(getattr(plan, name)) != starts[-1]:
                raise ProtocolViolation(name, f"{len(getattr(plan, name))} entries for {starts[-1]} tokens")
        for row, query, context in zip(
            owners, plan.query_lens.tolist(), plan.context_lens.tolist(), strict=True
        ):
            self._check_context(row, query, context)
        return owners, starts

    def _check_context(self, row: _Row, query: int, context: int) -> None:
        if query < 1 or context < query:
            raise ProtocolViolation(
                "query_lens", f"query_len {query} in context_len {context}, row {row.setup.row}"
            )
        if row.context_len is not None and context - query != row.context_len:
            raise ProtocolViolation(
                "context_lens",
                f"row {row.setup.row} had {row.context_len} tokens, goes on at {context - query}",
            )
        if context > len(row.table) * self.block_size:
            raise ProtocolViolation(
                "context_lens", f"row {row.setup.row}: {context} tokens, table of {len(row.table)} blocks"
            )

    def _resolve_inputs(self, plan: PlanLike, owners: list[_Row]) -> Int32Array:
        tokens = plan.input_ids.copy()
        if (tokens < SAMPLED_LAST).any() or (tokens >= self.vocab_size).any():
            raise ProtocolViolation("input_ids", "an id outside the vocabulary")
        owner_of = np.repeat(np.arange(len(owners)), plan.query_lens)
        for index in np.flatnonzero(tokens == SAMPLED_LAST).tolist():
            row, position = owners[owner_of[index]], int(plan.positions[index])
            if row.sampled is None:
                raise ProtocolViolation("input_ids", f"-1 for row {row.setup.row}, which has not sampled")
            if row.sampled[0] != position:
                raise ProtocolViolation(
                    "input_ids",
                    f"-1 at position {position} of row {row.setup.row}, which sampled for {row.sampled[0]}",
                )
            tokens[index] = row.sampled[1]
        return tokens

    def _store(self, plan: PlanLike, owners: list[_Row], tokens: Int32Array) -> None:
        expected_positions = [
            np.arange(c - q, c) for q, c in zip(plan.query_lens, plan.context_lens, strict=True)
        ]
        positions = np.concatenate([np.empty(0, np.int64), *expected_positions]).astype(np.int32)
        if not np.array_equal(positions, plan.positions):
            raise ProtocolViolation("positions", f"{plan.positions.tolist()}, expected {positions.tolist()}")
        slots = [self._slots(row, at) for row, at in zip(owners, expected_positions, strict=True)]
        expected = np.concatenate([np.empty(0, np.int32), *slots])
        if not np.array_equal(expected, plan.slot_mapping):
            raise ProtocolViolation(
                "slot_mapping", f"{plan.slot_mapping.tolist()}, table says {expected.tolist()}"
            )
        if len(np.unique(expected)) != len(expected):
            raise ProtocolViolation("slot_mapping", f"a slot twice: {expected.tolist()}")
        self.pool_positions.ravel()[expected] = positions
        self.pool_tokens.ravel()[expected] = tokens

    def _read(self, row: _Row, context_len: int) -> UInt64Array:
        """The words [context_len] of the pairs that the row reads, checked against what it read before."""
        slots = self._slots(row, np.arange(context_len))
        positions, tokens = self.pool_positions.ravel()[slots], self.pool_tokens.ravel()[slots]
        wrong = np.flatnonzero(positions != np.arange(context_len))
        if len(wrong):
            at, held = int(wrong[0]), int(positions[wrong[0]])
            what = "was never written" if held == NEVER_WRITTEN else f"holds position {held}"
            raise ProtocolViolation(
                "table_blocks", f"row {row.setup.row} reads position {at} in slot {slots[at]}, which {what}"
            )
        words = pair_words(positions, tokens)
        known = row.context_digest
        if row.context_len and known is not None and _total(words[: row.context_len]) != known:
            raise ProtocolViolation("slot_mapping", f"the context of row {row.setup.row} was overwritten")
        row.context_len, row.context_digest = context_len, _total(words)
        return words

    def _deepen(self, owners: list[_Row], query_lens: Int32Array, words: list[UInt64Array]) -> None:
        """The deeper layers: what a slot holds there depends on the whole context before it."""
        contexts, slots = self.pool_contexts.ravel(), []
        for row, query_len, read in zip(owners, query_lens.tolist(), words, strict=True):
            slots.append(self._slots(row, np.arange(len(read))))
            contexts[slots[-1][-query_len:]] = read.cumsum()[-query_len:]
        for row, at, read in zip(owners, slots, words, strict=True):
            wrong = np.flatnonzero(contexts[at] != read.cumsum())
            if len(wrong) and not row.spoilt:
                raise ProtocolViolation(
                    "table_blocks",
                    f"row {row.setup.row} reads slot {at[wrong[0]]}, computed after another prefix",
                )

    def _sample(
        self, plan: PlanLike, owners: list[_Row], starts: Int32Array, words: list[UInt64Array]
    ) -> Int32Array:
        if len(plan.sample_positions) != len(plan.sample_rows):
            raise ProtocolViolation("sample_rows", "sample_positions and sample_rows differ in length")
        if len(np.unique(plan.sample_rows)) != len(plan.sample_rows):
            raise ProtocolViolation("sample_rows", f"a row samples twice: {plan.sample_rows.tolist()}")
        sampled = [
            self._sample_one(int(index), int(row), owners, starts, words, plan.positions)
            for index, row in zip(plan.sample_positions, plan.sample_rows, strict=True)
        ]
        return np.array(sampled, np.int32)

    def _sample_one(
        self, index: int, number: int, owners: list[_Row], starts: Int32Array, words: list[UInt64Array],
        positions: Int32Array,
    ) -> int:  # fmt: skip
        if not 0 <= index < starts[-1]:
            raise ProtocolViolation("sample_positions", f"{index} is not one of the {starts[-1]} tokens")
        row, owner = self._row("sample_rows", number), int(np.searchsorted(starts, index, "right")) - 1
        context_len = int(positions[index]) + 1
        digest = _total(words[owner][:context_len])
        if row is not owners[owner]:  # a fork: it goes on from the owner's context
            row.context_len, row.context_digest = context_len, digest
        output_position = context_len - row.setup.prompt_len
        if output_position < 0:
            raise ProtocolViolation(
                "sample_rows", f"row {number} samples inside its prompt, at {context_len}"
            )
        script = self.scripts.get(_total(words[owner][: row.setup.prompt_len]), ())
        if output_position < len(script):
            token = script[output_position]
        else:
            sampling = row.setup.sampling
            token = next_token(digest, self.vocab_size, sampling.temperature, sampling.seed, output_position)
        row.sampled = (context_len, token)
        return token

    def _slots(self, row: _Row, positions: npt.NDArray[np.int64]) -> Int32Array:
        table = np.array(row.table, np.int32)
        return (table[positions // self.block_size] * self.block_size + positions % self.block_size).astype(
            np.int32
        )

    def _row(self, name: str, row: int) -> _Row:
        if row not in self._rows:
            raise ProtocolViolation(name, f"row {row} is not set up")
        return self._rows[row]

    def _check_block(self, name: str, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise ProtocolViolation(name, f"block {block} of a pool of {self.num_blocks}")


def _total(words: UInt64Array) -> int:
    return int(words.sum(dtype=np.uint64))
