"""The checks of `octavo doctor`, a group each.

Owns what is looked at and how grave it is; prints nothing, and asks torch only in another process.
Invariant: a check never raises; what it could not find out is a finding.
"""

from __future__ import annotations

import enum
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grpc

from octavo.environment import unknown_names
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from octavo_client.client import Client
from octavo_client.errors import OctavoError, from_call
from octavo_client.supervisor.stack import find_model

_PROBE_SECONDS = 60
_CLIENT = ("octavo", "grpcio", "protobuf", "numpy", "rich")
_SCHEDULER = ("tokenizers", "jinja2", "xxhash", "uvloop", "prometheus-client", "pydantic-settings")
_WORKER = ("torch", "triton", "safetensors", "gguf", "transformers", "psutil")
_MAY_LACK = {"uvloop": "slower event loop", "triton": "no Triton kernels", "transformers": "fewer models"}
_PORTS = ((7450, "scheduler"), (9450, "scheduler metrics"), (7451, "worker"), (9451, "worker metrics"))

_PROBE = """
import json, torch
from paged_kernels import dispatch
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
dtype = torch.bfloat16 if cuda else torch.float32
chosen = dispatch.select("auto", device, dtype, 64, 16)
name = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
memory = torch.cuda.mem_get_info() if cuda else None
choices = [list(choice) for choice in chosen.choices]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "device": device.type, "name": name,
                  "memory": memory, "choices": choices}))
"""


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    detail: str


Check = Callable[[], Iterable[Finding]]


def groups(
    server: str | None, worker: str | None, model: str | None, device: bool
) -> list[tuple[str, Check]]:
    """Titles and checks, in the order to print them."""
    found: list[tuple[str, Check]] = [
        ("versions", versions),
        ("environment", environment),
        ("model", lambda: model_folder(model)),
        ("ports", ports),
        ("services", lambda: services(server, worker)),
    ]
    if device:
        found.insert(1, ("device and kernels", device_and_kernels))
    return found


def versions() -> Iterator[Finding]:
    """Python and the packages of each part."""
    new_enough = sys.version_info >= (3, 11)
    yield Finding(
        Level.OK if new_enough else Level.FAIL,
        "python",
        f"{platform.python_version()} at {_near(sys.prefix)}",
    )
    for extra, names in (("", _CLIENT), ("scheduler", _SCHEDULER), ("worker", _WORKER)):
        for name in names:
            yield _package(name, extra)


def _near(path: str) -> str:
    """The path, from here when it lies below."""
    place = Path(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else path


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(Level.OK, name, metadata.version(name))
    except metadata.PackageNotFoundError:
        if name in _MAY_LACK:
            return Finding(Level.NOTE, name, f"not installed: {_MAY_LACK[name]}")
        needed = f"octavo[{extra}]" if extra else "octavo"
        return Finding(Level.FAIL, name, f"not installed; pip install '{needed}'")


def device_and_kernels() -> Iterator[Finding]:
    """The device a worker would take and the kernels it would choose, asked of a process of its own."""
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(Level.FAIL, "device", f"torch did not answer within {_PROBE_SECONDS} s")
        return
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    if done.returncode != 0:
        yield Finding(Level.FAIL, "device", f"torch or paged_kernels cannot be used: {lines[-1]}")
        return
    said = json.loads(done.stdout.strip().splitlines()[-1])
    build = f"CUDA {said['cuda']}" if said["cuda"] else "a build without CUDA"
    yield Finding(Level.OK, "device", f"{said['device']}, {said['name']}; torch {said['torch']}, {build}")
    if said["memory"]:
        free, total = (value / 2**30 for value in said["memory"])
        yield Finding(Level.OK, "device memory", f"{free:.1f} GiB free of {total:.1f} GiB")
    for operation, backend, why in said["choices"]:
        level = Level.WARN if why.startswith("fallback") else Level.OK
        yield Finding(level, operation, f"{backend}: {why}")


def environment() -> Iterator[Finding]:
    """OCTAVO_* names that nothing reads: each is a misspelling that a service would refuse."""
    unknown = unknown_names(os.environ)
    for name in unknown:
        yield Finding(Level.FAIL, name, "no program of Octavo reads this name; the services refuse to start")
    known = sorted(name for name in os.environ if name.startswith("OCTAVO_") and name not in unknown)
    yield Finding(Level.OK, "OCTAVO_* names", ", ".join(known) or "none is set")


def model_folder(given: str | None) -> Iterator[Finding]:
    """Whether a model is there to serve."""
    try:
        path = find_model(given)
    except OctavoError as error:
        yield Finding(Level.FAIL if given else Level.NOTE, "model", error.message)
        return
    missing = [name for name in ("tokenizer.json",) if path.is_dir() and not (path / name).is_file()]
    if missing:
        yield Finding(Level.FAIL, "model", f"{path} lacks {', '.join(missing)}")
    else:
        yield Finding(Level.OK, "model", str(path))


def ports() -> Iterator[Finding]:
    """Whether the default ports are free on this machine."""
    for port, use in _PORTS:
        taken = _taken(port)
        detail = f"in use ({use}); it may be Octavo itself, see services" if taken else f"free ({use})"
        yield Finding(Level.NOTE if taken else Level.OK, f"port {port}", detail)


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def services(server: str | None, worker: str | None) -> Iterator[Finding]:
    """What a running scheduler and a running worker say about themselves."""
    with Client(server, timeout=3.0) as client:
        missing = client.readiness()
        if missing:
            yield Finding(Level.NOTE, "scheduler", f"{client.target}: {missing}")
        else:
            stats = client.stats()
            detail = f"{client.target}: ready, {stats.num_blocks} blocks of {stats.block_size} tokens"
            yield Finding(Level.OK, "scheduler", detail)
    addresses = [worker] if worker else [*_served_sockets(), "127.0.0.1:7451"]
    answered = False
    for address in addresses:
        for finding in _ask_worker(address, named=bool(worker)):
            answered = True
            yield finding
    if not answered:
        yield Finding(Level.NOTE, "worker", "none is running here")


def _served_sockets() -> list[str]:
    """Sockets of workers under `octavo serve`, newest first."""
    places = {os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"}
    found = [path for place in places if place for path in Path(place).glob("octavo-*/worker.sock")]
    return [f"unix:{path}" for path in sorted(set(found), reverse=True)]


def _ask_worker(address: str, named: bool) -> Iterator[Finding]:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            said: worker_pb2.GetCapacityResponse = stub.GetCapacity(
                worker_pb2.GetCapacityRequest(), timeout=3.0
            )
        except grpc.RpcError as error:
            if named:
                yield Finding(Level.FAIL, "worker", from_call(error, address).message)
            return
    yield Finding(Level.OK, "worker", f"{address}: {said.model_id} on {said.device}, {said.kv_dtype} KV pool")
    pool, weights = said.memory.pool_bytes / 2**20, said.memory.weight_bytes / 2**20
    size = (
        f"{said.num_blocks} blocks of {said.block_size} tokens: {pool:,.0f} MiB; weights {weights:,.0f} MiB"
    )
    yield Finding(Level.OK, "worker pool", size)
    for choice in said.kernels:
        yield Finding(Level.OK, f"worker {choice.op}", f"{choice.backend}: {choice.why}")
