"""Steps of fixed sizes under Triton's interpreter: a program, run by test_fixed_steps.

Owns the runners: one steps at any size, one at fixed sizes; knows no GPU. Invariant: TRITON_INTERPRET=1 is
set before Triton is imported.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from gpu_worker.model_runner import ModelRunner
from tests.fixtures.graph_cases import SHAPES, all_outputs, tiny_folder
from tests.fixtures.hand_plans import HandPlanner, HandSequence
from tests.fixtures.tiny_runner import make_runner


def replays(runner: ModelRunner) -> bool:
    """Whether a step that fits a bucket says that it ran as one graph."""
    runner.reset()
    planner, sequence = (
        HandPlanner(runner.pool.num_blocks, runner.pool.block_size),
        HandSequence(0, [5, 6, 7]),
    )
    return runner.launch(planner.plan([(sequence, 3)])).wait().replayed


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as root:
        for name in SHAPES:
            folder = tiny_folder(Path(root), name)
            sizes = {"max_batch_tokens": 40, "max_batch_seqs": 6, "max_model_len": 64}
            expected = all_outputs(make_runner(folder, backend="torch", **sizes), outputs=1)
            runner = make_runner(folder, backend="triton", **sizes)
            if name == "qwen3":
                runner.capture_graphs(captured=False)
            results[name] = {
                "equal": all_outputs(runner, outputs=1) == expected,
                "tokens": sum(map(len, expected)),
                "replayed": replays(runner),
            }
    json.dump(results, sys.stdout)
