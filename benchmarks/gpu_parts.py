# mypy: disable-error-code="no-untyped-call"
"""The parts of gpu_check, one a process: `gpu_parts.py speed|parity-N|sweep FILE CASES SHARDS`.

Owns the drawing of inputs, the timing by CUDA events over graph replays, and the floors; knows nothing of the
report. Invariant: the result file is rewritten after every row, so that a part that dies keeps what it had.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from paged_kernels import dispatch, torch_impl
from paged_kernels.testing import gpu_cases, judge, make_batch, relative_error
from paged_kernels.triton_impl import paged_attention as launch
from paged_kernels.triton_impl.tiles import Tile, Tiles, choose_tiles

Inputs = dict[str, Any]
DTYPE, KV_HEADS, QUERY_HEADS, HEAD_DIM = torch.bfloat16, 8, 16, 128


class Report:
    """Rows by table, saved after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: dict[str, Any] = {}

    def add(self, table: str, **row: Any) -> None:
        self._tables.setdefault(table, []).append(row)
        self._path.write_text(json.dumps(self._tables))

    def set(self, name: str, value: Any) -> None:
        self._tables[name] = value
        self._path.write_text(json.dumps(self._tables))


def time_us(call: Callable[[], object], calls: int = 8, replays: int = 12) -> float:
    """Median microseconds of one call on the device, launches excluded: a graph of `calls`, replayed."""
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(calls):
            call()
    times = []
    for replay in range(replays + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 3:
            times.append(start.elapsed_time(end) * 1000 / calls)
    return float(statistics.median(times))


def attention_inputs(rows: list[tuple[int, int]], block_size: int) -> Inputs:
    """paged_attention's arguments for rows of (query_len, context_len): random values, shuffled blocks."""
    held = [-(-context // block_size) for _, context in rows]
    pools = torch.randn((2, sum(held), block_size, KV_HEADS, HEAD_DIM), device="cuda", dtype=DTYPE)
    ids = torch.randperm(sum(held)).int()
    tables = torch.zeros((len(rows), max(held)), dtype=torch.int32)
    for row, mine in enumerate(ids.split(held)):
        tables[row, : held[row]] = mine
    lens = torch.tensor([0] + [queries for queries, _ in rows]).cumsum(0).int()
    query = torch.randn((int(lens[-1]), QUERY_HEADS, HEAD_DIM), device="cuda", dtype=DTYPE)
    contexts = torch.tensor([context for _, context in rows]).int()
    return {
        "query": query,
        "k_pool": pools[0],
        "v_pool": pools[1],
        "block_tables": tables.cuda(),
        "cu_query_lens": lens.cuda(),
        "context_lens": contexts.cuda(),
        "scale": HEAD_DIM**-0.5,
        "max_query_len": max(queries for queries, _ in rows),
        "max_context_len": max(context for _, context in rows),
    }


def attention_us(inputs: Inputs) -> float:
    return time_us(lambda: launch.paged_attention(**inputs))


def decode_rows(count: int, around: int = 1024) -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(count)
    spread = max(1, around // 16)
    return [(1, around + int(d)) for d in torch.randint(-spread, spread, (count,), generator=generator)]


def kv_bytes(rows: list[tuple[int, int]]) -> int:
    return sum(context for _, context in rows) * KV_HEADS * HEAD_DIM * 2 * DTYPE.itemsize


def flops(rows: list[tuple[int, int]]) -> int:
    seen = sum(queries * (2 * context - queries + 1) // 2 for queries, context in rows)
    return 4 * seen * QUERY_HEADS * HEAD_DIM


def copy_bandwidth() -> float:
    """Bytes a second, read plus written, of a large copy on the device; copies of a graph are slower."""
    source = torch.randn(2**30, device="cuda", dtype=DTYPE)
    target = torch.empty_like(source)
    times = []
    for _ in range(30):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return 2 * source.nbytes / statistics.median(times[10:])


def speed(report: Report) -> None:
    report.set("machine", machine())
    bandwidth = copy_bandwidth()
    report.add("bandwidth", copy_tb_s=round(bandwidth / 1e12, 3))
    for count, around, block_sizes in (
        (64, 1024, (16, 32, 256)),
        (256, 1024, (16, 32, 256)),
        (1, 8192, (16,)),
    ):
        for block_size in block_sizes:
            rows = decode_rows(count, around)
            args = attention_inputs(rows, block_size)
            us, floor = attention_us(args), kv_bytes(rows) / bandwidth * 1e6
            report.add("decode", rows=count, context=around, block=block_size, us=round(us, 1),
                       tb_s=round(kv_bytes(rows) / us / 1e6, 3), floor_us=round(floor, 1),
                       of_copy=f"{floor / us:.0%}", error=error_of(args))  # fmt: skip
    for count, length, block_size in ((1, 2048, 16), (4, 2048, 16), (4, 2048, 256)):
        rows = [(length, length)] * count
        args = attention_inputs(rows, block_size)
        us = attention_us(args)
        report.add("prefill", rows=count, context=length, block=block_size, us=round(us, 1),
                   tflop_s=round(flops(rows) / us / 1e6, 1), error=error_of(args))  # fmt: skip
    mixes = {
        "512,1,1,300,1,64": [(queries, queries) for queries in (512, 1, 1, 300, 1, 64)],
        "64 decodes + 512": [*decode_rows(64), (512, 512)],
    }
    for name, rows in mixes.items():
        args = attention_inputs(rows, 16)
        us = attention_us(args)
        report.add("mixed", rows=name, block=16, us=round(us, 1), error=error_of(args))
    host_times(report)


def host_times(report: Report) -> None:
    """Microseconds the launching thread spends in one call, with the device kept idle between."""
    rows = decode_rows(8, 64)
    args = attention_inputs(rows, 16)
    out = torch.empty_like(args["query"])
    key = torch.randn((8, KV_HEADS, HEAD_DIM), device="cuda", dtype=DTYPE)
    slots = torch.arange(8, device="cuda", dtype=torch.int32)
    kernels = dispatch.select("auto", "cuda", DTYPE, HEAD_DIM, 16)
    calls: dict[str, Callable[[], object]] = {
        "paged_attention": lambda: kernels.paged_attention(**args, out=out),
        "store_kvcache": lambda: kernels.store_kvcache(key, key, args["k_pool"], args["v_pool"], slots),
    }
    for name, call in calls.items():
        call()
        times = []
        for _ in range(50):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        report.add("host", op=name, launch_us=round(statistics.median(times) * 1e6, 1))


def error_of(args: Inputs) -> str:
    """Relative error against torch in float64 on the last three rows, into a poisoned output."""
    result = launch.paged_attention(**args, out=torch.full_like(args["query"], float("nan")))
    if bool(result.isnan().any()):
        return "NaN"
    lens: Tensor = args["cu_query_lens"]
    first = int(lens[-4]) if len(lens) > 3 else 0
    last = {
        "query": args["query"][first:].double(),
        "k_pool": args["k_pool"].double(),
        "v_pool": args["v_pool"].double(),
        "block_tables": args["block_tables"][-3:],
        "cu_query_lens": (lens[-4:] - first).int(),
        "context_lens": args["context_lens"][-3:],
    }
    return f"{relative_error(result[first:], torch_impl.paged_attention(**{**args, **last})):.1e}"


def sweep(report: Report) -> None:
    """Other launch shapes than the chosen ones, for decodes and a prefill."""
    chosen = choose_tiles(DTYPE, HEAD_DIM, QUERY_HEADS // KV_HEADS)
    decodes = {count: attention_inputs(decode_rows(count), 16) for count in (32, 64, 256)}
    for keys, warps, stages in ((64, 4, 3), (64, 4, 5), (64, 8, 5), (32, 4, 3), (32, 4, 5), (32, 4, 7),
                                (32, 2, 5), (128, 8, 3), (128, 8, 5), (16, 2, 7)):  # fmt: skip
        tiles = Tiles(Tile(16, keys, warps, stages), chosen.long)
        for count, args in decodes.items():
            for splits in (1, 2, 4):
                if splits * count <= 256:
                    sweep_one(report, f"{count} decodes", args, tiles, tiles.short, splits)
    prefill = attention_inputs([(2048, 2048)] * 4, 16)
    for lines, keys, warps, stages in ((128, 64, 8, 3), (128, 64, 8, 5), (128, 128, 8, 3), (128, 128, 8, 5),
                                       (64, 64, 4, 3), (64, 64, 4, 5)):  # fmt: skip
        tiles = Tiles(chosen.short, Tile(lines, keys, warps, stages))
        sweep_one(report, "4 x 2048", prefill, tiles, tiles.long, 1)


def sweep_one(report: Report, case: str, args: Inputs, tiles: Tiles, tile: Tile, splits: int) -> None:
    try:
        us = time_us(lambda: launch.paged_attention(**args, tiles=tiles, splits=splits), calls=4, replays=6)
    except (RuntimeError, triton.runtime.errors.OutOfResources) as error:
        print(f"{case} {tile}: {error}")
        return
    shape = f"{tile.block_m}x{tile.block_n}"
    row = {"case": case, "tile": shape, "warps": tile.warps, "stages": tile.stages, "splits": splits}
    report.add("sweep", **row, us=round(us, 1))


def parity(report: Report, cases: int, shard: int, shards: int) -> None:
    for number, (shape, dtype, seed) in enumerate(gpu_cases(cases, seed=2)):
        if number % shards != shard:
            continue
        kernels = dispatch.select("auto", "cuda", dtype, shape.head_dim, shape.block_size)
        verdict = judge(kernels, make_batch(shape, dtype, "cuda", seed))
        wrong = list(verdict.wrong)
        wrong += [
            f"{choice.op} ran on {choice.backend}" for choice in kernels.choices if choice.backend != "triton"
        ]
        report.add("results", dtype=str(dtype).removeprefix("torch."), head_dim=shape.head_dim,
                   block_size=shape.block_size, shape=str(shape), seed=seed, error=verdict.error,
                   wrong=wrong)  # fmt: skip


def machine() -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    part, path, cases, shards = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    report = Report(path)
    torch.manual_seed(0)
    if part == "speed":
        speed(report)
    elif part == "sweep":
        sweep(report)
    else:
        parity(report, cases, int(part.removeprefix("parity-")), shards)


if __name__ == "__main__":
    main()
