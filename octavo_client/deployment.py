"""What `octavo doctor` asks of a running deployment: scheduler, worker, gateway, Prometheus.

Owns the questions and the plain words for what is wrong; prints nothing. Invariant: a check never raises, and
what a user named and does not answer is a FAIL with what to look at.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from octavo.logging import epoch_text
from octavo.transport import unix_address
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from octavo_client.client import Client
from octavo_client.errors import OctavoError, from_call
from octavo_client.finding import Finding, Level
from octavo_client.views import PoolStats

_SECONDS = 3.0
_METRICS_PORTS = {"9450": "7450", "9451": "7451"}
_JOBS = ("scheduler", "worker", "gateway")


def services(server: str | None, worker: str | None) -> Iterator[Finding]:
    """What a running scheduler and worker say about themselves, and whether they belong together."""
    stats: PoolStats | None = None
    named = bool(server or os.environ.get("OCTAVO_SERVER"))
    with Client(server, timeout=_SECONDS) as client:
        missing = client.readiness()
        try:
            stats = None if missing and not _is_up(missing) else client.stats()
        except OctavoError as error:
            missing = missing or error.message
        yield _scheduler(client.target, missing, stats, named)
    addresses = [worker] if worker else [*_served_sockets(), "127.0.0.1:7451"]
    epochs, silent = [], ""
    for address in addresses:
        said, wrong = _capacity(address)
        if said is not None:
            epochs.append((address, epoch_text(said.worker_epoch)))
            yield from _worker(address, said)
        elif worker:
            yield Finding(Level.FAIL, "worker", wrong)
        else:
            silent = wrong
    if not epochs and not worker:
        advice = "name one elsewhere with --worker"
        yield Finding(Level.NOTE, "worker", f"{silent}; {advice}", ", ".join(addresses))
    if stats is not None and stats.worker_ready and epochs:
        yield _together(stats.worker_epoch, epochs, bool(worker))


def _is_up(missing: str) -> bool:
    return "no worker" in missing


def _scheduler(target: str, missing: str, stats: PoolStats | None, named: bool) -> Finding:
    if not missing and stats is not None:
        detail = f"{target}: ready, {stats.num_blocks} blocks of {stats.block_size} tokens"
        return Finding(Level.OK, "scheduler", detail)
    port = target.rpartition(":")[2]
    if _is_up(missing):
        why = (
            "the scheduler is up, but no worker is ready: is one running, is it still loading its model, and "
            "does the scheduler's --worker name its address? The scheduler's log says why it cannot connect"
        )
        return Finding(Level.WARN, "scheduler", f"{target}: {why}")
    if port in _METRICS_PORTS:
        why = f"{port} is a port of metrics, not of gRPC; requests go to {_METRICS_PORTS[port]}"
    else:
        why = (
            f"{missing}: is it started, is this its --listen address, and is a firewall or container between?"
        )
    if named:
        return Finding(Level.FAIL, "scheduler", f"{target}: {why}")
    return Finding(Level.NOTE, "scheduler", f"{target}: {why}", target)


def _served_sockets() -> list[str]:
    """Sockets of workers under `octavo serve`, newest first."""
    places = {os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"}
    found = [path for place in places if place for path in Path(place).glob("octavo-*/worker.sock")]
    return [unix_address(path) for path in sorted(set(found), reverse=True)]


def _capacity(address: str) -> tuple[worker_pb2.GetCapacityResponse | None, str]:
    """What a worker says of itself, or why it does not."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            said: worker_pb2.GetCapacityResponse = stub.GetCapacity(
                worker_pb2.GetCapacityRequest(), timeout=_SECONDS
            )
        except grpc.RpcError as error:
            failed = from_call(error, address)
            if failed.reason == "LOADING":
                return None, f"{address}: it is up and loads its model; wait, or read its log"
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return (
                    None,
                    f"{address}: something else than a worker answers there; is it the scheduler's port?",
                )
            return None, (
                f"{address}: nobody answers ({failed.message.partition(';')[0]}): is the worker running, is "
                "this its --listen address, and may this machine reach it?"
            )
    return said, ""


def _worker(address: str, said: worker_pb2.GetCapacityResponse) -> Iterator[Finding]:
    yield Finding(Level.OK, "worker", f"{address}: {said.model_id} on {said.device}, {said.kv_dtype} KV pool")
    pool, weights = said.memory.pool_bytes / 2**20, said.memory.weight_bytes / 2**20
    size = (
        f"{said.num_blocks} blocks of {said.block_size} tokens: {pool:,.0f} MiB; weights {weights:,.0f} MiB"
    )
    yield Finding(Level.OK, "worker pool", size)
    for choice in said.kernels:
        yield kernel(f"worker {choice.op}", choice.backend, choice.why)


def kernel(what: str, backend: str, why: str) -> Finding:
    """Who runs a kernel; a warning where a faster one could."""
    if "no C++ compiler" in why:
        advice = (
            "the CPU kernels cannot be compiled: install g++, or set CXX; until then PyTorch's run, slower"
        )
        return Finding(Level.WARN, what, f"{backend}: {advice}")
    return Finding(Level.WARN if why.startswith("fallback") else Level.OK, what, f"{backend}: {why}")


def _together(connected: str, epochs: list[tuple[str, str]], named: bool) -> Finding:
    """Whether the scheduler's worker is among those that answered."""
    mine = [address for address, epoch in epochs if epoch == connected]
    if mine:
        return Finding(Level.OK, "epoch", f"{connected}: the scheduler works with the worker at {mine[0]}")
    others = ", ".join(f"{address} has {epoch}" for address, epoch in epochs)
    why = f"the scheduler works with epoch {connected}, {others}: its --worker names another worker"
    return Finding(Level.FAIL if named else Level.NOTE, "epoch", why)


def gateway(url: str) -> Iterator[Finding]:
    """Whether an HTTP gateway is ready."""
    status, body = _get(f"{url.rstrip('/')}/health")
    if status == 200:
        yield Finding(Level.OK, "gateway", f"{url}: ready")
    elif status:
        message = (
            body.get("error", {}).get("message", f"status {status}") if isinstance(body, dict) else status
        )
        yield Finding(Level.FAIL, "gateway", f"{url}: it is up, but not ready: {message}")
    else:
        yield Finding(
            Level.FAIL, "gateway", f"{url}: {body}: is it started, and is this its --listen address?"
        )


def prometheus(url: str) -> Iterator[Finding]:
    """Whether a Prometheus scrapes each service, and with success."""
    status, body = _get(f"{url.rstrip('/')}/api/v1/targets?state=active")
    if status != 200 or not isinstance(body, dict) or body.get("status") != "success":
        detail = f"{url}: {body if not status else f'status {status}'}: this is no address of Prometheus"
        yield Finding(Level.FAIL, "prometheus", detail)
        return
    targets: list[dict[str, Any]] = body["data"]["activeTargets"]
    for job in _JOBS:
        mine = [target for target in targets if target["labels"].get("job") == job]
        level = Level.NOTE if job == "gateway" else Level.FAIL
        if not mine:
            yield Finding(
                level, f"scrape {job}", f"no job {job!r}: see deploy/prometheus.yml for what to scrape"
            )
        for target in mine:
            if target["health"] == "up":
                yield Finding(Level.OK, f"scrape {job}", f"{target['scrapeUrl']}: up")
            else:
                why = target.get("lastError") or "not scraped yet"
                yield Finding(
                    level, f"scrape {job}", f"{target['scrapeUrl']}: {why}: --metrics-host and port?"
                )
    status, body = _get(f"{url.rstrip('/')}/api/v1/query?query={quote('octavo_worker_session_up')}")
    if status == 200 and isinstance(body, dict) and not body["data"]["result"]:
        detail = "it has no octavo_worker_session_up: what it scrapes as scheduler is something else"
        yield Finding(Level.FAIL, "scrape scheduler", detail)


def _get(url: str) -> tuple[int, Any]:
    """(status, JSON or text); (0, why) when nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_SECONDS) as reply:
            return int(reply.status), _parsed(reply.read(1 << 20))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _parsed(error.read(1 << 16))
    except (OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body[:200].decode("utf-8", "replace")
