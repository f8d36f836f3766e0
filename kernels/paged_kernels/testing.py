"""Drawn batches over a poisoned KV pool, and the naive answer to them, for parity tests and benchmarks.

Owns the drawing and the token-by-token reference in float64; knows none of the implementations under test.
Invariant: every slot that a batch does not use holds NaN, so an implementation that reads one shows it.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paged_kernels import fp8_pool, torch_impl

# ||out - reference|| / ||reference|| against float64, by dtype of the pool.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 1.5e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Shape:
    """Sizes of one batch; rows holds (query_len, context_len) of each row, in tokens. window and softcap as
    paged_attention takes them."""

    block_size: int
    kv_heads: int
    group: int
    head_dim: int
    rows: tuple[tuple[int, int], ...]
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True)
class Batch:
    """One batch: the pools hold what earlier steps stored; key, value [T + 1, Hkv, D] are this step's, not
    yet stored, with one padding token at the end."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    k_pool: Tensor
    v_pool: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    cu_query_lens: Tensor
    context_lens: Tensor
    row_keys: list[Tensor]
    row_values: list[Tensor]

    @property
    def scale(self) -> float:
        """The usual 1 / sqrt(head_dim)."""
        return 1 / math.sqrt(self.shape.head_dim)

    @property
    def attention_args(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int]:
        """The arguments of paged_attention up to out."""
        queries, contexts = zip(*self.shape.rows, strict=True)
        return (
            *(self.query, self.k_pool, self.v_pool, self.block_tables, self.cu_query_lens, self.context_lens),
            *(self.scale, max(queries), max(contexts)),
        )

    @property
    def attention_options(self) -> dict[str, Any]:
        """The arguments of paged_attention behind out."""
        return {"window": self.shape.window, "softcap": self.shape.softcap}

    @property
    def store_args(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of store_kvcache."""
        return self.key, self.value, self.k_pool, self.v_pool, self.slot_mapping


def make_batch(
    shape: Shape, dtype: torch.dtype, device: str, seed: int, beyond: int | None = None, fp8: bool = False
) -> Batch:
    """Draw a batch: random blocks, NaN in every slot not yet stored, one padding token (slot -1) at the end.

    Unused block table entries hold `beyond`; None names a block of NaN (safe to read by mistake on a GPU).
    fp8: the pools are of e4m3, and every row's heads differ in size by powers of ten.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    size, kv_heads, head_dim = shape.block_size, shape.kv_heads, shape.head_dim
    held = [-(-context // size) for _, context in shape.rows]
    blocks = sum(held) + 2
    free = rng.sample(range(blocks), blocks)
    tables = torch.full((len(shape.rows), max(held) + 1), free[0] if beyond is None else beyond)
    k_pool = torch.full((blocks * size, kv_heads, head_dim), math.nan, dtype=dtype)
    v_pool = k_pool.clone()
    keys, values, slots, row_keys, row_values = [], [], [], [], []
    for row, (queries, context) in enumerate(shape.rows):
        ids = [free.pop() for _ in range(held[row])]
        tables[row, : held[row]] = torch.tensor(ids)
        row_slots = torch.tensor(
            [ids[p // size] * size + p % size for p in range(context)], dtype=torch.int64
        )
        key, value = torch.randn((2, context, kv_heads, head_dim), generator=generator).to(dtype)
        if fp8:
            key, value = (_spread(x, generator) for x in (key, value))
        k_pool[row_slots[: context - queries]] = key[: context - queries]
        v_pool[row_slots[: context - queries]] = value[: context - queries]
        keys.append(key[context - queries :])
        values.append(value[context - queries :])
        slots.append(row_slots[context - queries :])
        row_keys.append(key)
        row_values.append(value)
    poison = torch.full((1, kv_heads, head_dim), math.nan, dtype=dtype)
    lens = torch.tensor([0] + [queries for queries, _ in shape.rows])
    query = torch.randn((int(lens.sum()), kv_heads * shape.group, head_dim), generator=generator).to(dtype)
    pools = [pool.view(blocks, size, kv_heads, head_dim).to(device) for pool in (k_pool, v_pool)]
    if fp8:
        pools = [as_fp8(pool) for pool in pools]
    return Batch(
        shape=shape,
        query=query.to(device),
        key=torch.cat([*keys, poison]).to(device),
        value=torch.cat([*values, poison]).to(device),
        k_pool=pools[0],
        v_pool=pools[1],
        slot_mapping=torch.cat([*slots, torch.tensor([-1])]).int().to(device),
        block_tables=tables.int().to(device),
        cu_query_lens=lens.cumsum(0).int().to(device),
        context_lens=torch.tensor([context for _, context in shape.rows]).int().to(device),
        row_keys=row_keys,
        row_values=row_values,
    )


def _spread(heads: Tensor, generator: torch.Generator) -> Tensor:
    """Each head of each token [T, Hkv, D] times a number around 1; the first token's a thousandth."""
    sizes = torch.empty(heads.shape[:2]).log_normal_(0, 0.5, generator=generator)
    sizes[0] /= 1000
    return (heads * sizes[..., None]).to(heads.dtype)


def as_fp8(pool: Tensor) -> Tensor:
    """An e4m3 pool of the values of a plain one [B, bs, Hkv, D]; every bit set where that holds NaN."""
    blocks, size, kv_heads, head_dim = pool.shape
    layer = torch.full(
        (blocks, fp8_pool.block_bytes(size, kv_heads, head_dim)), 255, dtype=torch.uint8, device=pool.device
    )
    made = fp8_pool.values_of(layer, size, kv_heads, head_dim)
    used = ~pool[:, :, 0, 0].isnan().flatten()
    slots = torch.arange(blocks * size, device=pool.device)[used]
    fp8_pool.write_slots(made, slots, pool.flatten(0, 1)[used])
    return made


def naive_attention(batch: Batch) -> Tensor:
    """softmax(cap(scale * q k)) v, token by token and head by head, from the rows' own K and V.

    Those of an e4m3 pool are what it makes of them. Returns float64 [T, Hq, D] on the CPU.
    """
    shape, query = batch.shape, batch.query.cpu().double()
    out, token = torch.zeros_like(query), 0
    for (queries, context), keys, values in zip(shape.rows, batch.row_keys, batch.row_values, strict=True):
        if fp8_pool.is_fp8(batch.k_pool):
            keys, values = (fp8_pool.dequantise(*fp8_pool.quantise(x), torch.float64) for x in (keys, values))
        for seen in range(context - queries + 1, context + 1):
            oldest = max(0, seen - shape.window) if shape.window else 0
            for head in range(shape.kv_heads * shape.group):
                key = keys[oldest:seen, head // shape.group].double()
                scores = batch.scale * (key @ query[token, head])
                if shape.softcap:
                    scores = shape.softcap * torch.tanh(scores / shape.softcap)
                weights = torch.softmax(scores, 0)
                out[token, head] = weights @ values[oldest:seen, head // shape.group].double()
            token += 1
    return out


def draw_shape(rng: random.Random, block_size: int, head_dim: int, max_context: int, max_rows: int) -> Shape:
    """Rows of mixed lengths (decodes, whole prompts, chunks, empty rows), biased to block boundaries; one
    batch in three has a window, one in three a cap.
    """
    rows = []
    for _ in range(rng.randint(1, max_rows)):
        context = rng.randint(1, max_context)
        if rng.random() < 0.4:
            edge = rng.randint(1, max(1, max_context // block_size)) * block_size
            context = min(max_context, max(1, edge + rng.choice((-1, 0, 1))))
        kind = rng.random()
        queries = 1 if kind < 0.5 else context if kind < 0.65 else rng.randint(0, context)
        rows.append((queries, context))
    if all(queries == 0 for queries, _ in rows):
        rows.append((1, 1))
    kv_heads, group = rng.randint(1, 4), rng.randint(1, 16)
    window = rng.randint(1, max_context) if rng.random() < 1 / 3 else 0
    softcap = rng.choice((1.5, 50.0)) if rng.random() < 1 / 3 else 0.0
    return Shape(block_size, kv_heads, group, head_dim, tuple(rows), window, softcap)


GPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GPU_HEAD_DIMS = (64, 128, 80, 96, 256)
GPU_BLOCK_SIZES = (1, 2, 7, 16, 17, 32, 64, 100, 128, 256, 1000, 4096)


def gpu_cases(count: int, seed: int) -> list[tuple[Shape, torch.dtype, int]]:
    """Drawn (shape, dtype, seed of the batch) for parity on a device: few compiled kernels, many launches.

    About one in five is a single long row, whose context is split; one in ten has an odd head_dim.
    """
    rng, cases = random.Random(seed), []
    for number in range(count):
        dtype = GPU_DTYPES[number % 3]
        head_dim = GPU_HEAD_DIMS[number // 3 % 5]
        if rng.random() < 0.1:
            dtype, head_dim = torch.bfloat16, rng.choice((33, 8))
        block_size = rng.choice(GPU_BLOCK_SIZES)
        shape = draw_shape(rng, block_size, head_dim, rng.choice((40, 300, 1500)), 8)
        if rng.random() < 0.2:
            context = rng.randint(2000, 9000)
            rows = ((rng.choice((1, 1, 2, 40, 130)), context),)
            window = rng.choice((0, 1, 300, 2500))
            shape = Shape(block_size, shape.kv_heads, shape.group, head_dim, rows, window, shape.softcap)
        cases.append((shape, dtype, rng.randrange(2**31)))
    return cases


def gpu_fp8_cases(count: int, seed: int) -> list[tuple[Shape, torch.dtype, int]]:
    """The same for e4m3 pools; dtype: of the queries. One shape in five keeps its window and its cap."""
    cases = []
    for number, (shape, dtype, batch_seed) in enumerate(gpu_cases(count, seed)):
        plain = shape if number % 5 == 0 else replace(shape, window=0, softcap=0.0)
        cases.append((plain, dtype, batch_seed))
    return cases


@dataclass(frozen=True)
class Verdict:
    """How one backend did on one batch: relative error against float64, and what was wrong, if anything."""

    error: float
    wrong: tuple[str, ...]


def judge(kernels: Any, batch: Batch) -> Verdict:
    """Store and attend with kernels (a dispatch.Kernels), output poisoned; compare with torch in float64."""
    pools = _copied(batch.k_pool), _copied(batch.v_pool)
    torch_impl.store_kvcache(batch.key, batch.value, *pools, batch.slot_mapping)
    kernels.store_kvcache(*batch.store_args)
    same = all(
        torch.equal(_bits(ours), _bits(theirs))
        for ours, theirs in zip((batch.k_pool, batch.v_pool), pools, strict=True)
    )
    out = torch.full_like(batch.query, math.nan)
    kernels.paged_attention(*batch.attention_args, out, **batch.attention_options)
    exact = replace(batch, query=batch.query.double())
    if not fp8_pool.is_fp8(batch.k_pool):
        exact = replace(exact, k_pool=batch.k_pool.double(), v_pool=batch.v_pool.double())
    reference = torch_impl.paged_attention(*exact.attention_args, **batch.attention_options)
    wrong = [] if same else ["store_kvcache left other slots than torch"]
    error = relative_error(out, reference)
    if not error < TOLERANCE[batch.query.dtype]:
        wrong.append(f"relative error {error:.2e}, {int(out.isnan().sum())} NaN of {out.numel()}")
    return Verdict(error, tuple(wrong))


def _bits(pool: Tensor) -> Tensor:
    """What is compared bit for bit: all bytes of an e4m3 pool, else the values, NaN as a number."""
    return _all_bytes(pool) if fp8_pool.is_fp8(pool) else pool.nan_to_num(6e4)


def _all_bytes(pool: Tensor) -> Tensor:
    """The bytes [B, block_bytes] under an e4m3 pool, exponents too."""
    return pool.view(torch.uint8).as_strided((pool.shape[0], pool.stride(0)), (pool.stride(0), 1))


def _copied(pool: Tensor) -> Tensor:
    if not fp8_pool.is_fp8(pool):
        return pool.clone()
    return fp8_pool.values_of(_all_bytes(pool).clone(), *pool.shape[1:])


def relative_error(result: Tensor, reference: Tensor) -> float:
    """||result - reference|| / ||reference||, computed in float64; NaN counts as infinite."""
    result, reference = result.double(), reference.double().to(result.device)
    error = ((result - reference).norm() / reference.norm()).item()
    return math.inf if math.isnan(error) else error
