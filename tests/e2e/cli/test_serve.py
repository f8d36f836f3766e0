"""octavo serve and octavo demo: two real processes, and none left behind."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from octavo_client import Client
from tests.e2e.cli.run import SECONDS, Background, Terminal, command, octavo
from tests.e2e.processes import REPOSITORY, child_environment, children_of, until_gone

AT_ONCE = 10.0
"""Seconds, less than a drain takes."""
PORTS = ("--port", "0", "--metrics-port", "0", "--worker-metrics-port", "0", "--num-blocks", "64")


@pytest.fixture
def served(tiny_llama: Path, tmp_path: Path) -> Iterator[Background]:
    job = Background(tmp_path, "serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS)
    yield job
    job.close()


def address_in(said: str) -> str:
    line = next(line for line in said.splitlines() if line.startswith("scheduler serving on"))
    return line.split()[3]


def started(said: str) -> list[int]:
    """Ids of the processes that a command said it started: at least a worker's and a scheduler's."""
    found = [int(pid) for pid in re.findall(r"process (\d+) started", said)]
    assert len(found) >= 2, said
    return found


def test_serve_says_how_to_talk_to_it_and_ends_cleanly(served: Background) -> None:
    said = served.wait_for("Ctrl-C")
    address = address_in(said)
    for line in (f"octavo chat --server {address}", "grpcurl -plaintext -d", "buf curl", "/metrics"):
        assert line in said
    with Client(address) as client:
        assert client.generate("hello", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
    children = children_of(served.process.pid, "-m")
    assert set(started(said)) <= set(children)
    assert served.end(signal.SIGINT) == 0
    until_gone(children, AT_ONCE)
    assert served.err.read_text() == ""


def test_serve_waits_for_running_requests_at_sigterm(served: Background) -> None:
    address = address_in(served.wait_for("Ctrl-C"))
    with Client(address) as client, client.stream("hello", max_tokens=100, ignore_eos=True) as stream:
        next(stream)
        served.process.send_signal(signal.SIGTERM)
        events = list(stream)
    assert sum(len(getattr(event, "token_ids", ())) for event in events) == 100
    assert served.process.wait(SECONDS) == 0


def test_serve_outlives_its_terminal_and_still_ends_when_told(tiny_llama: Path) -> None:
    patient = ("--scheduler-arg=--worker-grace-seconds", "--scheduler-arg=600")
    terminal = Terminal("serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS, *patient)
    try:
        address = re.search(r"serving on (127\S+)", terminal.wait_for("Ctrl-C"))
        assert address is not None
        children = children_of(terminal.process.pid, "-m")
        terminal.hang_up()
        with Client(address[1]) as client:
            assert client.generate("hello", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
        os.kill(children_of(terminal.process.pid, "gpu_worker")[0], signal.SIGKILL)  # news that nobody reads
        with Client(address[1]) as client:
            assert client.generate("hello", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
        terminal.interrupt()
        assert terminal.process.wait(SECONDS) == 0
        until_gone(children, AT_ONCE)
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def hangup(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """How the commands of a test find SIGHUP, whether or not the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_who_runs_serve_under_nohup_means_it(
    tiny_llama: Path, tmp_path: Path, hangup: signal.Handlers
) -> None:
    job = Background(tmp_path, "serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS)
    try:
        address = address_in(job.wait_for("Ctrl-C"))
        job.process.send_signal(signal.SIGHUP)
        if hangup == signal.SIG_DFL:
            assert job.process.wait(SECONDS) == 0
        else:
            with Client(address) as client:
                assert client.generate("hello", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
    finally:
        job.close()


@pytest.mark.parametrize("hangup", [signal.SIG_DFL], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_serve_ends_cleanly_when_its_pipe_is_left(
    tiny_llama: Path, number: signal.Signals, hangup: signal.Handlers
) -> None:
    arguments = command("serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, env=child_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert b"process" in process.stdout.readline()
            process.stdout.close()
            while not (children := children_of(process.pid, "gpu_worker")):
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(SECONDS) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()
    until_gone(children, AT_ONCE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_behind_an_ampersand_ends_by_either_signal(
    tiny_llama: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """A shell without job control starts such a command with SIGINT ignored."""
    words = shlex.join(command("serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS))
    said = tmp_path / "said"
    with subprocess.Popen(
        ["sh", "-c", f"{words} >{said} 2>&1 & echo $!; wait $!; echo ended $?"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=child_environment(),
    ) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            while not said.exists() or "scheduler serving on" not in said.read_text():
                assert Path(f"/proc/{pid}").exists(), said.read_text()
                time.sleep(0.05)
            os.kill(pid, number)
            assert shell.stdout.readline() == "ended 0\n", said.read_text()
        finally:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
    assert "stopping" in said.read_text()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--worker-arg=--block-size", "--worker-arg=0"),
         "--block-size 0: must be a whole number from 1 to 4096"),
        (("--dtype", "float7"), "--dtype float7: must be one of auto, float32, bfloat16, float16, float64"),
        (("--quantize", "int8", "--kernel-backend", "torch"),
         "--quantize int8: goes with --kernel-backend auto or cpu, not with --kernel-backend torch"),
        (("--depth", "9"), "--depth 9: must be a whole number from 1 to 4"),
        (("--record", "/nowhere/log"), "--record /nowhere/log: cannot be written: No such file or directory"),
        (("--scheduler-arg=--pool-page-token-file", "--scheduler-arg=/nowhere"),
         "--pool-page-token-file /nowhere: cannot be read: No such file or directory"),
        (("--http", "0", "--api-key-file", "/nowhere"),
         "--api-key-file /nowhere: cannot be read: No such file or directory"),
        (("--http", "0", "--gateway-arg=--nonsense"),
         "--nonsense: no such flag or argument; --help lists those there are"),
    ],
)  # fmt: skip
def test_serve_refuses_what_it_hands_on_before_anything_starts(
    tiny_llama: Path, flags: tuple[str, ...], why: str
) -> None:
    done = octavo("serve", "--model", str(tiny_llama), *PORTS, *flags)
    assert (done.code, done.out, done.err) == (2, "", f"octavo: {why}\n")


def test_serve_says_which_setting_a_model_does_not_allow(tiny_llama: Path) -> None:
    done = octavo("serve", "--model", str(tiny_llama), *PORTS, "--max-model-len", "5000")
    assert (done.code, done.err) == (
        2, "octavo: --max-model-len 5000: must be at most 2048, the model's limit\n"
    )  # fmt: skip


def test_serve_says_that_its_port_is_taken(served: Background, tiny_llama: Path) -> None:
    port = address_in(served.wait_for("Ctrl-C")).rpartition(":")[2]
    done = octavo("serve", "--model", str(tiny_llama), *PORTS, "--port", port)
    assert done.code == 1
    assert "octavo: the scheduler ended" in done.err
    assert port in done.err


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_missing_model_is_one_line_that_says_what_to_do(command: str) -> None:
    done = octavo(command, "--model", "/nowhere/model")
    assert done.code == 2
    assert done.err.startswith("octavo: --model /nowhere/model: does not exist; ")
    assert "gpu_worker.models.prepare" in done.err
    assert len(done.err.splitlines()) == 1


def test_the_demo_tells_its_story_and_leaves_no_process(tiny_llama: Path, tmp_path: Path) -> None:
    job = Background(tmp_path, "demo", "--model", str(tiny_llama), "--max-tokens", "12")
    try:
        job.wait_for("ready after")
        children = children_of(job.process.pid, "-m")  # none where it has already ended
        assert job.process.wait(SECONDS) == 0, job.err.read_text()
    finally:
        job.close()
    said = job.out.read_text()
    for words in (
        "> What is the capital",
        "blocks used",
        "blocks shared",
        "prefix-hit tokens",
        "tokens per second",
    ):
        assert words in said
    assert "\x1b" not in said
    until_gone([*started(said), *children], AT_ONCE)


def test_the_demo_interrupted_leaves_no_process(tiny_llama: Path, tmp_path: Path) -> None:
    job = Background(tmp_path, "demo", "--model", str(tiny_llama), "--max-tokens", "1000")
    try:
        children = started(job.wait_for("scheduler serving"))
        assert job.end(signal.SIGINT) == 130
    finally:
        job.close()
    assert "interrupted" in job.err.read_text()
    until_gone(children, AT_ONCE)


def test_the_demo_says_in_one_line_what_failed(tiny_llama: Path) -> None:
    done = octavo("demo", "--model", str(tiny_llama), "--worker-arg=--dtype", "--worker-arg=float7")
    assert done.code == 2
    assert done.err.startswith("octavo: --dtype float7: must be one of auto, float32")
    assert len(done.err.splitlines()) == 1


def test_serve_with_http_runs_a_gateway_too_and_ends_all_three(tiny_llama: Path, tmp_path: Path) -> None:
    job = Background(
        tmp_path, "serve", "--model", str(tiny_llama), "--device", "cpu", *PORTS, "--http", "0",
        "--served-model-name", "small",
    )  # fmt: skip
    try:
        job.wait_for("Ctrl-C")
        while not (found := re.search(r"gateway   serving on (\S+) ", job.wait_for("gateway   serving on "))):
            time.sleep(0.02)
        client = OpenAI(base_url=f"http://{found[1]}/v1", api_key="none", max_retries=0)
        answer = client.completions.create(model="small", prompt="hello", extra_body={"ignore_eos": True})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 16
        children = children_of(job.process.pid, "-m")
        assert children_of(job.process.pid, "gateway")
        assert job.end(signal.SIGINT) == 0
        until_gone(children, AT_ONCE)
    finally:
        job.close()


def test_a_flag_of_the_gateway_needs_the_gateway(tiny_llama: Path) -> None:
    done = octavo("serve", "--model", str(tiny_llama), *PORTS, "--served-model-name", "small")
    assert done.code == 2
    assert done.err == "octavo: --served-model-name small: is the gateway's; give --http too\n"
