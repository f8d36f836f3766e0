"""The checks of `octavo doctor`, a group each.

Owns what is looked at and how grave it is; prints nothing, and asks torch only in another process.
Invariant: a check never raises; what it could not find out is a finding.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from octavo.environment import unknown_names
from octavo_client import deployment
from octavo_client.errors import OctavoError
from octavo_client.finding import Finding, Level
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


Check = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Asked:
    """What to look at: addresses of services, URLs of the gateway and of Prometheus, a model; None: the
    default, or nothing where there is none.
    """

    server: str | None = None
    worker: str | None = None
    gateway: str | None = None
    prometheus: str | None = None
    model: str | None = None
    device: bool = True


def groups(asked: Asked) -> list[tuple[str, Check]]:
    """Titles and checks, in the order to print them."""
    found: list[tuple[str, Check]] = [
        ("versions", versions),
        ("environment", environment),
        ("model", lambda: model_folder(asked.model)),
        ("ports", ports),
        ("services", lambda: deployment.services(asked.server, asked.worker)),
    ]
    gateway, prometheus = asked.gateway, asked.prometheus
    if gateway:
        found.append(("gateway", lambda: deployment.gateway(gateway)))
    if prometheus:
        found.append(("prometheus", lambda: deployment.prometheus(prometheus)))
    if asked.device:
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
        yield deployment.kernel(operation, backend, why)


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
    wrong = _unreadable(path)
    yield Finding(Level.FAIL, "model", wrong) if wrong else Finding(Level.OK, "model", str(path))


def _unreadable(path: Path) -> str:
    """Why no service could load a model, in plain words; empty when it looks whole."""
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read by this user; the services run as one who must be able to"
    if path.is_file():
        return "" if path.suffix == ".gguf" else f"{path} is a file, and no .gguf"
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            return f"{path} lacks {name}"
        if not os.access(path / name, os.R_OK):
            return f"{path / name} cannot be read by this user"
    try:
        json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"{path / 'config.json'} is no JSON: {error}"
    weights = [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    if not weights:
        return f"{path} has no weights: *.safetensors, or one *.gguf"
    closed = [one.name for one in weights if not os.access(one, os.R_OK)]
    return f"{path}: {', '.join(closed)} cannot be read by this user" if closed else ""


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
