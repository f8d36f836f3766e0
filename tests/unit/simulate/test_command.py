"""The command line: reports, files, and one line for everything that is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_svc.simulate import plots
from scheduler_svc.simulate.command import main
from tests.unit.simulate.traces import AZURE, MOONCAKE, SESSIONS, path_of

FEW = ("--limit", "20")


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_a_report_of_several_block_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    sizes = "16,64,contiguous"
    pool = ("--pool-tokens", 20_000, "--max-model-len", 8192)
    assert run(AZURE, *FEW, "--block-size", sizes, *pool, "--json", out) == 0
    report = json.loads(out.read_text())
    assert [r["label"] for r in report["runs"]] == ["16", "64", "contiguous"]
    assert [r["num_blocks"] for r in report["runs"]] == [1250, 312, 2]
    assert report["settings"]["block_sizes"] == [16, 64, "contiguous"]
    assert report["trace"]["requests"] == 20
    shown = capsys.readouterr()
    assert "contiguous" in shown.out
    assert "waste, of held slots" in shown.out
    assert shown.err == ""


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        folder = tmp_path / name
        words = ("--block-size", "16,256", "--arrival-scale", 50, "--plots", folder)
        assert run(AZURE, *FEW, *words, "--json", tmp_path / f"{name}.json") == 0
        files.append([(path.name, path.read_bytes()) for path in sorted(folder.iterdir())])
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert files[0] == files[1]
    assert [name for name, _ in files[0]] == ["block-sizes.svg", "latency.svg", "pool-16.svg", "pool-256.svg"]


def test_the_hit_rate_of_the_trace_s_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MOONCAKE, "--block-ids") == 0
    shown = capsys.readouterr().out
    assert "5,537" in shown
    assert "322" in shown
    assert "5.82%" in shown


def test_other_settings_are_taken(tmp_path: Path) -> None:
    model = path_of(
        tmp_path,
        '{"points": [[1, 0.5]], "kv_token_seconds": 0, "pair_seconds": 0, "kv_token_bytes": 1}',
        "slow.json",
    )
    out = tmp_path / "out.json"
    words = (
        "--no-prefix-cache", "--priority", "shortest-first", "--queue-timeout", 30, "--max-num-seqs", 2,
        "--max-num-batched-tokens", 512, "--max-prefill-chunk", 256, "--watermark-blocks", 0, "--depth", 1,
        "--num-blocks", 2000, "--worker-model", model, "--json", out,
    )  # fmt: skip
    assert run(AZURE, *FEW, *words) == 0
    report = json.loads(out.read_text())
    run_figures = report["runs"][0]
    assert report["worker_model"]["name"] == "slow"
    assert run_figures["throughput"]["step_s_mean"] == 0.5
    assert run_figures["throughput"]["rows_most"] <= 2
    assert run_figures["requests"]["gave_up_waiting"] > 0
    assert run_figures["prefix"]["lookup_tokens"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "orca"], "--format orca: must be one of auto, "),
        (["--block-size", "0"], "--block-size 0: must be whole numbers from 1 to 4096 or contiguous"),
        (
            ["--block-size", "16,8192"],
            "--block-size 16,8192: must be whole numbers from 1 to 4096 or contiguous",
        ),
        (["--block-size", ""], "--block-size : must be"),
        (["--num-blocks", "-5"], "--num-blocks -5: must be a whole number from 1 to 2147483647 or unbounded"),
        (["--num-blocks", "many"], "--num-blocks many: must be"),
        (["--pool-tokens", "1.5"], "--pool-tokens 1.5: must be a whole number from 1 to 2147483647"),
        (["--arrival-scale", "0"], "--arrival-scale 0: must be a number above 0"),
        (["--arrival-scale", "nan"], "--arrival-scale nan: must be a number above 0"),
        (["--queue-timeout", "-1"], "--queue-timeout -1: must be a number of at least 0"),
        (["--limit", "x"], "--limit x: must be a whole number from 0 to "),
        (["--depth", "3"], "--depth 3: must be a whole number from 1 to 2"),
        (["--max-num-seqs", "0"], "--max-num-seqs 0: must be a whole number from 1 to "),
        (
            ["--num-blocks", "5", "--pool-tokens", "5"],
            "--num-blocks and --pool-tokens: one of them",
        ),
        (["--num-blocks", "5", "--block-size", "contiguous"], "needs --pool-tokens or an unbounded pool"),
        (["--block-ids", "--block-size", "16"], "--block-ids: a block is one id of the trace"),
        (["--one-at-a-time", "--arrival-scale", "2"], "--arrival-scale 2: has no meaning with"),
        (
            ["--max-prefill-chunk", "9000"],
            "9000: must be at most --max-num-batched-tokens 2048",
        ),
        (["--preemption", "swap"], "--preemption swap: needs --swap-tokens"),
        (["--swap-tokens", "15"], "--swap-tokens 15: less than a block of 16 tokens"),
        (["--n", "300"], "--n 300: must be at most --max-num-seqs 256"),
        (["--colour"], "--colour: no such flag or argument"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(MOONCAKE, *words)
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said in error
    assert error.startswith("octavo simulate: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        ([AZURE, "--format", "weka"], "line 1: no JSON"),
        ([AZURE, "--block-ids"], "format azure has no block ids"),
        ([AZURE, "--worker-model", "h100"], "--worker-model h100: neither a file nor one of h200-qwen3-0.6b"),
        ([AZURE, "--num-blocks", "2000000000"], "2000000000 blocks of 16 tokens, must be 1 to 2147483647"),
        ([AZURE, "--pool-tokens", "8"], "--pool-tokens: 0 blocks of 16 tokens, must be"),
        (
            [AZURE, "--block-size", "contiguous", "--pool-tokens", "99", "--max-model-len", "100"],
            "--pool-tokens 99: holds no reservation of --max-model-len 100",
        ),
        ([SESSIONS], "--tokenizer DIR is needed"),
        ([AZURE, *FEW, "--json", "/nowhere/x.json"], "/nowhere/x.json: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("octavo simulate: ")
    assert error.count("\n") == 1


def test_without_matplotlib_only_plots_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert run(AZURE, *FEW) == 0
    assert run(AZURE, *FEW, "--plots", tmp_path / "plots") == 1
    assert "pip install 'octavo[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()


def test_octavo_simulate_becomes_it() -> None:
    words = [sys.executable, "-m", "octavo_client.cli", "simulate", str(AZURE), "--limit", "3"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "azure2023_conv_first500.csv: 3 requests" in done.stdout
