# mypy: disable-error-code="no-untyped-call"
"""What an 8-bit KV pool costs and gives on a CUDA device: `python -m benchmarks.gpu_fp8 --out FILE`.

Owns the comparison with a bfloat16 pool of the same values: attention alone, the whole decode step, blocks
in the same memory, and the error. Knows no scheduler. Invariant: both pools run in one go, after each other,
and the file is rewritten after every row.
"""

import argparse
import gc
import json
import tempfile
from pathlib import Path

import torch
import triton
from torch import Tensor

from benchmarks import gpu_parts, gpu_step
from benchmarks.gpu_parts import HEAD_DIM, KV_HEADS, QUERY_HEADS, Inputs, Report
from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from paged_kernels import fp8_pool
from paged_kernels.testing import relative_error
from paged_kernels.triton_impl import paged_attention as launch
from paged_kernels.triton_impl.tiles import Tile, Tiles, choose_tiles

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": QUERY_HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
DECODES = [1, 32, 64, 128, 256]
CONTEXT = 1024


def as_fp8(pool: Tensor) -> Tensor:
    """An e4m3 pool of the same values [B, bs, Hkv, D]."""
    blocks, *sizes = pool.shape
    layer = torch.zeros((blocks, fp8_pool.block_bytes(*sizes)), dtype=torch.uint8, device=pool.device)
    made = fp8_pool.values_of(layer, *sizes)
    fp8_pool.write_slots(made, torch.arange(blocks * sizes[0], device=pool.device), pool.flatten(0, 1))
    return made


def both(inputs: Inputs) -> dict[str, Inputs]:
    """The same call on either pool."""
    eight = {name: as_fp8(inputs[name]) for name in ("k_pool", "v_pool")}
    return {"bfloat16": inputs, "fp8_e4m3": {**inputs, **eight}}


def read_bytes(rows: list[tuple[int, int]], kind: str) -> int:
    """Of K and V, exponents too."""
    head = HEAD_DIM * 2 if kind == "bfloat16" else HEAD_DIM + 1
    return sum(context for _, context in rows) * KV_HEADS * 2 * head


def attention(report: Report, bandwidth: float, decodes: list[int]) -> None:
    """Decodes and prefills on both pools: microseconds, bytes over time, and the 8-bit pool's error."""
    cases = {f"{count} decodes": gpu_parts.decode_rows(count, CONTEXT) for count in decodes}
    cases |= {"1 decode of 8192": [(1, 8192)], "prefill 4 x 2048": [(2048, 2048)] * 4}
    for name, rows in cases.items():
        found = both(gpu_parts.attention_inputs(rows, 16))
        exact = launch.paged_attention(**found["bfloat16"])
        for kind, args in found.items():
            us, size = gpu_parts.attention_us(args), read_bytes(rows, kind)
            error = relative_error(launch.paged_attention(**args), exact)
            row = {"case": name, "pool": kind, "us": round(us, 1), "tb_s": round(size / us / 1e6, 3),
                   "of_copy": round(size / us * 1e6 / bandwidth, 3),
                   "tflop_s": round(gpu_parts.flops(rows) / us / 1e6, 1),
                   "error_to_bfloat16": float(f"{error:.3g}")}  # fmt: skip
            print(json.dumps(row), flush=True)
            report.add("attention", **row)
        del found, exact
        torch.cuda.empty_cache()


def sweep(report: Report) -> None:
    """Launch shapes for the 8-bit pool, the fastest first."""
    chosen = choose_tiles(torch.bfloat16, HEAD_DIM, QUERY_HEADS // KV_HEADS)
    shapes = [
        (16, keys, warps, stages) for keys in (32, 64, 128) for warps in (2, 4) for stages in (2, 3, 4, 5)
    ]
    shapes += [(16, 256, 4, 2), (16, 256, 8, 2), (16, 128, 8, 3), (16, 64, 1, 4), (16, 64, 2, 6)]
    for count in (32, 128, 256):
        args = both(gpu_parts.attention_inputs(gpu_parts.decode_rows(count, CONTEXT), 16))["fp8_e4m3"]
        tried = [Tiles(Tile(*shape), chosen.long) for shape in shapes]
        sweep_case(report, f"{count} decodes", args, [(tiles, tiles.short) for tiles in tried])
    args = both(gpu_parts.attention_inputs([(2048, 2048)] * 4, 16))["fp8_e4m3"]
    longs = [
        (128, 64, 8, 3),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
        (64, 64, 4, 3),
        (64, 128, 4, 2),
        (128, 64, 4, 3),
    ]
    tried = [Tiles(chosen.short, Tile(*shape)) for shape in longs]
    sweep_case(report, "prefill 4 x 2048", args, [(tiles, tiles.long) for tiles in tried])


def sweep_case(report: Report, case: str, args: Inputs, tried: list[tuple[Tiles, Tile]]) -> None:
    rows = []
    for tiles, tile in tried:
        try:
            us = gpu_parts.time_us(
                lambda t=tiles: launch.paged_attention(**args, tiles=t), calls=4, replays=6
            )
        except (RuntimeError, triton.runtime.errors.OutOfResources) as error:
            print(f"{case} {tile}: {str(error).splitlines()[0][:100]}")
            continue
        rows.append((round(us, 1), tile.block_m, tile.block_n, tile.warps, tile.stages))
    rows.sort()
    print(f"sweep of {case}: (us, lines, keys, warps, stages)", *rows[:8], sep="\n  ", flush=True)
    for row in rows:
        report.add("sweep", case=case, shape=row)


def steps(report: Report, model: str, kind: str, decodes: list[int]) -> None:
    """Whole decode steps and a prefill in graphs, and the blocks that the device's memory holds."""
    flags = ["--model", model, "--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "4096"]
    pool = "auto" if kind == "bfloat16" else kind
    settings = read_settings([*flags, "--kv-cache-dtype", pool, "--swap-space", "0"])
    loaded = load(examine(settings))
    said = loaded.capacity
    report.add("capacity", pool=kind, num_blocks=said.num_blocks, bytes_per_block=said.bytes_per_block,
               pool_gib=round(loaded.size.pool_bytes / 2**30, 2))  # fmt: skip
    for rows in decodes:
        report.add("decode_steps", pool=kind, **gpu_step.decode(loaded.runner, rows, 1000, 60, 0.6))
    report.add("prefills", pool=kind, **gpu_step.prefill(loaded.runner, 1, 2048))
    del loaded
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description="An 8-bit KV pool beside a bfloat16 one.")
    parser.add_argument("--model", help="model folder; default: the shape of Qwen3-0.6B, weights are drawn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", default=["attention", "steps", "sweep"])
    parser.add_argument("--rows", type=int, nargs="*", default=DECODES, help="rows of the decode steps")
    options = parser.parse_args()
    report = Report(options.out)
    report.set("machine", gpu_parts.machine())
    torch.manual_seed(0)
    if "attention" in options.parts:
        bandwidth = gpu_parts.copy_bandwidth()
        report.set("copy_tb_s", round(bandwidth / 1e12, 3))
        attention(report, bandwidth, options.rows)
    if "sweep" in options.parts:
        sweep(report)
    if "steps" in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(QWEN3_06B))
            for kind in ("bfloat16", "fp8_e4m3"):
                steps(report, options.model or folder, kind, options.rows)


if __name__ == "__main__":
    main()
