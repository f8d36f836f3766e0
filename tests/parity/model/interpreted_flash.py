"""Steps of fixed sizes that attend by flash-attn's stand-ins, under Triton's interpreter: a program, run by
test_fixed_steps.

Owns the runners; knows no GPU. Invariant: TRITON_INTERPRET=1 is set before Triton is imported.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from gpu_worker.model_runner import ModelRunner
from paged_kernels.attention_backends import ByPhase
from paged_kernels.flash_impl.flash2 import Flash2
from paged_kernels.flash_impl.flash4 import Flash4
from paged_kernels.flash_impl.packages import Flash2Calls
from tests.fixtures.fake_flash import FakeFlash2, FakeFlash4
from tests.fixtures.graph_cases import steady_outputs
from tests.fixtures.hand_plans import HandPlanner, HandSequence, run
from tests.fixtures.tiny_model import TinyShape, write_tiny_model
from tests.fixtures.tiny_runner import make_runner

SHAPE = TinyShape("qwen3", seed=3, layers=1)
FLOAT32 = (torch.float32,)


def outputs(runner: ModelRunner) -> list[list[int]]:
    """Chunks, decodes, both in one step, a hit on another's block; two steps in flight."""
    size, blocks = runner.pool.block_size, runner.pool.num_blocks
    long = size + 9
    crowd = [
        HandSequence(row, [3 + (7 * row + at) % 370 for at in range(n)]) for row, n in ((0, 1), (1, long))
    ]
    planner = HandPlanner(blocks, size, seed=5)
    run(runner, planner, crowd, 2, chunk=160)
    late = HandSequence(2, [*crowd[1].tokens[:size], 9, 8])
    planner.share(crowd[1], late, size)
    run(runner, planner, [late, *crowd], 4, chunk=160)
    found = [sequence.outputs for sequence in (*crowd, late)]
    runner.reset()
    return found + steady_outputs(runner, 2)


def main() -> None:
    torch.set_num_threads(1)
    calls: list[str] = []
    two, four = FakeFlash2(calls, (SHAPE.head_dim,), FLOAT32), FakeFlash4(calls, FLOAT32)
    flash2 = Flash2(Flash2Calls(two.varlen, two.with_kvcache))
    attentions = {
        "flash-attn 2": (256, ByPhase(flash2.decode, flash2.mixed)),
        "flash-attn-4": (16, ByPhase(Flash4(four.varlen), Flash4(four.varlen))),
    }
    results = {}
    with tempfile.TemporaryDirectory() as root:
        folder = write_tiny_model(Path(root) / "m", SHAPE)
        for name, (size, attend) in attentions.items():
            sizes = {"max_batch_tokens": 170, "max_batch_seqs": 6, "max_model_len": 300, "block_size": size}
            expected = outputs(make_runner(folder, backend="torch", **sizes))
            runner = make_runner(folder, backend="triton", attend=attend, **sizes)
            runner.capture_graphs(captured=False)
            results[name] = {"equal": outputs(runner) == expected, "calls": sorted(set(calls))}
            calls.clear()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
