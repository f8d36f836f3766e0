"""The container health check against a real gRPC server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octavo.healthcheck import main


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    answers = health.HealthServicer()
    answers.set("ready", health_pb2.HealthCheckResponse.SERVING)
    answers.set("loading", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("arguments", [[], ["ready"]])
def test_serving_is_status_0(address: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([address, *arguments]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("service", "said"), [("loading", "NOT_SERVING"), ("nobody", "NOT_FOUND")])
def test_anything_else_is_status_1_and_one_line(
    address: str, service: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([address, service]) == 1
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_nobody_there_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unix:/nowhere/at-all.sock", "--timeout", "2"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err
