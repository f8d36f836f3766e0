"""Tries docker-compose.yml on a real Docker engine: `python -m deploy.compose_test`, or `make compose-test`.

Owns the story (build, up, generate, look, kill, look, stop) and what must be true at each point; knows no
service from within. Invariant: whatever happens, the project's containers, networks and volumes are gone at
the end, and a failure is one line on stderr (the containers' logs are under build/).
"""

import argparse
import contextlib
import itertools
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from deploy.dashboards.every import DASHBOARDS, panels
from deploy.engine import ROOT, Compose, EngineError, added_bytes, has_image, run
from deploy.http_door import HttpDoor, HttpRefusedError
from deploy.probes import PROMPT, STREAM_SECONDS, Failed, answer, get_json, once, require, say, wait_for
from octavo_client import Client
from octavo_client.errors import OctavoError

SERVICES = ("model", "worker", "scheduler", "gateway")
SCRAPED = ("scheduler", "worker", "gateway")
SCHEDULER_MB = 150
"""The scheduler's image adds less to its base."""
ANSWER_TOKENS = 48
KILL_AFTER = 8
BUILD_SECONDS, READY_SECONDS = 2400.0, 400.0
# The worker's own process; PID 1 is the container's init, which ends with it.
KILL = (
    "import psutil\n"
    "for process in psutil.process_iter():\n"
    "    if process.pid != 1 and 'gpu_worker' in process.cmdline():\n"
    "        process.kill()\n"
)


class Story:
    """One run of the test."""

    def __init__(self, compose: Compose, key: str) -> None:
        self._compose = compose
        base = f"http://127.0.0.1:{compose.ports['GATEWAY_PORT']}"
        self._http = HttpDoor(base, key, STREAM_SECONDS)
        self._stranger = HttpDoor(base, "", STREAM_SECONDS)
        self._client = Client(f"127.0.0.1:{compose.ports['SCHEDULER_PORT']}")
        self._services = list(SERVICES)
        self._calm: tuple[int, ...] = ()
        self._text = ""

    def run(self, build: bool) -> None:
        steps = (self.sizes, self.up, self.hardened, self.generate, self.kill, self.metrics, self.stop)
        for step in (self.build, *steps) if build else steps:
            began = time.monotonic()
            done = step()
            say(f"{done} ({time.monotonic() - began:.0f} s)")

    def build(self) -> str:
        self._compose("build", *self._compose.names(SERVICES), seconds=BUILD_SECONDS)
        return "images are built"

    def sizes(self) -> str:
        images = self._compose.images()
        told = []
        for service in SERVICES[1:]:
            text = (ROOT / f"deploy/{service}.Dockerfile").read_text(encoding="utf-8")
            base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.MULTILINE)[0]
            if not has_image(base, pull_seconds=300.0):
                return f"NOT TRIED: what images add, for the engine has no {base} and cannot get it"
            added = added_bytes(images[self._compose.name(service)], base) / 1e6
            told.append(f"{service} {added:.0f} MB")
            require(service != "scheduler" or added < SCHEDULER_MB, f"scheduler: adds {added:.0f} MB")
        for service in ("scheduler", "gateway"):
            probe = "import importlib.util as u; print(u.find_spec('torch'))"
            found = self._python(images, service, probe)
            require(found.strip() == "None", f"{service}: its image has torch")
        for service in SERVICES[1:]:
            self._python(images, service, "import opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        return f"added to the base: {', '.join(told)}; no torch in scheduler and gateway"

    def _python(self, images: dict[str, str], service: str, code: str) -> str:
        image = images[self._compose.name(service)]
        return run(["docker", "run", "--rm", "--entrypoint", "python", image, "-c", code])

    def up(self) -> str:
        if not self._compose.has_device:
            say("NOT TRIED: the GPU, for the engine has no nvidia runtime; the worker runs on the CPU")
        images = self._compose.images()
        for service in ("prometheus", "grafana"):
            if has_image(images[service], pull_seconds=120.0):
                self._services.append(service)
            else:
                say(f"NOT TRIED: {service}, for the engine has no {images[service]} and cannot get it")
        self._compose("up", "-d", *self._compose.names(self._services), seconds=READY_SECONDS)
        for service in self._services[1:]:
            wait_for(service, lambda service=service: self._unhealthy(service), READY_SECONDS)  # type: ignore[misc]
        require(self._compose.inspect("model")["State"]["ExitCode"] == 0, "model: did not end with status 0")
        return f"healthy: {', '.join(self._services[1:])}"

    def _unhealthy(self, service: str) -> str:
        state = self._compose.inspect(service)["State"]
        status = state.get("Health", {}).get("Status", "without a health check")
        if state["Status"] != "running":
            return f"{state['Status']} with status {state['ExitCode']}"
        return "" if status == "healthy" else str(status)

    def hardened(self) -> str:
        for service in self._services:
            account = self._compose.inspect(service)
            config, host = account["Config"], account["HostConfig"]
            require(config["User"].split(":")[0] not in ("", "0", "root"), f"{service}: runs as root")
            require(host["ReadonlyRootfs"], f"{service}: its root file system can be written")
            require(host["CapDrop"] == ["ALL"] and not host["CapAdd"], f"{service}: holds capabilities")
            require(
                any(option.startswith("no-new-privileges") for option in host["SecurityOpt"]),
                f"{service}: may gain privileges",
            )
            require(host["Memory"] > 0 and host["PidsLimit"] > 0, f"{service}: has no limits")
            bound = itertools.chain.from_iterable((host["PortBindings"] or {}).values())
            require(all(b["HostIp"] == "127.0.0.1" for b in bound), f"{service}: published beyond 127.0.0.1")
        return "non-root, read-only, no capabilities, limits, ports on 127.0.0.1"

    def generate(self) -> str:
        self._client.wait_ready(60.0)
        if self._compose.profile == "cpu" or not self._compose.has_device:
            said = self._compose("logs", "--no-color", self._compose.name("worker"))
            require("compiled ahead for" in said, "worker: runs without the compiled CPU kernels")
        self._calm = answer(self._client, ANSWER_TOKENS)
        text = self._client.detokenize(self._calm).strip().splitlines()[0]
        require("Paris" in text, f"an odd answer: {text!r}")
        self._text = self._client.detokenize(self._calm)
        require(
            self._http.completion(PROMPT, ANSWER_TOKENS) == self._text, "HTTP gives another text than gRPC"
        )
        require(self._http.streamed(PROMPT, ANSWER_TOKENS) == self._text, "an HTTP stream gives another text")
        try:
            self._stranger.completion(PROMPT, 1)
        except HttpRefusedError as error:
            require(error.status == 401, f"without an API key: {error}")
        else:
            raise Failed("the gateway answers without an API key")
        return f"generated {len(self._calm)} tokens over gRPC and HTTP, 401 without a key: {text!r}"

    def kill(self) -> str:
        def kill() -> None:
            with contextlib.suppress(EngineError):  # the command dies with its container
                self._compose("exec", "-T", self._compose.name("worker"), "python", "-c", KILL)

        with ThreadPoolExecutor(1) as beside:
            over_http = beside.submit(self._http.streamed, PROMPT, ANSWER_TOKENS)
            tokens = answer(self._client, ANSWER_TOKENS, once(KILL_AFTER, kill))
            require(tokens == self._calm, "the stream over a killed worker differs from the calm one")
            require(over_http.result() == self._text, "the HTTP stream over a killed worker differs")
        wait_for("worker", lambda: self._unhealthy("worker"), READY_SECONDS)
        restarts = self._compose.inspect("worker")["RestartCount"]
        require(restarts == 1, f"the worker was started again {restarts} times, not once")
        return "the worker was killed and is back; its streams, gRPC and HTTP, went on with the same tokens"

    def metrics(self) -> str:
        if "prometheus" not in self._services:
            return "metrics not looked at: no Prometheus"
        for job in SCRAPED:
            wait_for(job, lambda job=job: self._down(job), 60.0)  # type: ignore[misc]
        answer(self._client, ANSWER_TOKENS)
        queries = [query for panel in panels() for _, query in panel.queries]
        for query in queries:
            wait_for("a query of the dashboard", lambda query=query: self._empty(query), 60.0)  # type: ignore[misc]
        if "grafana" in self._services:
            self._provisioned()
        return f"Prometheus has {', '.join(SCRAPED)}; {len(queries)} queries of the dashboards have samples"

    def _query(self, query: str) -> list[dict[str, Any]]:
        expression = urllib.parse.quote(query.replace("$__rate_interval", "2m"))
        found = get_json(
            f"http://127.0.0.1:{self._compose.ports['PROMETHEUS_PORT']}/api/v1/query?query={expression}"
        )
        return list(found["data"]["result"])

    def _down(self, job: str) -> str:
        values = [sample["value"][1] for sample in self._query(f'up{{job="{job}"}}')]
        return "" if values == ["1"] else f"up is {values}"

    def _empty(self, query: str) -> str:
        values = [sample["value"][1] for sample in self._query(query)]
        return "" if values else f"{query}: no sample"  # NaN: nothing to take a quantile of yet

    def _provisioned(self) -> None:
        base = f"http://127.0.0.1:{self._compose.ports['GRAFANA_PORT']}"
        for wanted in DASHBOARDS:
            board = get_json(f"{base}/api/dashboards/uid/{wanted.uid}")["dashboard"]
            require(
                len(board["panels"]) == len(wanted.panels), f"Grafana's {wanted.uid} is not the repository's"
            )
        found = get_json(f"{base}/api/datasources/proxy/uid/prometheus/api/v1/query?query=up")
        require(found["status"] == "success", "Grafana does not reach Prometheus")

    def stop(self) -> str:
        errors: list[str] = []

        def stop() -> None:
            try:
                self._compose("stop", *self._compose.names(["gateway", "scheduler", "worker"]))
            except EngineError as error:
                errors.append(str(error))

        stopping = threading.Thread(target=stop)
        tokens = answer(self._client, ANSWER_TOKENS, once(KILL_AFTER, stopping.start))
        stopping.join()
        require(not errors, "; ".join(errors))
        require(tokens == self._calm, "the stream over a stop differs from the calm one")
        for service in SERVICES[1:]:
            status = self._compose.inspect(service)["State"]["ExitCode"]
            require(status == 0, f"{service}: ended with status {status} when it was stopped")
        return "stopped during a stream: it was finished first, all ended with status 0"


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep_logs(compose: Compose) -> str:
    file = ROOT / "build" / "compose-test.log"
    file.parent.mkdir(exist_ok=True)
    try:
        file.write_text(compose("logs", "--no-color", "--tail", "500"), encoding="utf-8")
    except EngineError as error:
        return f"no logs: {error}"
    return f"logs: {file.relative_to(ROOT)}"


def main() -> int:
    """0: all of it holds; 1: one line on stderr says what does not."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose_test", description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="take the images as they are")
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu", help="%(default)s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="octavo-compose-") as folder:
        Path(folder).chmod(0o755)
        return _try(Path(folder) / "api-keys", options.profile, build=not options.no_build)


def _try(keys: Path, profile: str, *, build: bool) -> int:
    key = secrets.token_hex(16)
    keys.write_text(f"{key}\n", encoding="utf-8")
    keys.chmod(0o644)  # the container's user reads it
    try:
        compose = Compose(profile, {"API_KEYS_FILE": str(keys)})
    except EngineError as error:
        sys.stderr.write(f"compose-test: FAILED: {error}\n")
        return 1
    try:
        Story(compose, key).run(build)
    except (Failed, EngineError, OctavoError, HttpRefusedError, OSError, KeyboardInterrupt) as error:
        reason = str(error) or type(error).__name__
        sys.stderr.write(f"compose-test: FAILED: {reason} ({_keep_logs(compose)})\n")
        return 1
    finally:
        compose("down", "--volumes", "--remove-orphans")
    say("passed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (EngineError, subprocess.SubprocessError) as failure:
        sys.exit(f"compose-test: FAILED to clean up: {failure}")
