"""What a start asks Triton for ahead and what it then launches, without a GPU: a program, run by
test_compile_ahead.

Owns the stand-ins: a driver that says it is an H200 and counts launches, and a compiler that compiles
nothing; knows no kernel's binary. Invariant: TRITON_INTERPRET is not set, so kernels are asked for as on a
device.
"""

import json
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.runtime import driver

from gpu_worker.graph_runner import GraphRunner
from gpu_worker.model_runner import ModelRunner
from gpu_worker.step_layout import StepLayout
from paged_kernels import dispatch
from paged_kernels.triton_impl import compile_ahead, fused_linear, machine
from tests.fixtures import tiny_runner
from tests.fixtures.graph_cases import SHAPES
from tests.fixtures.hf_families import FAMILIES, write_hf_model
from tests.fixtures.stub_driver import StubDriver
from tests.fixtures.tiny_model import TinyShape, write_tiny_model

CASES = {
    "wide": TinyShape(
        "qwen3", seed=8, layers=3, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1024
    ),
    **SHAPES,
}
STREAMED = "wide and streamed"
PASS = GraphRunner._pass
counts: Counter[str] = Counter()
_counting = threading.Lock()


def count(what: str) -> None:
    """Threads that compile count too."""
    with _counting:
        counts[what] += 1


class CountingDriver(StubDriver):
    """Counts the launchers that are asked for."""

    def launcher_cls(self, src: object, metadata: object) -> None:
        count("launchers")


class StubKernel:
    """What the compiler gives: counts what becomes of it."""

    src = metadata = function = None
    packed_metadata = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def launch_metadata(self, *arguments: Any) -> None:
        count("launched")

    @property
    def run(self) -> Any:
        return lambda *arguments: None


def compiled(src: Any, **options: Any) -> StubKernel:
    count("compiled")
    return StubKernel(src.name)


def put_stand_ins() -> None:
    driver.set_active(CountingDriver())
    triton.compiler.compile = compiled
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
    machine.units = lambda device: 132  # type: ignore[assignment]
    machine.name = lambda device: "NVIDIA H200"  # type: ignore[assignment]
    machine.capability = lambda device: (9, 0)  # type: ignore[assignment]

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    F.linear = linear  # type: ignore[assignment]


def stream_small_weights() -> None:
    """From now on the weights of "wide" are streamed as those of large models are."""
    fused_linear._MOST_SMALL = 0
    machine.units = lambda device: 8  # type: ignore[assignment]
    fused_linear.stream_for.cache_clear()


def made(folder: Path) -> ModelRunner:
    dispatch.select = lambda *arguments, **options: dispatch._triton("a stand-in")
    return tiny_runner.make_runner(
        folder, "bfloat16", block_size=16, max_batch_tokens=600, max_batch_seqs=300, max_model_len=64
    )


def noted_passes() -> list[tuple[int, int, bool]]:
    """The buckets that are gone through from now on: tokens, rows, whether of decodes."""
    passes: list[tuple[int, int, bool]] = []

    def noted(self: GraphRunner, layout: StepLayout) -> Any:
        passes.append(astuple(layout.bucket))
        return PASS(self, layout)

    GraphRunner._pass = noted  # type: ignore[method-assign]
    return passes


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as root:
        name = "qwen3_moe with a dense layer"
        longer = FAMILIES[name] | {"num_hidden_layers": 4}
        folders = {name: write_hf_model(Path(root) / "mixed", name, longer)}
        for name, shape in CASES.items():
            folders[name] = write_tiny_model(Path(root) / name, shape)
        put_stand_ins()
        for name, folder in [*folders.items(), (STREAMED, folders["wide"])]:
            if name == STREAMED:
                stream_small_weights()
            runner = made(folder)
            counts.clear()
            passes = noted_passes()
            with compile_ahead.compiling(torch.device("cpu")), compile_ahead.instead_of_launching():
                runner.rehearse(captured=True)
            asked, order = dict(counts), list(passes)
            counts.clear()
            runner.warm_up()
            graphs = runner._graphs_of(runner.fused)
            with torch.inference_mode():
                for layout in graphs._layouts.values():
                    graphs._pass(layout)
            results[name] = {"asked": asked, "then": dict(counts), "buckets": len(graphs._layouts)}
            results[name]["passes"] = order
    json.dump(results, sys.stdout)
