"""Steps of fixed sizes under Triton's interpreter: a program, run by test_fixed_steps.

Owns the runners: one steps at any size, one at fixed sizes and with products in parts; knows no GPU.
Invariant: TRITON_INTERPRET=1 is set before Triton is imported.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.model_runner import ModelRunner
from paged_kernels.triton_impl.norms import silu_mul
from tests.fixtures.graph_cases import SHAPES, all_outputs, tiny_folder
from tests.fixtures.hand_plans import HandPlanner, HandSequence
from tests.fixtures.hf_families import FAMILIES, write_hf_model
from tests.fixtures.tiny_runner import make_runner


def replays(runner: ModelRunner) -> bool:
    """Whether a step that fits a bucket says that it ran as one graph."""
    runner.reset()
    planner, sequence = (
        HandPlanner(runner.pool.num_blocks, runner.pool.block_size),
        HandSequence(0, [5, 6, 7]),
    )
    return runner.launch(planner.plan([(sequence, 3)])).wait().replayed


MIXTURE, PLAIN = "qwen3_moe", "gemma2"


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What a GPU's products give where they are cut: here at least two parts."""
    pairs = zip(x.split(32, 1), weight.split(32, 1), strict=True)
    parts = torch.stack([F.linear(*pair) for pair in pairs]).float()
    if bias is not None:
        parts[0] += bias
    return parts


def gated_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return silu_mul(in_parts(x, weight, bias), x.dtype)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as root:
        for name in (*SHAPES, MIXTURE, PLAIN):
            folder = Path(root) / name
            if name in (MIXTURE, PLAIN):
                write_hf_model(folder, name, FAMILIES[name])
            else:
                tiny_folder(Path(root), name)
            sizes = {"max_batch_tokens": 40, "max_batch_seqs": 6, "max_model_len": 64}
            expected = all_outputs(make_runner(folder, backend="torch", **sizes), outputs=1)
            runner = make_runner(folder, backend="triton", **sizes)
            assert (runner.fused is None) == (name == PLAIN)
            if name == "qwen3":
                runner.fused.fused = replace(runner.fused.fused, linear=in_parts, gated_linear=gated_in_parts)
            if name in ("qwen3", MIXTURE, PLAIN):
                runner.capture_graphs(captured=False)
            results[name] = {
                "equal": all_outputs(runner, outputs=1) == expected,
                "tokens": sum(map(len, expected)),
                "replayed": replays(runner),
            }
    json.dump(results, sys.stdout)
