"""Attention of long rows compiled for compute capability 9.0 without a GPU: a program of
test_long_rows_compile.

Owns what is asked of the compiled code; launches nothing. Invariant: TRITON_INTERPRET is not set.
"""

import json
import sys
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paged_kernels.testing import Shape, make_batch
from paged_kernels.triton_impl import hopper_attention, machine, paged_attention
from tests.fixtures.stub_driver import StubDriver

WAIT = "WARPGROUP.DEPBAR.LE gsb0, "
ROWS = ((300, 300), (0, 0), (1, 40)) * 10
SHAPES = [Shape(16, 8, 2, 128, ROWS), Shape(8, 8, 1, 64, ROWS), Shape(128, 8, 7, 128, ROWS)]


def facts(kernel: Any) -> dict[str, Any]:
    code = kernel.asm["sass"]
    loop = code.rindex(f"{WAIT}0x1")
    return {
        "shared": kernel.metadata.shared,
        "depends": kernel.metadata.launch_pdl,
        "multiplications": code.count("HGMMA"),
        "waits": code.count(WAIT),
        "places": [loop, code.find("MUFU.EX2", loop), code.find(f"{WAIT}0x0", loop)],
    }


if __name__ == "__main__":
    driver.set_active(StubDriver())
    machine.overlaps = lambda device: True
    machine.capability = lambda device: (9, 0)
    machine.units = lambda device: 132
    launch, kernels = JITFunction.run, {}

    def ask(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels[self.__name__] = launch(self, *args, grid=grid, warmup=True, **options)
        return kernels[self.__name__]

    JITFunction.run = ask
    results = []
    for shape in SHAPES:
        kernels.clear()
        batch = make_batch(shape, torch.bfloat16, "cpu", 0)
        paged_attention.paged_attention(*batch.attention_args)
        results.append(facts(kernels[hopper_attention.hopper_kernel.__name__]))
    json.dump({"triton": triton.__version__, "kernels": results}, sys.stdout)
