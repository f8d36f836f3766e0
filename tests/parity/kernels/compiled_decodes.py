"""Attention of decodes compiled for compute capability 9.0 without a GPU: a program of test_decode_compiles.

Owns what is asked of the compiled code; launches nothing. Invariant: TRITON_INTERPRET is not set.
"""

import json
import re
import sys
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paged_kernels import fp8_pool
from paged_kernels.triton_impl import decode_work, machine, paged_attention, rotate_store
from tests.fixtures.stub_driver import StubDriver

WORDS = ("launch_dependents", "griddepcontrol.wait", "ld.global", "cp.async")
BLOCK_SIZE, KV_HEADS, HEAD_DIM = 16, 8, 128
REGISTERS, SHARED_BYTES, RESERVED_BYTES = 65536, 233472, 1024
"""Of a multiprocessor; the last of its shared memory for each program."""


def pools(fp8: bool) -> Tensor:
    """[2, 64 blocks, ...] of K and V."""
    if not fp8:
        return torch.empty((2, 64, BLOCK_SIZE, KV_HEADS, HEAD_DIM), dtype=torch.bfloat16)
    bytes_a_block = fp8_pool.block_bytes(BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    layer = torch.zeros((64, bytes_a_block), dtype=torch.uint8)
    values = fp8_pool.values_of(layer, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    return [values, values]  # type: ignore[return-value]


def attend(rows: int, fp8: bool, settled: bool = True, group: int = 2) -> int:
    """Returns for how many programs on each multiprocessor the work is cut."""
    query = torch.empty((rows, group * KV_HEADS, HEAD_DIM), dtype=torch.bfloat16)
    tables, lens = torch.zeros((rows, 256), dtype=torch.int32), torch.arange(rows + 1, dtype=torch.int32)
    contexts, (keys, values) = torch.full((rows,), 100, dtype=torch.int32), pools(fp8)
    work = decode_work.decode_work(tables, lens, contexts, keys, group * KV_HEADS, query.dtype)
    assert work is not None
    assert work.settled
    work = replace(work, settled=settled)
    paged_attention.paged_attention(query, keys, values, tables, lens, contexts, 0.1, 1, 4096, work=work)
    return work.policy.programs


def resident(kernel: Any) -> int:
    """Programs that a multiprocessor holds at once."""
    used = 1 + max(int(number) for number in re.findall(r"\bR(\d+)\b", kernel.asm["sass"]))
    of_program = -(-used // 8) * 8 * 32 * kernel.metadata.num_warps
    return min(REGISTERS // of_program, SHARED_BYTES // (kernel.metadata.shared + RESERVED_BYTES))


def rotate(settles: bool) -> None:
    qkv = torch.empty((2, 3, 4 * KV_HEADS * HEAD_DIM), dtype=torch.float32)
    table, places = (
        torch.empty((9, 2, HEAD_DIM // 2), dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.int32),
    )
    rotate_store.rotate_store(qkv, None, 1e-6, table, places, *pools(False), places, settles=settles)


if __name__ == "__main__":
    driver.set_active(StubDriver())
    machine.overlaps = lambda device: True
    machine.name = lambda device: "NVIDIA H200"
    machine.units = lambda device: 132
    launch, kernels = JITFunction.run, []

    def ask(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels.append(launch(self, *args, grid=grid, warmup=True, **options))
        return kernels[-1]

    JITFunction.run = ask
    results = {}
    cases: dict[str, Any] = {}
    for early in (False, True):
        for rows, fp8 in ((8, False), (60, False), (60, True)):
            cases[f"{rows} rows{' of e4m3' if fp8 else ''} {early}"] = (attend, rows, fp8, early)
        cases[f"rotate {early}"] = (rotate, early)
    for name, (function, *arguments) in cases.items():
        kernels.clear()
        function(*arguments)
        attending = [kernel for kernel in kernels if kernel.name in ("attention_kernel", "decode_kernel")]
        code = (attending or kernels)[-1].asm["ptx"]
        results[name] = [code.find(word) for word in WORDS]
    held = {}
    for rows, fp8, group in (
        (8, False, 2),
        *((60, fp8, group) for fp8 in (False, True) for group in (2, 4, 8)),
    ):
        cut = attend(rows, fp8, group=group)
        held[f"{rows} rows{' of e4m3' if fp8 else ''}, groups of {group}"] = [cut, resident(kernels[-1])]
    json.dump({"triton": triton.__version__, "kernels": results, "held": held}, sys.stdout)
