# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""The front of a step on the device: table entries, last tokens, embeddings, tables in the batch's order.

Owns two kernels and their launches; knows no plan. Invariant: launch shapes depend on the sizes of the step's
buffers only, never on what they hold.
"""

import triton
import triton.language as tl
from torch import Tensor

from paged_kernels.triton_impl import machine

_COPIED_AT_ONCE = 256


# fmt: off
@triton.jit
def _embed_kernel(
    hidden, embedding, input_ids, owners, last_tokens, tables, table_rows, table_offsets, table_blocks,
    table_stride, size: tl.constexpr, block: tl.constexpr, overlap: tl.constexpr,
):
    """Program t: entry t of the table updates, and token t. Grid (tokens,)."""
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    entry = tl.load(table_rows + token).to(tl.int64) * table_stride + tl.load(table_offsets + token)
    tl.store(tables + entry, tl.load(table_blocks + token))
    given = tl.load(input_ids + token).to(tl.int64)
    known = tl.load(last_tokens + tl.load(owners + token)).to(tl.int64)
    line = tl.where(given < 0, known, given)
    dims = tl.arange(0, block)
    values = tl.load(embedding + line * size + dims, mask=dims < size, other=0.0)
    tl.store(hidden + token * size + dims, values, mask=dims < size)


@triton.jit(do_not_specialize=["block_size"])
def _gather_kernel(
    out, tables, rows, context_lens, block_size, table_stride, at_once: tl.constexpr, overlap: tl.constexpr,
):
    if overlap:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line).to(tl.int64)
    count = tl.cdiv(tl.load(context_lens + line), block_size)
    for start in range(0, count, at_once):
        offsets = start + tl.arange(0, at_once)
        blocks = tl.load(tables + row * table_stride + offsets, mask=offsets < count, other=0)
        tl.store(out + line * table_stride + offsets, blocks, mask=offsets < count)
# fmt: on


def embed_tokens(
    embedding: Tensor,
    input_ids: Tensor,
    owners: Tensor,
    last_tokens: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    table_offsets: Tensor,
    table_blocks: Tensor,
) -> Tensor:
    """Embeddings [T, n] of input_ids [T], where -1 means last_tokens[owners]; enters T table entries first.

    tables [rows, W] int32 gets tables[table_rows, table_offsets] = table_blocks (each [T]); entries that name
    the same cell must hold the same block. The tables are complete when the launch is.
    """
    tokens, size = input_ids.shape[0], embedding.shape[1]
    hidden = embedding.new_empty((tokens, size))
    block = triton.next_power_of_2(size)
    _embed_kernel[(tokens,)](
        hidden,
        embedding,
        input_ids,
        owners,
        last_tokens,
        tables,
        table_rows,
        table_offsets,
        table_blocks,
        tables.stride(0),
        size,
        block,
        machine.overlaps(embedding.device),
        num_warps=min(8, max(1, block // 512)),
    )
    return hidden


def gather_tables(tables: Tensor, rows: Tensor, context_lens: Tensor, block_size: int, out: Tensor) -> None:
    """out[i, :n] = tables[rows[i], :n] where n blocks hold context_lens[i] tokens; both int32, W wide."""
    overlap = machine.overlaps(tables.device)
    _gather_kernel[(rows.shape[0],)](
        out,
        tables,
        rows,
        context_lens,
        block_size,
        tables.stride(0),
        _COPIED_AT_ONCE,
        overlap,
        num_warps=4,
        **machine.launch_options(overlap),
    )
