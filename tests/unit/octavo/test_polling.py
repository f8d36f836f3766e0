"""How gRPC waits for its sockets: chosen before it is imported, in words that it knows."""

import os
import subprocess
import sys

import pytest

from octavo.polling import POLL_WHERE_WAITING, VARIABLE

CALL = """
import grpc
channel = grpc.insecure_channel("unix:/nowhere")
try:
    channel.unary_unary("/a/B")(b"", timeout=60)
except grpc.RpcError as error:
    print(error.code().name)
"""
ORDER = """
import sys, {module}
names = list(sys.modules)
print(names.index("octavo.polling") < names.index("grpc"))
"""


def run(code: str, **variables: str) -> tuple[str, str]:
    """What a new interpreter says: standard output and standard error."""
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_grpc_knows_the_experiments_by_these_names() -> None:
    said, complaint = run(CALL, **{VARIABLE: POLL_WHERE_WAITING})
    assert said == "UNAVAILABLE"
    assert "experiment" not in complaint
    assert "Unknown experiment" in run(CALL, **{VARIABLE: "-no_such_thing"})[1]  # it would have said so


@pytest.mark.parametrize(
    "module",
    [
        "gpu_worker.__main__, gpu_worker.life",
        "scheduler_svc.__main__, scheduler_svc.app",
        "gateway.__main__, gateway.server",
    ],
)
def test_a_service_chooses_before_grpc_looks(module: str) -> None:
    assert run(ORDER.format(module=module)) == ("True", "")


def test_an_operators_own_choice_stands() -> None:
    show = "import os, octavo.polling; print(os.environ['GRPC_EXPERIMENTS'])"
    assert run(show)[0] == POLL_WHERE_WAITING
    assert run(show, **{VARIABLE: "tcp_frame_size_tuning"})[0] == "tcp_frame_size_tuning"
