"""The Python of docs/client.md runs as it stands there."""

import re
from pathlib import Path

import pytest

from octavo_client import Client
from tests.architecture.sources import REPOSITORY
from tests.unit.client.stub import StubScheduler


def test_the_examples_of_the_client_run(
    stub: StubScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_SERVER", stub.address)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("one word\nfull\n")
    text = (REPOSITORY / "docs/client.md").read_text("utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 4
    names: dict[str, object] = {}
    for example in examples:
        with Client() as client:
            names["client"] = client
            exec(compile(example, "docs/client.md", "exec"), names)
    said = capsys.readouterr().out
    assert "The capital of France is" in said
    assert "line-0 2" in said
    assert "line-1 queue is full" in said
    assert "Once upon a time" in said
