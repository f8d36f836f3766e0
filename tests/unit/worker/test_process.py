"""The worker as a process: serving line, early port, capacity, signals, orphans, refusals in one line
(A24, A25, A31).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.e2e.processes import REPOSITORY, STOP_SECONDS, Processes, child_environment

ON_A_CPU = ("--device", "cpu", "--listen", "127.0.0.1:0", "--metrics-port", "0")
SMALL = ("--num-blocks", "32", "--max-num-seqs", "4", "--max-num-batched-tokens", "64")


def test_a31_default_flags_serve_and_report(processes: Processes, tiny_qwen3: Path) -> None:
    """CPU-only start without flags for the pool; the breakdown adds up; SIGTERM ends with status 0."""
    worker = processes.worker(tiny_qwen3, "127.0.0.1:0")
    assert worker.serving["service"] == "worker"
    with grpc.insecure_channel(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        capacity = stub.GetCapacity(worker_pb2.GetCapacityRequest())
        request = health_pb2.HealthCheckRequest(service="octavo.worker.v1.WorkerService")
        status = health_pb2_grpc.HealthStub(channel).Check(request).status
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert capacity.block_size == 16
    assert capacity.num_blocks == 256 * 2048 // 16
    assert capacity.max_model_len == 2048
    assert capacity.vocab_size == 384
    assert list(capacity.eos_token_ids) == [0, 2]
    assert capacity.kv_dtype == "float32"
    assert {kernel.op for kernel in capacity.kernels} >= {"store_kvcache", "paged_attention"}
    memory = capacity.memory
    parts = memory.weight_bytes + memory.activation_bytes + memory.pool_bytes + memory.slack_bytes
    assert parts == memory.budget_bytes <= memory.total_bytes
    assert memory.pool_bytes == (capacity.num_blocks + 1) * capacity.bytes_per_block
    url = f"http://127.0.0.1:{worker.serving['metrics_port']}/metrics"
    text = urllib.request.urlopen(url).read().decode()
    (line,) = [
        line for line in text.splitlines() if line.startswith('octavo_worker_memory_bytes{use="pool"}')
    ]
    assert float(line.split()[1]) == memory.pool_bytes
    assert worker.stop() == 0


def test_restarts_have_another_epoch_and_the_same_fingerprint(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    """A09, A25: the KV content dies with the process; the weights are the same. On a Unix socket."""
    seen = []
    for _ in range(2):
        worker = processes.worker(tiny_llama, f"unix:{tmp_path}/w.sock", *SMALL)
        with grpc.insecure_channel(worker.address) as channel:
            seen.append(
                worker_pb2_grpc.WorkerServiceStub(channel).GetCapacity(worker_pb2.GetCapacityRequest())
            )
        worker.kill()
    assert seen[0].worker_epoch != seen[1].worker_epoch
    assert seen[0].model_fingerprint == seen[1].model_fingerprint


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--num-blocks", "10000000"], 2, "cannot start: --num-blocks 10000000: so many blocks take "),
        (["--max-model-len", "5000"], 2, "cannot start: --max-model-len 5000: must be at most 2048"),
        (["--metrics-port", "{taken}"], 1, "cannot start: --metrics-port {taken}: 127.0.0.1:{taken} cannot"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    tiny_llama: Path, flags: list[str], status: int, words: str
) -> None:
    """2 for a setting that cannot be, 1 for a place that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [flag.format(taken=port) for flag in flags]
        code, lines = run_worker(["--model", str(tiny_llama), *ON_A_CPU, *given])
    assert code == status
    assert lines[-1]["message"].startswith(words.format(taken=port))
    assert "exception" not in lines[-1]


def run_worker(arguments: list[str]) -> tuple[int, list[dict[str, str]]]:
    result = subprocess.run(
        [sys.executable, "-m", "gpu_worker", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=REPOSITORY,
        env=child_environment(),
    )
    assert not result.stdout
    return result.returncode, [json.loads(line) for line in result.stderr.splitlines()]


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "gpu_worker", *sys.argv[1:]], stdout=subprocess.PIPE)
print(child.pid, flush=True)
print(child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


def test_a25_a_worker_started_by_a_supervisor_ends_with_it(tiny_llama: Path) -> None:
    flags = ["--model", str(tiny_llama), *ON_A_CPU, *SMALL]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *flags, "--exit-with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
        env=child_environment(),
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert json.loads(parent.stdout.readline())["event"] == "serving"
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + STOP_SECONDS
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody waits for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


TOLD_WHILE_IMPORTING = """
import os, signal, sys, time, types
def run(settings, clock):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)
sys.modules["gpu_worker.life"] = types.SimpleNamespace(run=run)
import gpu_worker
gpu_worker.life = sys.modules["gpu_worker.life"]
from gpu_worker.__main__ import main
sys.exit(main(["--model", "nowhere", "--device", "cpu"]))
"""
"""In place of importing PyTorch, which takes its time."""


def test_sigterm_before_the_worker_lives_ends_it_with_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD_WHILE_IMPORTING],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=REPOSITORY,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr)["message"] == "stopped while starting"


def test_sigterm_while_loading_ends_at_once(processes: Processes, tiny_llama: Path) -> None:
    """The port answers before the model is there: liveness SERVING, readiness NOT_SERVING."""
    worker = processes.worker(tiny_llama, "127.0.0.1:0", *SMALL, wait=False)
    while "listening on" not in worker.log_end():
        assert worker.alive()
        time.sleep(0.005)
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.popen.wait(STOP_SECONDS) == 0


def test_a_poisoned_device_ends_the_process_with_one_line(processes: Processes, tiny_llama: Path) -> None:
    """The step is answered first; then the process ends, so that whoever started it can start another."""
    flags = ["--model", str(tiny_llama), *ON_A_CPU, *SMALL]
    worker = processes.start("breaking", "tests.unit.worker.breaking_worker", *flags)
    with grpc.insecure_channel(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        epoch = stub.GetCapacity(worker_pb2.GetCapacityRequest()).worker_epoch
        hello = worker_pb2.SessionHello(session_id=1, worker_epoch=epoch, protocol_version=1)
        plan = worker_pb2.StepPlan(session_id=1, worker_epoch=epoch, step_id=1)
        messages = iter([worker_pb2.RunRequest(hello=hello), worker_pb2.RunRequest(plan=plan)])
        answers = stub.Run(messages)
        assert next(answers).accepted.session_id == 1
        failure = next(answers).result.failure
    assert failure.reason == worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR
    assert failure.detail == "CUDA error: an illegal memory access was encountered"
    assert worker.popen.wait(STOP_SECONDS) == 1
    lines = map(json.loads, worker.err.read_text().splitlines())
    errors = [line for line in lines if line["level"] == "error"]
    last = "cannot go on: CUDA error: an illegal memory access was encountered"
    assert errors[-1]["message"] == last
