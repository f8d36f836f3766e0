"""Streamed products compiled for compute capability 9.0 without a GPU: a program of test_stream_compiles.

Owns what is asked of the compiled code; launches nothing. Invariant: TRITON_INTERPRET is not set.
"""

import json
import sys
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from paged_kernels.triton_impl import fused_linear, machine, stream_linear
from tests.fixtures.stub_driver import StubDriver

LARGE = {"qkv": (4096, 6144), "out": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
SMALL = {"qkv": (1024, 4096), "out": (2048, 1024), "gate_up": (1024, 6144), "down": (3072, 1024)}


def facts(kernel: Any, shape: stream_linear.Stream) -> dict[str, Any]:
    code = kernel.asm["ptx"]
    return {
        "shared": kernel.metadata.shared,
        "paired": shape.paired,
        "depends": kernel.metadata.launch_pdl,
        "places": [
            code.find(word) for word in ("cp.async.bulk.tensor", "griddepcontrol.wait", "wgmma.mma_async")
        ],
    }


if __name__ == "__main__":
    driver.set_active(StubDriver())
    machine.overlaps = lambda device: True
    launch, kernels = JITFunction.run, []

    def ask(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels.append(launch(self, *args, grid=grid, warmup=True, **options))
        return kernels[-1]

    JITFunction.run = ask
    results = {}
    cases = [("large", LARGE, tokens) for tokens in (1, 64, 128)]
    for size, weights, tokens in [*cases, *(("small", SMALL, tokens) for tokens in (16, 64, 256))]:
        for name, (inside, outside) in weights.items():
            shape = fused_linear.stream_for(tokens, inside, outside, name == "gate_up", 132)
            if shape is not None:
                x = torch.empty((tokens, inside), dtype=torch.bfloat16)
                weight = torch.empty((outside, inside), dtype=torch.bfloat16)
                stream_linear.stream_linear(x, weight, None, shape)
                results[f"{size} {name} {tokens}"] = facts(kernels[-1], shape)
    json.dump({"triton": triton.__version__, "kernels": results}, sys.stdout)
