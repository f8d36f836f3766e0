"""What the host knows of each row, and the checks of a plan against it.

Owns the host's copy of tables, lengths and sampling parameters; knows no device. Invariant: a plan that
passes `RowTable.apply` names only slots, blocks, rows and tokens that exist, and no row reads a block not
in its table.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.asks import RowAsks
from gpu_worker.errors import PlanError
from gpu_worker.wire import Int32Array, Plan, RowSetup, implied_positions

_MAX_TOP_K = 2**31 - 1
_ONE = np.int32(1)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that plans are checked against; counts, and tokens for lengths."""

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_batch_seqs: int
    max_model_len: int
    vocab_size: int
    num_host_blocks: int = 0

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.block_size)


class RowTable:
    """Rows 0..max_batch_seqs-1 of one session. `sampling` [rows, 4]: temperature, top_p, min_p, top_k;
    `asks`: what single rows want beyond that.
    """

    def __init__(self, limits: Limits) -> None:
        rows = limits.max_batch_seqs
        self.limits = limits
        self.live = np.zeros(rows, np.bool_)
        self.sampled = np.zeros(rows, np.bool_)
        self.prompt_lens = np.zeros(rows, np.int64)
        self.seeds = np.zeros(rows, np.uint64)
        self.sampling = np.zeros((rows, 4), np.float64)
        self.asks = RowAsks(rows, limits.vocab_size)
        self._tables = np.full((rows, limits.table_width), -1, np.int32)
        self._table_lens = np.zeros(rows, np.int64)
        self._on_host = np.zeros(limits.num_host_blocks, np.bool_)  # host blocks that were written

    def apply(self, plan: Plan) -> None:
        """Takes a plan's row state in, in proto order, and checks all of it. Raises PlanError.

        After an error the table may be half changed: the session is over and `clear` comes next.
        """
        self.enter(plan)
        self.verify(plan)

    def enter(self, plan: Plan) -> None:
        """The first half: after it every number of the plan is one that the device may be given."""
        self._release(plan.released_rows)
        for setup in plan.setups:
            self._set_up(setup)
        self._enter_blocks(plan)
        self._check_block_ops(plan)
        self._check_batch(plan)
        self._check_numbers(plan)

    def verify(self, plan: Plan) -> None:
        """The second half: the numbers of an entered plan mean what its rows' tables and lengths say."""
        self._verify_blocks(plan)
        self._verify_batch(plan)
        self._verify_tokens(plan)
        self._verify_samples(plan)
        self.sampled[plan.sample_rows] = True

    def output_positions(self, plan: Plan) -> npt.NDArray[np.int64]:
        """[S] where each sample of a plan stands in its row's output."""
        contexts = plan.positions[plan.sample_positions] + 1
        positions: npt.NDArray[np.int64] = contexts - self.prompt_lens[plan.sample_rows]
        return positions

    def clear(self) -> None:
        """Forgets every row."""
        self.live[:] = False
        self.sampled[:] = False
        self._tables[:] = -1
        self._table_lens[:] = 0
        self._on_host[:] = False
        self.asks.clear()

    def _release(self, rows: Int32Array) -> None:
        if not len(rows):
            return
        self._check_rows("released_rows", rows)
        at = rows if len(rows) > 1 else int(rows[0])  # a number is several times cheaper an index
        self.live[at] = False
        self.sampled[at] = False
        self._tables[at] = -1
        self._table_lens[at] = 0
        self.asks.release(rows)

    def _set_up(self, setup: RowSetup) -> None:
        row, given = setup.row, setup.sampling
        if row >= self.limits.max_batch_seqs:
            raise PlanError(
                "row_setups.row", f"{row} is not below max_batch_seqs {self.limits.max_batch_seqs}"
            )
        if self.live[row]:
            raise PlanError("row_setups.row", f"{row} is set up already and was not released")
        if not 1 <= setup.prompt_len <= self.limits.max_model_len:
            raise PlanError(
                "row_setups.prompt_len", f"{setup.prompt_len}, expected 1..{self.limits.max_model_len}"
            )
        self.asks.set_up(setup)
        self.live[row] = True
        self.prompt_lens[row] = setup.prompt_len
        self.seeds[row] = setup.sampling.seed
        self.sampling[row] = (given.temperature, given.top_p, given.min_p, min(given.top_k, _MAX_TOP_K))

    def _enter_blocks(self, plan: Plan) -> None:
        rows, offsets, blocks = plan.table_rows, plan.table_offsets, plan.table_blocks
        if not len(rows) == len(offsets) == len(blocks):
            counts = f"{len(rows)}, {len(offsets)}, {len(blocks)}"
            raise PlanError("table_rows", f"table_rows, table_offsets, table_blocks have {counts} entries")
        if not len(rows):
            return
        self._check_live("table_rows", rows)
        self._check_range("table_offsets", offsets, self.limits.table_width)
        self._check_range("table_blocks", blocks, self.limits.num_blocks)
        self._tables[rows, offsets] = blocks
        np.maximum.at(self._table_lens, rows, offsets.astype(np.int64) + 1)

    def _verify_blocks(self, plan: Plan) -> None:
        rows, offsets = plan.table_rows, plan.table_offsets
        if not len(rows):
            return
        cells = rows.astype(np.int64) * self.limits.table_width + offsets
        _refuse_twice("table_offsets", cells, "names an entry of a row twice")
        last = np.flatnonzero(rows[1:] != rows[:-1])  # entries of a row come together
        self._check_no_gap(rows[np.append(last, len(rows) - 1)])

    def _check_no_gap(self, rows: npt.NDArray[np.int32]) -> None:
        filled = np.count_nonzero(self._tables[rows] >= 0, axis=1)
        gaps = rows[filled != self._table_lens[rows]]
        if len(gaps):
            raise PlanError("table_offsets", f"leaves a gap in the table of row {int(gaps[0])}")

    def _check_block_ops(self, plan: Plan) -> None:
        self._check_range("zero_blocks", plan.zero_blocks, self.limits.num_blocks)
        if len(plan.copy_pairs):
            self._check_copies(plan)
        if len(plan.swap_out_pairs) or len(plan.swap_in_pairs):
            self._check_swaps(plan)

    def _check_copies(self, plan: Plan) -> None:
        self._check_range("copy_pairs", plan.copy_pairs.reshape(-1), self.limits.num_blocks)
        targets = plan.copy_pairs[:, 1]
        _refuse_twice("copy_pairs", targets, "writes a block twice")
        if np.isin(targets, plan.copy_pairs[:, 0]).any():
            raise PlanError("copy_pairs", "a block is both a source and a target")

    def _check_swaps(self, plan: Plan) -> None:
        leaving, to_host = plan.swap_out_pairs.T
        from_host, coming = plan.swap_in_pairs.T
        if not self.limits.num_host_blocks:
            name = "swap_out_pairs" if len(leaving) else "swap_in_pairs"
            raise PlanError(name, "this worker has no host blocks")
        self._check_range("swap_out_pairs", leaving, self.limits.num_blocks)
        self._check_range("swap_out_pairs", to_host, self.limits.num_host_blocks)
        self._check_range("swap_in_pairs", coming, self.limits.num_blocks)
        self._check_range("swap_in_pairs", from_host, self.limits.num_host_blocks)
        _refuse_twice("swap_out_pairs", to_host, "writes a host block twice")
        _refuse_twice("swap_in_pairs", coming, "writes a block twice")
        empty = from_host[~self._on_host[from_host]]
        if len(empty):
            raise PlanError("swap_in_pairs", f"host block {int(empty[0])} was never swapped out to")
        if np.isin(from_host, to_host).any() or np.isin(coming, leaving).any():
            raise PlanError("swap_in_pairs", "names a block that this plan swaps out")
        if np.isin(coming, plan.copy_pairs).any():
            raise PlanError("swap_in_pairs", "a target is in copy_pairs too")
        self._on_host[to_host] = True

    def _check_batch(self, plan: Plan) -> None:
        limits = self.limits
        if len(plan.rows) > limits.max_batch_seqs:
            raise PlanError("rows", f"{len(plan.rows)} rows, max_batch_seqs is {limits.max_batch_seqs}")
        self._check_live("rows", plan.rows)
        tokens = int(plan.query_lens.sum(dtype=np.int64))
        if tokens > limits.max_batch_tokens:
            raise PlanError(
                "query_lens", f"{tokens} new tokens, max_batch_tokens is {limits.max_batch_tokens}"
            )
        for name in ("input_ids", "positions", "slot_mapping"):
            if len(getattr(plan, name)) != tokens:
                raise PlanError(name, f"{len(getattr(plan, name))} entries, query_lens add up to {tokens}")
        if not len(plan.rows):
            return
        longest = int(plan.context_lens[plan.context_lens.argmax()])
        if longest > limits.max_model_len:
            raise PlanError("context_lens", f"{longest} tokens, max_model_len is {limits.max_model_len}")
        if np.count_nonzero(plan.context_lens < plan.query_lens):
            raise PlanError("context_lens", "shorter than the row's new tokens")

    def _verify_batch(self, plan: Plan) -> None:
        _refuse_twice("rows", plan.rows, "names a row twice")
        short = self._table_lens[plan.rows] * self.limits.block_size < plan.context_lens
        if short.any():
            row = int(plan.rows[short][0])
            raise PlanError("context_lens", f"the table of row {row} has only {self._table_lens[row]} blocks")

    def _check_numbers(self, plan: Plan) -> None:
        """Token ids, positions, slots and samples, each for itself."""
        limits, ids = self.limits, plan.input_ids
        if len(ids) and not _are_ids(ids, limits.vocab_size):
            bad = ids[(ids >= limits.vocab_size) | (ids < -1)][0]
            raise PlanError("input_ids", f"{int(bad)} is not a token id below {limits.vocab_size}")
        self._check_range("positions", plan.positions, limits.max_model_len)
        self._check_range("slot_mapping", plan.slot_mapping, limits.num_blocks * limits.block_size)
        self._check_range("sample_positions", plan.sample_positions, len(ids))
        self._check_live("sample_rows", plan.sample_rows)

    def _verify_tokens(self, plan: Plan) -> None:
        if not len(plan.rows):
            return
        ids, positions, slots = plan.input_ids, plan.positions, plan.slot_mapping
        if not np.array_equal(positions, implied_positions(plan.query_lens, plan.context_lens)):
            raise PlanError("positions", "are not the last query_len positions of each row's context")
        owners = plan.rows if len(ids) == len(plan.rows) else np.repeat(plan.rows, plan.query_lens)
        unsampled = owners[(ids == -1) & ~self.sampled[owners]]
        if len(unsampled):
            raise PlanError(
                "input_ids", f"-1 for row {int(unsampled[0])}, which has not sampled since its set-up"
            )
        _refuse_twice("slot_mapping", slots, "two tokens share a slot")
        block, offset = np.divmod(positions, self.limits.block_size)
        expected = self._tables[owners, block] * self.limits.block_size + offset
        wrong = np.flatnonzero(expected != slots)
        if len(wrong):
            first = wrong[0]
            raise PlanError(
                "slot_mapping",
                f"position {positions[first]} of row {owners[first]} belongs into slot {expected[first]}, "
                f"not {slots[first]}",
            )

    def _verify_samples(self, plan: Plan) -> None:
        _refuse_twice("sample_rows", plan.sample_rows, "a row samples twice")
        if len(plan.sample_rows):
            contexts = plan.positions[plan.sample_positions].astype(np.int64) + 1
            early = plan.sample_rows[contexts < self.prompt_lens[plan.sample_rows]]
            if len(early):
                raise PlanError("sample_positions", f"row {int(early[0])} samples inside its prompt")

    def _check_rows(self, name: str, rows: Int32Array) -> None:
        self._check_range(name, rows, self.limits.max_batch_seqs)

    def _check_live(self, name: str, rows: Int32Array) -> None:
        self._check_rows(name, rows)
        if len(rows) == 1 and self.live[int(rows[0])]:
            return
        live = self.live[rows]
        if np.count_nonzero(live) < len(rows):
            raise PlanError(name, f"row {int(rows[~live][0])} is not set up")

    @staticmethod
    def _check_range(name: str, values: Int32Array, limit: int) -> None:
        if len(values) == 1:
            if 0 <= int(values[0]) < limit:
                return
        elif not len(values) or _greatest(values) < limit:
            return
        bad = values[(values < 0) | (values >= limit)][0]
        raise PlanError(name, f"{int(bad)} is not in 0..{limit - 1}")


def _are_ids(ids: Int32Array, vocab_size: int) -> bool:
    """Whether each is an id or -1. A plan whose last is an id often has no -1: then one look is enough."""
    if ids[-1] >= 0 and _greatest(ids) < vocab_size:
        return True
    return _greatest(ids + _ONE) <= vocab_size


def _greatest(values: Int32Array) -> int:
    """Of at least one value, those below zero taken as far above. argmax, for max goes through Python."""
    unsigned = values.view(np.uint32)
    return int(unsigned[unsigned.argmax()])


def _refuse_twice(name: str, values: npt.NDArray[np.int32] | npt.NDArray[np.int64], what: str) -> None:
    if len(values) < 2:
        return
    ordered = np.sort(values)
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        raise PlanError(name, f"{what} ({int(ordered[same[0]])})")
