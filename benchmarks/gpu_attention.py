"""Attention on a CUDA device, by our Triton kernels and by flash-attn where installed:
`python -m benchmarks.gpu_attention --out FILE`.

Owns the cases and their bytes and operations; chooses nothing. Invariant: every time stands beside its error
against float64, and a backend that cannot run a case is in the report with the reason.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts import (
    DTYPE,
    HEAD_DIM,
    KV_HEADS,
    QUERY_HEADS,
    attention_inputs,
    copy_bandwidth,
    decode_rows,
    flops,
    kv_bytes,
    machine,
    time_us,
)
from benchmarks.gpu_report import this_commit
from paged_kernels import dispatch, torch_impl
from paged_kernels.attention_backends import PACKAGES, Attend, ByPhase
from paged_kernels.contracts import BackendUnavailableError
from paged_kernels.flash_impl.packages import first_line, foreign_errors
from paged_kernels.testing import relative_error

BLOCK_SIZES = (16, 32, 64, 128, 256)
CHECKED_ROWS = 3
MODEL_CONTEXT = 40960


@dataclass(frozen=True)
class Case:
    """rows: (new tokens, context) of each; decode: bound by the bytes of KV, otherwise by operations."""

    name: str
    rows: tuple[tuple[int, int], ...]
    decode: bool


CASES = (
    *(Case(f"decode {count} x 1024", tuple(decode_rows(count)), True) for count in (32, 64, 128, 256)),
    Case("decode 1 x 8192", ((1, 8192),), True),
    Case("mixed 512, 1, 1, 300, 1, 64", tuple((n, n) for n in (512, 1, 1, 300, 1, 64)), False),
    Case("mixed 64 decodes x 1024 + 512", (*decode_rows(64), (512, 512)), False),
    Case("prefill 1 x 2048", ((2048, 2048),), False),
    Case("prefill 4 x 2048", ((2048, 2048),) * 4, False),
)
WIDE = ("decode 1 x 1024", "decode 32 x 1024", "decode 256 x 1024")
"""Also with the block table of a captured step, which is as wide as the longest context of the model."""


def backends() -> tuple[dict[str, Attend], dict[str, str]]:
    """What can be called here, and why not, of the others."""
    found: dict[str, Attend] = {
        "triton": dispatch.select("triton", "cuda", DTYPE, HEAD_DIM, BLOCK_SIZES[0]).paged_attention
    }
    missing = {}
    for name, (_, load) in PACKAGES.items():
        try:
            candidate = load()
            found[name] = ByPhase(candidate.decode, candidate.mixed)
        except BackendUnavailableError as error:
            missing[name] = str(error)
    return found, missing


def wide(inputs: dict[str, Any], block_size: int) -> dict[str, Any]:
    """The same rows with the table and the bound of a captured step."""
    tables = inputs["block_tables"]
    width = MODEL_CONTEXT // block_size
    padded = tables.new_zeros((tables.shape[0], width))
    padded[:, : tables.shape[1]] = tables
    return inputs | {"block_tables": padded, "max_context_len": MODEL_CONTEXT}


def error_of(attend: Attend, inputs: dict[str, Any]) -> float:
    """Relative error on the last rows against torch in float64; infinite for NaN."""
    result = attend(**inputs)
    lens: Tensor = inputs["cu_query_lens"]
    rows = min(CHECKED_ROWS, len(lens) - 1)
    first = int(lens[-rows - 1])
    used = inputs["block_tables"][-rows:].long().unique()
    renamed = torch.zeros(inputs["k_pool"].shape[0], dtype=torch.int32, device=used.device)
    renamed[used] = torch.arange(len(used), dtype=torch.int32, device=used.device)
    expected = torch_impl.paged_attention(
        inputs["query"][first:].double(),
        inputs["k_pool"][used].double(),
        inputs["v_pool"][used].double(),
        renamed[inputs["block_tables"][-rows:].long()],
        (lens[-rows - 1 :] - first).int(),
        inputs["context_lens"][-rows:],
        inputs["scale"],
        inputs["max_query_len"],
        inputs["max_context_len"],
    )
    return relative_error(result[first:], expected)


def measured(
    attend: Attend, case: Case, inputs: dict[str, Any], bandwidth: float
) -> dict[str, float | str | None]:
    """Microseconds, the rate that bounds the case, the part of copy bandwidth, the error; or why not."""
    try:
        started = time.monotonic()
        attend(**inputs)
        torch.cuda.synchronize()
        first_call = time.monotonic() - started
        us, error = time_us(lambda: attend(**inputs), calls=4), error_of(attend, inputs)
    except foreign_errors() as refusal:
        return {"refused": first_line(refusal)}
    row: dict[str, float | str | None] = {"us": round(us, 1), "error": round(error, 5)}
    if case.decode:
        rate = kv_bytes(list(case.rows)) / us * 1e6
        row |= {"tb_s": round(rate / 1e12, 3), "of_copy": round(rate / bandwidth, 3)}
    else:
        row["tflop_s"] = round(flops(list(case.rows)) / us / 1e6, 1)
    return row | {"first_call_s": round(first_call, 2)}


def rows_of(found: dict[str, Attend], bandwidth: float, said: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for block_size in BLOCK_SIZES:
        for case in (*CASES, Case("decode 1 x 1024", ((1, 1024),), True)):
            inputs = attention_inputs(list(case.rows), block_size)
            shapes = {False: inputs, True: wide(inputs, block_size)} if case.name in WIDE else {False: inputs}
            for is_wide, given in shapes.items():
                for name, attend in found.items():
                    what = {"case": case.name, "block_size": block_size, "backend": name, "wide": is_wide}
                    rows.append(what | measured(attend, case, given, bandwidth))
                    said(" ".join(f"{value}" for value in rows[-1].values()))
            del inputs, shapes, given
            torch.cuda.empty_cache()
    return rows


def versions() -> dict[str, str]:
    found = {}
    for name in ("flash-attn", "flash-attn-4", "nvidia-cutlass-dsl"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="file for the JSON report")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    found, missing = backends()
    bandwidth = copy_bandwidth()
    torch.cuda.empty_cache()
    report: dict[str, Any] = {
        "commit": options.commit or this_commit(),
        "machine": machine() | versions(),
        "copy_tb_s": round(bandwidth / 1e12, 3),
        "model": {
            "query_heads": QUERY_HEADS,
            "kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "dtype": "bfloat16",
        },
        "not_installed": missing,
    }
    with torch.inference_mode():
        report["rows"] = rows_of(found, bandwidth, lambda line: print(line, flush=True))
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "rows"}))


if __name__ == "__main__":
    main()
