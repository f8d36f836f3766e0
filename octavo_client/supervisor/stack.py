"""What `octavo serve` runs: the command lines of a worker, a scheduler and perhaps a gateway.

Owns the flags of the services by name; imports none. Invariant: a worker that is started again listens on the
same socket.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo_client.errors import BadArgument, FailedPrecondition
from octavo_client.supervisor.child import LISTEN, ChildSpec

DEFAULT_MODEL = Path("models/SmolLM2-135M-Instruct")
DRAIN_SECONDS = 30.0
"""How long a scheduler lets running requests finish at SIGTERM by default."""
DEFAULT_METRICS_PORT = 9450
DEFAULT_WORKER_METRICS_PORT = 9451

WORKER_FLAGS = (
    "device",
    "dtype",
    "kv-cache-dtype",
    "num-blocks",
    "block-size",
    "gpu-memory-utilization",
    "max-num-batched-tokens",
    "max-num-seqs",
    "max-model-len",
    "cuda-graphs",
    "kernel-backend",
    "attention-backend",
    "model-impl",
    "quantize",
    "threads",
    "load-format",
    "num-layers",
    "otlp-traces-endpoint",
)
SCHEDULER_FLAGS = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "depth",
    "hash-seed",
    "max-queue-requests",
    "check-invariants",
    "record",
    "generation-config",
    "otlp-traces-endpoint",
)
SCHEDULER_SWITCHES = ("no-prefix-cache",)
GATEWAY_FLAGS = ("api-key-file", "served-model-name", "otlp-traces-endpoint")


@dataclass(frozen=True)
class StackOptions:
    """values: flag name without dashes -> its text, handed to each service that knows the flag.

    http: the gateway's address; empty: no gateway.
    """

    model: Path
    listen: str = "127.0.0.1:7450"
    metrics_port: int = DEFAULT_METRICS_PORT
    worker_metrics_port: int = DEFAULT_WORKER_METRICS_PORT
    values: Mapping[str, str] = field(default_factory=dict)
    worker_args: Sequence[str] = ()
    scheduler_args: Sequence[str] = ()
    http: str = ""
    gateway_args: Sequence[str] = ()


def find_model(given: str | None) -> Path:
    """The model to serve: the one given, else OCTAVO_MODEL, else the demo model when it is there.

    When it is not there, raises an error that says how to make one: BadArgument where it was named, else
    FailedPrecondition.
    """
    variable = os.environ.get("OCTAVO_MODEL")
    path = Path(given or variable or DEFAULT_MODEL)
    name = f"{'--model' if given else 'OCTAVO_MODEL' if variable else 'the default model'} {path}"
    try:
        if path.is_file() or (path / "config.json").is_file():
            return path
        what = "has no config.json" if path.is_dir() else "does not exist"
    except OSError as error:
        raise BadArgument(f"{name}: {error.strerror}", field="model") from None
    advice = f"{what}; `python -m gpu_worker.models.prepare --out {DEFAULT_MODEL}` makes one"
    if given or variable:
        raise BadArgument(f"{name}: {advice}", field="model")
    raise FailedPrecondition(f"{name} {advice}", field="model")


def child_specs(options: StackOptions, socket: str) -> list[ChildSpec]:
    """The command lines in the order of start."""
    worker = [
        *("--model", str(options.model), "--listen", socket),
        *("--metrics-port", str(options.worker_metrics_port)),
        *_flags(options.values, WORKER_FLAGS),
        *options.worker_args,
    ]
    scheduler = [
        *("--model", str(options.model), "--worker", socket, "--listen", options.listen),
        *("--metrics-port", str(options.metrics_port)),
        *_flags(options.values, SCHEDULER_FLAGS),
        *[f"--{name}" for name in SCHEDULER_SWITCHES if name in options.values],
        *options.scheduler_args,
    ]
    specs = [_spec("worker", "gpu_worker", worker), _spec("scheduler", "scheduler_svc", scheduler)]
    if options.http:
        gateway = [
            *("--server", LISTEN, "--listen", options.http),
            *_flags(options.values, GATEWAY_FLAGS),
            *options.gateway_args,
        ]
        specs.append(_spec("gateway", "gateway", gateway, after="scheduler", listen=options.listen))
    return specs


def _spec(
    name: str, package: str, arguments: Sequence[str], *, after: str = "", listen: str = ""
) -> ChildSpec:
    """listen: what stands for LISTEN while the settings are only looked at."""
    python = [sys.executable, "-P", "-m"]
    looked_at = [word.replace(LISTEN, listen) for word in arguments]
    return ChildSpec(
        name,
        [*python, package, *arguments],
        after=after,
        check=[*python, f"{package}.config", *looked_at],
    )


def _flags(values: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [part for name in names if name in values for part in (f"--{name}", values[name])]
