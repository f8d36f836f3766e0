"""One served tiny model for all tests of commands."""

from pathlib import Path

import pytest

from octavo_client import Client
from tests.e2e.cli.run import SECONDS
from tests.e2e.processes import Processes


@pytest.fixture(scope="module")
def server(shared_processes: Processes, tiny_llama: Path) -> str:
    """The address of a scheduler with a worker of 128 blocks of 4 tokens, in float64: a token is the same
    whatever runs beside it and whatever was cached.
    """
    flags = ["--block-size", "4", "--num-blocks", "128", "--max-model-len", "256", "--dtype", "float64"]
    process = shared_processes.serve(tiny_llama, *flags)
    with Client(process.address) as client:
        client.wait_ready(SECONDS)
    return process.address
