"""The documentation's commands that are marked as run, against a served tiny model."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_client import Client
from tests.e2e.cli.run import SECONDS
from tests.e2e.processes import REPOSITORY, Processes, child_environment
from tests.unit.docs.commands import blocks

COMMANDS = sorted({command for block in blocks() if block.mark == "run" for command in block.commands})


@pytest.fixture(scope="module")
def ports(shared_processes: Processes, tiny_llama: Path) -> dict[str, str]:
    """The default addresses, and those of the services that stand for them."""
    process = shared_processes.serve(tiny_llama, "--http", "0", "--max-model-len", "256")
    scheduler = process.serving
    gateway = process.wait_serving("gateway").serving
    with Client(str(scheduler["listen"])) as client:
        client.wait_ready(SECONDS)
    return {
        "127.0.0.1:7450": str(scheduler["listen"]),
        "127.0.0.1:9450": f"127.0.0.1:{scheduler['metrics_port']}",
        "127.0.0.1:8000": str(gateway["listen"]),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_the_page_says(command: str, ports: dict[str, str], tmp_path: Path) -> None:
    for default, real in ports.items():
        command = command.replace(default, real)
    octavo = tmp_path / "octavo"
    octavo.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m octavo_client.cli "$@"\n')
    octavo.chmod(0o755)
    if command.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    env = child_environment() | {"OCTAVO_SERVER": ports["127.0.0.1:7450"]}
    env["PATH"] = f"{tmp_path}:{env.get('PATH', '/usr/bin:/bin')}"
    command = command.replace("curl ", "curl --fail ", 1)
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
