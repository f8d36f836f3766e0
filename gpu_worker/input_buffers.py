"""What a step reads on the device: one packed upload, and the row state that stays there.

Owns the device's block tables, last tokens and sampling parameters; checks nothing, for `rows` has.
Invariant: a steady decode step costs one host-to-device copy, and no call here waits for the device.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.rows import RowTable
from gpu_worker.sampler import SampleRows, uniform
from gpu_worker.wire import Plan


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step on the device. R rows, T tokens, S samples; int64 where torch indexes with it, else int32."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int32
    block_tables: Tensor  # [R, W] int32
    cu_query_lens: Tensor  # [R + 1] int32
    context_lens: Tensor  # [R] int32
    sample_positions: Tensor  # [S] int64
    sample_rows: Tensor  # [S] int64
    zero_blocks: Tensor  # [N] int32
    copy_pairs: Tensor  # [N, 2] int32


class InputBuffers:
    """Row state on the device, for rows 0..max_batch_seqs-1 and one more, scratch for padding.

    tables [rows + 1, W] int32; last_tokens [rows + 1] int64.
    """

    def __init__(self, device: Device, table: RowTable) -> None:
        limits, where = table.limits, device.torch_device
        self._device = device
        self._table = table
        rows = limits.max_batch_seqs + 1
        self.tables = torch.full(
            (rows, limits.table_width), limits.num_blocks, dtype=torch.int32, device=where
        )
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=where)

    def upload(self, plan: Plan) -> StepTensors:
        """Sends a checked plan to the device and resolves what is only known there (-1 input ids)."""
        parts = self._upload_packed(plan)
        self.tables.index_put_(
            (parts["table_rows"].long(), parts["table_offsets"].long()), parts["table_blocks"]
        )
        longest = int(plan.context_lens.max()) if len(plan.rows) else 0
        width = -(-longest // self._table.limits.block_size)
        input_ids = parts["input_ids"].long()
        if (plan.input_ids < 0).any():
            last = self.last_tokens.index_select(0, parts["owners"].long())
            input_ids = torch.where(input_ids < 0, last, input_ids)
        sample_rows, positions = parts["sample_rows"].long(), parts["positions"].long()
        sample_positions = parts["sample_positions"].long()
        return StepTensors(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=parts["slot_mapping"],
            block_tables=self.tables[:, :width].index_select(0, parts["rows"].long()),
            cu_query_lens=parts["cu_query_lens"],
            context_lens=parts["context_lens"],
            sample_positions=sample_positions,
            sample_rows=sample_rows,
            zero_blocks=parts["zero_blocks"],
            copy_pairs=parts["copy_pairs"].view(-1, 2),
        )

    def upload_house_keeping(self, plan: Plan, with_tables: bool) -> tuple[Tensor, Tensor]:
        """Sends what a captured step does not hold: (zero_blocks [N], copy_pairs [N, 2]), table entries."""
        pieces = [plan.zero_blocks, plan.copy_pairs.reshape(-1)]
        if with_tables:
            pieces += [plan.table_rows, plan.table_offsets, plan.table_blocks]
        packed = self._device.upload(np.concatenate(pieces, dtype=np.int32))
        zero_blocks, copies, *entries = torch.split(packed, [len(piece) for piece in pieces])
        if with_tables:
            rows, offsets, blocks = entries
            self.tables.index_put_((rows.long(), offsets.long()), blocks)
        return zero_blocks, copies.view(-1, 2)

    def _upload_packed(self, plan: Plan) -> dict[str, Tensor]:
        cu_query_lens = np.zeros(len(plan.rows) + 1, np.int32)
        np.cumsum(plan.query_lens, out=cu_query_lens[1:])
        pieces = {
            "input_ids": plan.input_ids,
            "positions": plan.positions,
            "slot_mapping": plan.slot_mapping,
            "owners": np.repeat(plan.rows, plan.query_lens),
            "rows": plan.rows,
            "cu_query_lens": cu_query_lens,
            "context_lens": plan.context_lens,
            "sample_positions": plan.sample_positions,
            "sample_rows": plan.sample_rows,
            "table_rows": plan.table_rows,
            "table_offsets": plan.table_offsets,
            "table_blocks": plan.table_blocks,
            "zero_blocks": plan.zero_blocks,
            "copy_pairs": plan.copy_pairs.reshape(-1),
        }
        packed = self._device.upload(np.concatenate(list(pieces.values()), dtype=np.int32))
        return dict(zip(pieces, torch.split(packed, [len(piece) for piece in pieces.values()]), strict=True))

    def samples(self, plan: Plan, places: npt.NDArray[np.int64] | None = None) -> SampleRows | None:
        """The sampling parameters of a step's samples, or of those at `places` among them, if at least one
        row is not greedy; they go in one more copy.
        """
        rows, positions = plan.sample_rows, self._table.output_positions(plan)
        if places is not None:
            rows, positions = rows[places], positions[places]
        parameters = self._table.sampling[rows]
        random = np.flatnonzero(parameters[:, 0] > 0)
        if not len(random):
            return None
        draws = uniform(
            torch.from_numpy(self._table.seeds[rows].view(np.int64)),
            torch.from_numpy(positions.astype(np.int64)),
        )
        sent = self._device.upload(np.concatenate((parameters, draws.numpy()[:, None]), axis=1))
        index = np.zeros(len(random), np.int32)
        index[:] = random
        top_k = parameters[random, 3]
        return SampleRows(
            parameters=sent[:, :4],
            draws=sent[:, 4],
            random=self._device.upload(index).long(),
            max_top_k=int(top_k.max()),
            all_top_k=bool((top_k > 0).all()),
            any_top_p=bool((parameters[random, 1] < 1).any()),
        )

    def remember(self, rows: Tensor, tokens: Tensor) -> None:
        """Keeps the tokens [S] that rows [S] sampled, for the -1 ids of the next step."""
        self.last_tokens.index_copy_(0, rows, tokens)
