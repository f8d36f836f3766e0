"""flash-attn 2 and flash-attn-4 on a CUDA device: drawn shapes, padding, captured calls, the trial.

Owns the verdicts on both as kernels; knows no worker. Invariant: outputs are poisoned, unused slots are NaN,
and a package that is not installed skips its tests by name.
"""

import math
import random
from dataclasses import replace

import pytest
import torch

from paged_kernels import dispatch, torch_impl
from paged_kernels.attention_backends import PACKAGES, ByPhase, Candidate
from paged_kernels.attention_trial import Bounds, Case, decode_cases, make_inputs, mixed_cases, seconds_of
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.dispatch import Kernels
from paged_kernels.flash_impl.constraints import FLASH2, FLASH4, AttentionShape
from paged_kernels.testing import Shape, draw_shape, judge, make_batch, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
# Block sizes; (dtype, head_dim, query heads per KV head), for each of which flash-attn-4 compiles a kernel.
SIZES = {FLASH2: (256, 512, 1024), FLASH4: (1, 2, 7, 16, 17, 32, 64, 100, 256, 1000, 4096)}
MODELS = [
    (torch.bfloat16, 128, 2),
    (torch.bfloat16, 128, 4),
    (torch.bfloat16, 64, 1),
    (torch.bfloat16, 64, 3),
    (torch.bfloat16, 128, 16),
]


@pytest.fixture(params=[FLASH2, FLASH4])
def package(request: pytest.FixtureRequest) -> Candidate:
    try:
        return loaded(request.param)
    except BackendUnavailableError as error:
        pytest.skip(f"{request.param}: {error}")


def loaded(name: str) -> Candidate:
    return PACKAGES[name][1]()


def usual_size(package: Candidate) -> int:
    return 256 if package.name == FLASH2 else 16


def kernels_of(package: Candidate, block_size: int, head_dim: int) -> Kernels:
    kernels = dispatch.select("triton", "cuda", torch.bfloat16, head_dim, block_size)
    return replace(kernels, paged_attention=ByPhase(package.decode, package.mixed))


@pytest.mark.parametrize("model", range(len(MODELS)))
def test_drawn_shapes(package: Candidate, model: int) -> None:
    """Decodes, prompts, chunks and rows without a new token, over block tables in any order."""
    dtype, head_dim, group = MODELS[model]
    rng, wrong = random.Random(model), []
    for number in range(24):
        size = rng.choice(SIZES[package.name])
        shape = draw_shape(rng, size, head_dim, rng.choice((40, 300, 2500)), 8)
        if number % 4 == 0:
            shape = replace(shape, rows=tuple((1, context) for _, context in shape.rows))
        shape = replace(shape, group=group, window=0, softcap=0.0)
        verdict = judge(kernels_of(package, size, head_dim), make_batch(shape, dtype, "cuda", number))
        wrong += [f"{shape}: {text}" for text in verdict.wrong]
    assert not wrong


@pytest.mark.parametrize("one_each", [True, False])
def test_more_than_256_rows(package: Candidate, one_each: bool) -> None:
    """flash-attn-4 compiles another kernel for them; contexts end anywhere in a block."""
    rows = [(1, 1 + 7 * number % 331) for number in range(300)]
    if not one_each:
        rows[40:43] = [(64, 300), (0, 5), (17, 17)]
    size = usual_size(package)
    batch = make_batch(Shape(size, 2, 4, 128, tuple(rows)), torch.bfloat16, "cuda", 9)
    assert not judge(kernels_of(package, size, 128), batch).wrong


@pytest.mark.parametrize("more", [5, 300])
def test_rows_of_padding_change_nothing(package: Candidate, more: int) -> None:
    """As in a captured step: more rows and tokens than the plan has, on the null block, with context 0.

    flash-attn-4 compiles another kernel for more than 256 rows.
    """
    shape = AttentionShape(torch.bfloat16, 8, 4, 64, usual_size(package), 0, 0.0, (9, 0))
    for rows in (((1, 700), (1, 3), (1, 257)), ((300, 300), (1, 900), (64, 500))):
        (inputs, *_) = make_inputs(Case("", rows), shape, Bounds(2048, 16, 2048))
        attend = ByPhase(package.decode, package.mixed)
        expected = torch_impl.paged_attention(**inputs)
        real = len(inputs["query"])
        null = inputs["k_pool"].shape[0] - 1
        padded = dict(inputs)
        padded["query"] = torch.cat([inputs["query"], inputs["query"].new_zeros((more, 8, 64))])
        table = inputs["block_tables"]
        padded["block_tables"] = torch.cat([table, torch.full_like(table[:1], null).expand(more, -1)])
        starts = inputs["cu_query_lens"]
        padded["cu_query_lens"] = torch.cat([starts, starts[-1:].expand(more)])
        padded["context_lens"] = torch.cat([inputs["context_lens"], torch.zeros(more).int().cuda()])
        padded["max_query_len"] = 1 if real == len(rows) else len(padded["query"])
        assert relative_error(attend(**padded)[:real], expected) < 1e-2


@pytest.mark.parametrize("one_each", [True, False])
def test_a_captured_call_serves_other_lengths_and_tables(package: Candidate, one_each: bool) -> None:
    """Captured on the second batch's blocks with the shortest contexts, replayed on the first batch."""
    shape = AttentionShape(torch.bfloat16, 8, 4, 64, usual_size(package), 0, 0.0, (9, 0))
    rows = ((1, 2000), (1, 1), (1, 700), (1, 5)) if one_each else ((1, 1500), (229, 400), (1, 1))
    first, second, *_ = make_inputs(Case("", rows), shape, Bounds(512, 8, 4096))
    lens = sorted((queries for queries, _ in rows), reverse=True)
    static = dict(second)
    static["query"] = torch.randn_like(first["query"])
    static["cu_query_lens"] = torch.tensor([0, *lens]).cumsum(0).int().cuda()
    static["context_lens"] = torch.tensor(lens).int().cuda()
    attend, graph = ByPhase(package.decode, package.mixed), torch.cuda.CUDAGraph()
    attend(**static)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = attend(**static)
    for name in ("query", "block_tables", "cu_query_lens", "context_lens"):
        static[name].copy_(first[name])
    out.fill_(math.nan)
    graph.replay()
    assert relative_error(out, torch_impl.paged_attention(**first)) < 1e-2


def test_the_trial_accepts_it_and_measures(package: Candidate) -> None:
    size = usual_size(package)
    shape = AttentionShape(torch.bfloat16, 16, 8, 128, size, 0, 0.0, (9, 0))
    bounds = Bounds(2048, 256, 8192)
    triton = dispatch.select("triton", "cuda", torch.bfloat16, 128, size).paged_attention
    for cases, attend in (
        (decode_cases(shape, bounds), package.decode),
        (mixed_cases(shape, bounds), package.mixed),
    ):
        seconds = seconds_of(attend, cases, shape, bounds, triton)
        assert len(seconds) == 2
        assert all(0 < each < 0.01 for each in seconds)


def test_nan_in_a_block_that_is_loaded_whole_is_caught_by_the_trial() -> None:
    """Why flash-attn-4 is refused at block size 128: the trial sees what its manual says."""
    try:
        package = loaded(FLASH4)
    except BackendUnavailableError as error:
        pytest.skip(f"{FLASH4}: {error}")
    shape = AttentionShape(torch.bfloat16, 16, 8, 128, 128, 0, 0.0, (9, 0))
    bounds = Bounds(2048, 64, 8192)
    triton = dispatch.select("triton", "cuda", torch.bfloat16, 128, 128).paged_attention
    with pytest.raises(ValueError, match="differs by nan"):
        seconds_of(package.decode, decode_cases(shape, bounds), shape, bounds, triton)
