"""A Docker engine and Compose, as the container test uses them.

Owns the commands, their time limits and the project's environment; knows no service's meaning. Invariant:
every command is bounded, and one that fails raises EngineError with one line.
"""

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "octavo-compose-test"
SECONDS = 120.0
PORTS = ("SCHEDULER_PORT", "GATEWAY_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
FILES = os.pathsep.join(("docker-compose.yml", "deploy/api-keys.yml"))
PROFILED = ("model", "worker", "scheduler", "gateway")
"""Services that each profile has under its own name."""
RESOLVED = ROOT / "build" / "compose-test.yml"


class EngineError(Exception):
    """A command failed, ran out of time, or is not there."""


def run(command: Sequence[str], seconds: float = SECONDS, env: Mapping[str, str] | None = None) -> str:
    """stdout of a command. Raises EngineError with the last line that the command said."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise EngineError(f"{command[0]}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{_short(command)}: not done after {seconds:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise EngineError(f"{_short(command)}: status {done.returncode}: {said[-1]}")
    return done.stdout


def _short(command: Sequence[str]) -> str:
    return " ".join(word if len(word) <= 60 else "..." for word in command)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_image(image: str, pull_seconds: float) -> bool:
    """Whether the engine has an image, or gets it in time."""
    try:
        run(["docker", "image", "inspect", image])
    except EngineError:
        try:
            run(["docker", "pull", "--quiet", image], pull_seconds)
        except EngineError:
            return False
    return True


def added_bytes(image: str, base: str) -> int:
    """How much larger an image is than the one it is built on, which the engine must have."""
    sizes = run(["docker", "image", "inspect", "--format", "{{.Size}}", image, base]).split()
    return int(sizes[0]) - int(sizes[1])


def without_device(resolved: str) -> str:
    """The resolved files with no device reserved and the worker on the CPU: all of a profile but its GPU."""
    kept, skipping = [], False
    for line in resolved.splitlines():
        skipping = line == "    deploy:" or (skipping and line.startswith("     "))
        if not skipping:
            kept.append(line.replace("OCTAVO_DEVICE: cuda", "OCTAVO_DEVICE: cpu"))
    return "\n".join(kept) + "\n"


class Compose:
    """The repository's docker-compose.yml under a project name of its own, on ports of its own.

    has_device: whether the worker has the device that its profile names.
    """

    def __init__(self, profile: str, more: Mapping[str, str]) -> None:
        """more: variables of the files. Raises EngineError when no engine answers or there is no Compose."""
        runtimes = run(["docker", "info", "--format", "{{json .Runtimes}}"])
        self.profile = profile
        self.has_device = profile == "cpu" or '"nvidia"' in runtimes
        self.ports = {name: free_port() for name in PORTS}
        chosen = {"COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_PROFILES": profile, "COMPOSE_FILE": FILES, **more}
        self._env = os.environ | chosen | {name: str(port) for name, port in self.ports.items()}
        self._command = self._find()
        if not self.has_device:
            RESOLVED.parent.mkdir(exist_ok=True)
            RESOLVED.write_text(without_device(self("config")), encoding="utf-8")
            self._env["COMPOSE_FILE"] = str(RESOLVED)

    def name(self, service: str) -> str:
        """What the profile calls a service."""
        return f"{service}-gpu" if self.profile == "gpu" and service in PROFILED else service

    def names(self, services: Sequence[str]) -> list[str]:
        return [self.name(service) for service in services]

    def _find(self) -> list[str]:
        """`docker compose`, else the older `docker-compose`."""
        try:
            run(["docker", "compose", "version"])
        except EngineError:
            run(["docker-compose", "version"])
            return ["docker-compose"]
        return ["docker", "compose"]

    def __call__(self, *arguments: str, seconds: float = SECONDS) -> str:
        """stdout of a Compose command."""
        return run([*self._command, *arguments], seconds, self._env)

    def images(self) -> dict[str, str]:
        """Image of each service by the profile's name for it, out of the YAML that `config` writes."""
        found: dict[str, str] = {}
        section = service = ""
        for line in self("config").splitlines():
            if line and not line.startswith(" "):
                section = line.rstrip(":")
            elif section == "services" and line.startswith("  ") and not line.startswith("   "):
                service = line.strip().rstrip(":")
            elif section == "services" and line.startswith("    image: "):
                found[service] = line.removeprefix("    image: ").strip()
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """The engine's account of a service's container, stopped ones too."""
        container = self("ps", "--all", "-q", self.name(service)).split()
        if not container:
            raise EngineError(f"{service}: no container")
        account: dict[str, Any] = json.loads(run(["docker", "inspect", container[0]]))[0]
        return account
