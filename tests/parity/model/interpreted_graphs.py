"""Steps of fixed sizes under Triton's interpreter: a program, run by test_fixed_steps.

Owns the runners: one steps at any size, one at fixed sizes; knows no GPU. Invariant: TRITON_INTERPRET=1 is
set before Triton is imported.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.fixtures.graph_cases import SHAPES, all_outputs, tiny_folder
from tests.fixtures.tiny_runner import make_runner

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
            }
    json.dump(results, sys.stdout)
