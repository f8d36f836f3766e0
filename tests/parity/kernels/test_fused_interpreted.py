"""The fused Triton kernels without a GPU: interpreted, in a process of their own, on tiny shapes.

Owns the verdicts; knows no GPU. Invariant: this process never sets TRITON_INTERPRET.
"""

import json
import os
import subprocess
import sys


def test_fused_kernels_equal_their_references() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.parity.kernels.interpreted_fused"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["mismatches"] == []
    wrong = {name: error for name, error in report["errors"].items() if not error < 3e-6}
    assert not wrong
