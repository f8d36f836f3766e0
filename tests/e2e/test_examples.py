"""Every script of examples/ runs against a real service with a tiny model."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo_client import Client
from tests.e2e.processes import REPOSITORY, Processes, child_environment

EXAMPLES = REPOSITORY / "examples"


@dataclass
class Served:
    server: str
    base_url: str

    def run(self, name: str, *arguments: str) -> list[str]:
        """The lines that a script printed."""
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=100,
            env=child_environment() | {"OCTAVO_SERVER": self.server},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def served(shared_processes: Processes, tiny_llama: Path) -> Served:
    process = shared_processes.serve(tiny_llama, "--num-blocks", "256", "--http", "0")
    server = process.address
    gateway = process.wait_serving("gateway").address
    with Client(server) as client:
        client.wait_ready(60)
    return Served(server, f"http://{gateway}/v1")


def test_stream(served: Served) -> None:
    head, *_, last = served.run("stream.py", "Once upon a time")
    assert "tokens, 0 cached] Once upon a time" in head
    assert last.startswith("[")


def test_batch(served: Served) -> None:
    assert served.run("batch.py", "20")[-1].startswith("20 of 20 requests, ")


def test_chat(served: Served) -> None:
    cached = [line for line in served.run("chat.py") if line.endswith("prompt tokens cached]")]
    assert len(cached) == 3
    assert cached[0].startswith("[0 of ")
    assert not cached[2].startswith("[0 of ")


def test_logprobs(served: Served) -> None:
    lines = served.run("logprobs.py")
    assert len(lines) >= 2
    assert all("%" in line and " of " in line for line in lines[1:])


def test_json_schema(served: Served) -> None:
    answer = json.loads("\n".join(served.run("json_schema.py")))
    assert set(answer) == {"city", "country", "capital"}
    assert isinstance(answer["capital"], bool)


def test_openai_client(served: Served) -> None:
    lines = served.run("openai_client.py", served.base_url)
    assert lines[-1].endswith("prompt tokens cached]")
    assert not lines[-1].startswith("[0 of ")


def test_every_example_is_run_here() -> None:
    run = set(re.findall(r'served\.run\("(\w+\.py)"', Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == run
