"""Kernels that compile in threads at start are those that the start launches; nothing is missed."""

import json
import os
import subprocess
import sys

from tests.fixtures.graph_cases import SHAPES


def test_whatever_a_start_launches_was_asked_for_ahead() -> None:
    """On stand-ins for the driver and the compiler: behind the rehearsal of a start, its first steps and all
    its buckets find their kernels compiled, and the rehearsal itself launches none.
    """
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.parity.model.rehearsed_kernels"],
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == {"wide", "wide and streamed", "qwen3_moe with a dense layer", *SHAPES}
    for name, result in results.items():
        assert result["asked"]["compiled"] > 10, name
        assert result["asked"]["launchers"] == result["asked"]["compiled"], name
        assert "launched" not in result["asked"], name
        assert "compiled" not in result["then"], name
        assert result["then"]["launched"] > 10 * result["buckets"], name
