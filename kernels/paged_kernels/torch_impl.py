"""The operations in plain PyTorch: the reference on every device, and what runs where no faster kernel can.

Owns nothing but arithmetic; knows neither sequences nor which backend was chosen. Invariant: a slot outside a
row's context never enters the arithmetic, so whatever it holds (NaN included) cannot reach a result.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paged_kernels import contracts, fp8_pool

_QUERIES_PER_TILE = 256
_DECODE_TILE_SLOTS = 8192
_READ_DTYPES = (torch.float32, torch.float64)
"""What an e4m3 pool is read as: with fewer bits a value could round or overflow with its exponent."""


@dataclass(frozen=True)
class _Scores:
    """How scores are made: the scale, and window and softcap as paged_attention takes them."""

    scale: float
    window: int
    softcap: float

    @property
    def plain(self) -> bool:
        return not self.window and not self.softcap


def store_kvcache(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V of each token into its slot.

    key, value [T, Hkv, D]; k_pool, v_pool [B, bs, Hkv, D], one layer of the pool, written in place;
    slot_mapping [T] int32 or int64, slot = block_id * block_size + offset, or -1 to skip the token. No two
    tokens may share a slot. A pool of e4m3 has its exponents behind each block (see fp8_pool). Raises
    contracts.ArgumentError; IndexError (CPU) for a slot outside the pool.
    """
    contracts.check_store_kvcache(key, value, k_pool, v_pool, slot_mapping)
    slots = slot_mapping.long()
    keep = slots >= 0
    if not bool(keep.all()):
        slots, key, value = slots[keep], key[keep], value[keep]
    for source, pool in ((key, k_pool), (value, v_pool)):
        if fp8_pool.is_fp8(pool):
            fp8_pool.write_slots(pool, slots, source)
        else:
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
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Causal attention of rows of any length over their blocks: softmax(cap(scale * q k)) v.

    query [T, Hq, D], the rows' new tokens end to end; k_pool, v_pool [B, bs, Hkv, D] with Hq a multiple of
    Hkv; block_tables [R, W] int32; cu_query_lens [R + 1] int32, row r owns query[cu[r]:cu[r + 1]];
    context_lens [R] int32, tokens of the row in the pool, the new ones included. A row's last query is its
    context's last token, so store first, then attend. Returns out (or a new tensor) [T, Hq, D]. Tokens at or
    past cu_query_lens[R] are padding: their output is unspecified. A row without context gives zeros.
    max_query_len and max_context_len bound the rows and are only checked here. window: a query sees that
    many keys at most, its own token's included (0: all; Mistral, arXiv 2310.06825). softcap: scores become
    softcap * tanh(score / softcap) (0: no cap; Gemma 2, arXiv 2408.00118). Raises contracts.ArgumentError.
    """
    contracts.check_paged_attention(
        *(query, k_pool, v_pool, block_tables, cu_query_lens, context_lens, max_query_len, max_context_len),
        *(out, window, softcap),
    )
    if out is None:
        out = query.new_zeros(query.shape)
    if fp8_pool.is_fp8(k_pool) and query.dtype not in _READ_DTYPES:
        wide = (query.float(), k_pool, v_pool, block_tables, cu_query_lens, context_lens)
        sizes = (scale, max_query_len, max_context_len)
        return out.copy_(paged_attention(*wide, *sizes, window=window, softcap=softcap))
    how = _Scores(scale, window, softcap)
    starts, contexts = cu_query_lens.tolist(), context_lens.tolist()
    decodes: list[int] = []
    for row, context in enumerate(contexts):
        start, end = starts[row], starts[row + 1]
        if context == 0:
            out[start:end].zero_()
        elif end - start == 1 and how.plain:
            decodes.append(row)
        elif end > start:
            keys, values = _gather(k_pool, v_pool, block_tables[row], context, query.dtype)
            _attend_row(query[start:end], keys, values, how, out[start:end])
    for rows in _decode_tiles(decodes, contexts):
        first = rows[0]
        if len(rows) == 1:
            keys, values = _gather(k_pool, v_pool, block_tables[first], contexts[first], query.dtype)
            _attend_row(query[starts[first]][None], keys, values, how, out[starts[first]][None])
        else:
            _attend_decodes(query, k_pool, v_pool, block_tables, rows, starts, contexts, scale, out)
    return out


def copy_blocks(kv_pool: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks in every layer of K and V; kv_pool [2, L, B, ...], pairs [N, 2] of (source,
    destination).

    Destinations are distinct, and no block is both a source and a destination. Raises
    contracts.ArgumentError.
    """
    contracts.check_copy_blocks(kv_pool, pairs)
    if pairs.shape[0]:
        source, destination = pairs.long().unbind(1)
        kv_pool.index_copy_(2, destination, kv_pool.index_select(2, source))


def zero_blocks(kv_pool: Tensor, blocks: Tensor) -> None:
    """Zero whole blocks in every layer of K and V; kv_pool [2, L, B, ...], blocks [N].

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


def _sdpa_is_exact(query: Tensor) -> bool:
    """Whether PyTorch's fused attention accumulates as wide as the contract asks: on CPU, up to float32."""
    return query.device.type == "cpu" and query.dtype != torch.float64


def _read_slots(pool: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, Hkv, D] of slots [N] int64; dtype: of the result, where the pool's own is e4m3."""
    if fp8_pool.is_fp8(pool):
        return fp8_pool.read_slots(pool, slots, dtype)
    return _slots_of(pool).index_select(0, slots)


def _read_blocks(pool: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """[N * block_size, Hkv, D] of blocks [N]; dtype as in `_read_slots`."""
    if fp8_pool.is_fp8(pool):
        return fp8_pool.read_blocks(pool, blocks, dtype)
    return pool.index_select(0, blocks).flatten(0, 1)


def _gather(
    k_pool: Tensor, v_pool: Tensor, table: Tensor, context: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V of one row's context as [Hkv, context, D], without the last block's unused slots."""
    block_size = k_pool.shape[1]
    if context * 2 < block_size:
        slots = torch.arange(context, device=table.device).add_(table[0] * block_size)
        keys, values = _read_slots(k_pool, slots, dtype), _read_slots(v_pool, slots, dtype)
    else:
        held = table[: -(-context // block_size)]
        keys = _read_blocks(k_pool, held, dtype)[:context]
        values = _read_blocks(v_pool, held, dtype)[:context]
    return keys.transpose(0, 1), values.transpose(0, 1)


def _attend_row(query: Tensor, keys: Tensor, values: Tensor, how: _Scores, out: Tensor) -> None:
    """One row: query, out [Q, Hq, D]; keys, values [Hkv, C, D]. Tiles of queries bound the scores' memory."""
    count, heads, head_dim = query.shape
    kv_heads, context, _ = keys.shape
    if _sdpa_is_exact(query) and count == 1 and how.plain:
        grouped = query.reshape(1, kv_heads, heads // kv_heads, head_dim)
        result = scaled_dot_product_attention(grouped, keys[None], values[None], scale=how.scale)
        out.copy_(result.view(1, heads, head_dim))
        return
    if _sdpa_is_exact(query) and count == context and how.plain:
        _attend_fused(query, keys, values, None, how, out)
        return
    attend = _attend_fused if _sdpa_is_exact(query) and not how.softcap else _attend_by_products
    for first in range(0, count, _QUERIES_PER_TILE):
        last = min(first + _QUERIES_PER_TILE, count)
        visible = context - count + last
        limits = torch.arange(visible - (last - first), visible, device=query.device)[:, None]
        oldest = max(0, visible - (last - first) + 1 - how.window) if how.window else 0
        positions = torch.arange(oldest, visible, device=query.device)
        hidden = positions > limits
        if how.window:
            hidden |= positions <= limits - how.window
        attend(
            query[first:last],
            keys[:, oldest:visible],
            values[:, oldest:visible],
            hidden,
            how,
            out[first:last],
        )


def _attend_fused(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, how: _Scores, out: Tensor
) -> None:
    """A tile of one row by PyTorch's fused attention; hidden [Q, C], or None for plain causal."""
    mask = None
    if hidden is not None:
        mask = query.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    result = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=how.scale,
        enable_gqa=True,
    )
    out.copy_(result[0].transpose(0, 1))


def _attend_by_products(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, how: _Scores, out: Tensor
) -> None:
    """A tile of one row by two matrix products, in float64 for float64 and in float32 otherwise."""
    count, heads, head_dim = query.shape
    kv_heads, context, _ = keys.shape
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    grouped = query.to(dtype).mul(how.scale).view(count, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores = grouped.reshape(kv_heads, -1, head_dim) @ keys.to(dtype).transpose(1, 2)
    if how.softcap:
        scores = scores.div_(how.softcap).tanh_().mul_(how.softcap)
    scores = scores.view(kv_heads, heads // kv_heads, count, context)
    weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
    result = weights.view(kv_heads, -1, context) @ values.to(dtype)
    result = result.view(kv_heads, heads // kv_heads, count, head_dim).permute(2, 0, 1, 3)
    out.copy_(result.reshape(count, heads, head_dim))


def _decode_tiles(rows: list[int], contexts: list[int]) -> list[list[int]]:
    """Decode rows in groups of similar context, longest first.

    Padding to a group's longest then costs little, a group's K and V stay in the processor's cache, and few
    calls mean few thread barriers.
    """
    tiles: list[list[int]] = []
    for row in sorted(rows, key=lambda r: -contexts[r]):
        longest = contexts[tiles[-1][0]] if tiles else 0
        if (
            tiles
            and 4 * contexts[row] >= 3 * longest
            and (len(tiles[-1]) + 1) * longest <= _DECODE_TILE_SLOTS
        ):
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
    device, longest = query.device, contexts[rows[0]]
    block_size, kv_heads, head_dim = k_pool.shape[1:]
    tokens = torch.tensor([starts[row] for row in rows], device=device)
    lengths = torch.tensor([contexts[row] for row in rows], device=device)[:, None]
    positions = torch.arange(longest, device=device)
    used = positions.minimum(lengths - 1)
    tables = block_tables.index_select(0, torch.tensor(rows, device=device))
    slots = tables.gather(1, used // block_size).long().mul_(block_size).add_(used % block_size).view(-1)
    shape = (len(rows), longest, kv_heads, head_dim)
    keys = _read_slots(k_pool, slots, query.dtype).view(shape).transpose(1, 2)
    values = _read_slots(v_pool, slots, query.dtype).view(shape).transpose(1, 2)
    grouped = query.index_select(0, tokens).view(len(rows), kv_heads, -1, head_dim)
    hidden = (positions >= lengths)[:, None, None]
    if _sdpa_is_exact(query):
        mask = None
        if contexts[rows[-1]] < longest:
            mask = query.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        result = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    else:
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = grouped.to(dtype).mul(scale) @ keys.to(dtype).transpose(2, 3)
        result = scores.masked_fill_(hidden, float("-inf")).softmax(-1) @ values.to(dtype)
    out.index_copy_(0, tokens, result.reshape(len(rows), -1, head_dim).to(out.dtype))
