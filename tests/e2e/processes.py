"""Services as real processes: start, wait for the serving line, freeze, kill, stop.

Owns process life and the files of their output; knows no service's meaning. Invariant: every process started
here is ended by its own id when its `Processes` closes, and its output can be shown when a test fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import psutil  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 100.0
STOP_SECONDS = 60.0
END_SECONDS = 10.0
"""For each process at a test's own end, where nobody asks how it ended."""
POLL_SECONDS = 0.02
_OF_SERVICES = ("OCTAVO_", "OTEL_", "GRPC_")
_OF_OUTPUT = {
    "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONASYNCIODEBUG", "PYTHONVERBOSE", "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES",
}  # fmt: skip


class ProcessFailed(Exception):
    """A process ended, or stayed silent, where a line was due; the text holds the end of its log."""


class ServiceProcess:
    """One running service. `serving` is its serving line; output goes to `NAME.out` and `NAME.err`."""

    def __init__(
        self, name: str, arguments: list[str], folder: Path, env: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self._lines_read = 0
        self._asked_to_stop = False
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=REPOSITORY,
                env=child_environment() | (env or {}),
            )
        self.serving: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def address(self) -> str:
        return str(self.serving["listen"])

    def wait_serving(self, service: str = "", timeout: float = START_SECONDS) -> "ServiceProcess":
        """Waits for the serving line, of this service when named. Raises ProcessFailed."""
        while True:
            line = self.next_line(timeout)
            if line.get("event") == "serving" and service in ("", line.get("service")):
                self.serving = line
                return self

    def next_line(self, timeout: float = START_SECONDS) -> dict[str, Any]:
        """The next whole line of standard output, {} when it is not JSON. Raises ProcessFailed."""
        deadline = time.monotonic() + timeout
        while True:
            # Before its lines are read: the last may come with its end.
            over = self.popen.poll() is not None or time.monotonic() > deadline
            lines = self.out.read_bytes().split(b"\n")[:-1]
            if len(lines) > self._lines_read:
                self._lines_read += 1
                return _parsed(lines[self._lines_read - 1])
            if over:
                raise ProcessFailed(f"{self.name}: exit status {self.popen.poll()}\n{self.log_end()}")
            time.sleep(POLL_SECONDS)

    def ask(self, **command: object) -> dict[str, Any]:
        """One command to a fake worker process and its answer."""
        stdin: IO[bytes] | None = self.popen.stdin
        assert stdin is not None
        stdin.write(json.dumps(command).encode() + b"\n")
        stdin.flush()
        return self.next_line()

    def alive(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self.popen.kill()
        self.popen.wait()

    def freeze(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """SIGTERM, once; also to a frozen process."""
        if self.alive() and not self._asked_to_stop:
            self._asked_to_stop = True
            self.thaw()
            self.popen.terminate()

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, then kill -9 after the timeout. Returns the exit status."""
        if self.alive():
            self.ask_to_stop()
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        return int(self.popen.returncode)

    def log_end(self, characters: int = 6000) -> str:
        return self.err.read_text(errors="replace")[-characters:]


class Processes:
    """All processes of one test or one shared fixture, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[ServiceProcess] = []

    def start(
        self, name: str, *arguments: str, env: dict[str, str] | None = None, wait: bool = True
    ) -> ServiceProcess:
        """Runs `python -m arguments...`; returns it once it serves."""
        unique = f"{name}-{len(self.started)}"
        process = ServiceProcess(unique, list(arguments), self.folder, env)
        self.started.append(process)
        return process.wait_serving() if wait else process

    def scheduler(self, model: Path, worker: str, *flags: str, wait: bool = True) -> ServiceProcess:
        """The scheduler service on free ports."""
        listen = ["--listen", "127.0.0.1:0", "--metrics-port", "0"]
        arguments = ["scheduler_svc", "--model", str(model), "--worker", worker, *listen, *flags]
        return self.start("scheduler", *arguments, wait=wait)

    def worker(self, model: Path, listen: str, *flags: str, wait: bool = True) -> ServiceProcess:
        """The real worker on the CPU, in float32."""
        fixed = ["--device", "cpu", "--dtype", "float32", "--metrics-port", "0"]
        arguments = ["gpu_worker", "--model", str(model), "--listen", listen, *fixed, *flags]
        return self.start("worker", *arguments, wait=wait)

    def fake_worker(self, listen: str, *flags: str) -> ServiceProcess:
        return self.start("fake", "tests.fakes.fake_worker", "--listen", listen, *flags)

    def serve(self, model: Path, *flags: str) -> ServiceProcess:
        """`octavo serve` on free ports; `serving` is the scheduler's line."""
        ports = ["--port", "0", "--metrics-port", "0", "--worker-metrics-port", "0"]
        fixed = ["--device", "cpu", "--log-format", "json"]
        process = self.start(
            "serve", "octavo_client.cli", "serve", "--model", str(model), *ports, *fixed, *flags, wait=False
        )
        return process.wait_serving("scheduler")

    def gateway(self, server: str, *flags: str, wait: bool = True) -> ServiceProcess:
        """The HTTP gateway on a free port, in front of a scheduler."""
        arguments = ["gateway", "--server", server, "--listen", "127.0.0.1:0", *flags]
        return self.start("gateway", *arguments, wait=wait)

    def close(self) -> None:
        for process in self.started:
            process.ask_to_stop()
        for process in self.started:
            process.stop(END_SECONDS)

    def logs(self) -> list[tuple[str, str]]:
        return [(process.name, process.log_end()) for process in self.started]


def until_gone(pids: Iterable[int], timeout: float = STOP_SECONDS) -> None:
    """Waits until none of the processes runs; who is left for its parent to read runs no more. Raises
    AssertionError.
    """
    deadline = time.monotonic() + timeout
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(POLL_SECONDS)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int, word: str) -> list[int]:
    """Ids of the living descendants of a process whose command line holds the word."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if word in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def child_environment() -> dict[str, str]:
    """This environment without what would change a service or its output: one thread a process, quiet gRPC,
    UTF-8.
    """
    left = {name for name in os.environ if name.startswith(_OF_SERVICES) or name.lower().endswith("_proxy")}
    kept = {name: value for name, value in os.environ.items() if name not in left | _OF_OUTPUT}
    fixed = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE", "HF_HUB_OFFLINE": "1"}
    return kept | fixed | {"PYTHONUTF8": "1"}
