"""The operations in plain PyTorch: the reference on every device, and what runs where no faster kernel can.

Owns nothing but arithmetic; knows neither sequences nor which backend was chosen. Invariant: a slot outside a
row's context is never read, so whatever an unused slot holds (NaN included) cannot reach a result.
"""

import torch
from torch import Tensor

from paged_kernels import contracts

_QUERIES_PER_TILE = 256
_DECODE_TILE_SLOTS = 1 << 17


def store_kvcache(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V of each token into its slot.

    key, value [T, Hkv, D]; k_pool, v_pool [B, bs, Hkv, D], one layer of the pool, written in place;
    slot_mapping [T] int32 or int64, slot = block_id * block_size + offset, or -1 to skip the token. No two
    tokens may share a slot. Raises contracts.ArgumentError; IndexError (CPU) for a slot outside the pool.
    """
    contracts.check_store_kvcache(key, value, k_pool, v_pool, slot_mapping)
    slots = slot_mapping.long()
    keep = slots >= 0
    if not bool(keep.all()):
        slots, key, value = slots[keep], key[keep], value[keep]
    for source, pool in ((key, k_pool), (value, v_pool)):
        _slots_of(pool).index_copy_(0, slots, source)


def paged_attention(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    max_query_len: int,
    max_context_len: int,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of rows of any length over their blocks: softmax(scale * q k) v.

    query [T, Hq, D], the rows' new tokens end to end; k_pool, v_pool [B, bs, Hkv, D] with Hq a multiple of
    Hkv; block_tables [R, W] int32; cu_query_lens [R + 1] int32, row r owns query[cu[r]:cu[r + 1]];
    context_lens [R] int32, tokens of the row in the pool, the new ones included. A row's last query is its
    context's last token, so store first, then attend. Returns out (or a new tensor) [T, Hq, D]. Tokens at or
    past cu_query_lens[R] are padding: their output is unspecified. A row without context gives zeros.
    max_query_len and max_context_len bound the rows and are only checked here. Raises
    contracts.ArgumentError.
    """
    contracts.check_paged_attention(
        query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, max_query_len, max_context_len, out
    )
    if out is None:
        out = query.new_zeros(query.shape)
    starts, contexts = cu_query_lens.tolist(), context_lens.tolist()
    decodes: list[int] = []
    for row, context in enumerate(contexts):
        start, end = starts[row], starts[row + 1]
        if context == 0:
            out[start:end].zero_()
        elif end - start == 1:
            decodes.append(row)
        elif end > start:
            keys, values = _gather(k_pool, v_pool, block_tables[row], context)
            _attend_row(query[start:end], keys, values, scale, out[start:end])
    for rows in _decode_tiles(decodes, contexts):
        _attend_decodes(query, k_pool, v_pool, block_tables, rows, starts, contexts, scale, out)
    return out


def copy_blocks(kv_pool: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks in every layer of K and V; kv_pool [2, L, B, bs, H, D], pairs [N, 2] of (source,
    destination).

    Destinations are distinct, and no block is both a source and a destination. Raises
    contracts.ArgumentError.
    """
    contracts.check_copy_blocks(kv_pool, pairs)
    if pairs.shape[0]:
        source, destination = pairs.long().unbind(1)
        kv_pool.index_copy_(2, destination, kv_pool.index_select(2, source))


def zero_blocks(kv_pool: Tensor, blocks: Tensor) -> None:
    """Zero whole blocks in every layer of K and V; kv_pool [2, L, B, bs, H, D], blocks [N].

    Raises contracts.ArgumentError.
    """
    contracts.check_zero_blocks(kv_pool, blocks)
    if blocks.shape[0]:
        kv_pool.index_fill_(2, blocks.long(), 0)


def _slots_of(pool: Tensor) -> Tensor:
    """The pool [B, bs, Hkv, D] as slots [B * bs, Hkv, D], without a copy."""
    blocks, block_size, kv_heads, head_dim = pool.shape
    if blocks > 1 and pool.stride(0) != block_size * pool.stride(1):
        raise contracts.LayoutError(
            f"k_pool: strides {pool.stride()}, expected the slots of all blocks end to end"
        )
    return pool.view(blocks * block_size, kv_heads, head_dim)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _gather(k_pool: Tensor, v_pool: Tensor, table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """K and V of one row's context as [Hkv, context, D], reading used slots only."""
    block_size = k_pool.shape[1]
    positions = torch.arange(context, device=table.device)
    slots = table.long()[positions // block_size] * block_size + positions % block_size
    keys = _slots_of(k_pool).index_select(0, slots)
    values = _slots_of(v_pool).index_select(0, slots)
    return keys.transpose(0, 1), values.transpose(0, 1)


def _attend_row(query: Tensor, keys: Tensor, values: Tensor, scale: float, out: Tensor) -> None:
    """One row: query, out [Q, Hq, D]; keys, values [Hkv, C, D]. Tiles of queries bound the scores' memory."""
    count, heads, head_dim = query.shape
    kv_heads, context, _ = keys.shape
    dtype = _accumulator(query.dtype)
    keys, values = keys.to(dtype), values.to(dtype)
    for first in range(0, count, _QUERIES_PER_TILE):
        last = min(first + _QUERIES_PER_TILE, count)
        visible = context - count + last
        tile = query[first:last].to(dtype).mul(scale).view(last - first, kv_heads, -1, head_dim)
        tile = tile.permute(1, 2, 0, 3)
        scores = tile.reshape(kv_heads, -1, head_dim) @ keys[:, :visible].transpose(1, 2)
        scores = scores.view(kv_heads, heads // kv_heads, last - first, visible)
        limit = torch.arange(visible - (last - first), visible, device=query.device)
        hidden = torch.arange(visible, device=query.device) > limit[:, None]
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        result = weights.view(kv_heads, -1, visible) @ values[:, :visible]
        result = result.view(kv_heads, heads // kv_heads, last - first, head_dim).permute(2, 0, 1, 3)
        out[first:last] = result.reshape(last - first, heads, head_dim).to(out.dtype)


def _decode_tiles(rows: list[int], contexts: list[int]) -> list[list[int]]:
    """Decode rows in groups of similar context, so that padding to a group's longest costs little."""
    tiles: list[list[int]] = []
    for row in sorted(rows, key=lambda r: -contexts[r]):
        longest = contexts[tiles[-1][0]] if tiles else 0
        if tiles and 2 * contexts[row] >= longest and (len(tiles[-1]) + 1) * longest <= _DECODE_TILE_SLOTS:
            tiles[-1].append(row)
        else:
            tiles.append([row])
    return tiles


def _attend_decodes(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    rows: list[int],
    starts: list[int],
    contexts: list[int],
    scale: float,
    out: Tensor,
) -> None:
    """Rows of one query each, longest first, by a padded gather; padding repeats the row's own last slot."""
    device, dtype = query.device, _accumulator(query.dtype)
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    tokens = torch.tensor([starts[row] for row in rows], device=device)
    lengths = torch.tensor([contexts[row] for row in rows], device=device)[:, None]
    positions = torch.arange(contexts[rows[0]], device=device).expand(len(rows), -1)
    used = positions.minimum(lengths - 1)
    tables = block_tables[torch.tensor(rows, device=device)].long()
    slots = tables.gather(1, used // block_size) * block_size + used % block_size
    keys = _slots_of(k_pool)[slots].to(dtype).permute(0, 2, 3, 1)
    values = _slots_of(v_pool)[slots].to(dtype).transpose(1, 2)
    queries = query[tokens].to(dtype).mul(scale).view(len(rows), kv_heads, -1, head_dim)
    scores = (queries @ keys).masked_fill_((positions >= lengths)[:, None, None], float("-inf"))
    result = scores.softmax(-1) @ values
    out[tokens] = result.reshape(len(rows), -1, head_dim).to(out.dtype)
