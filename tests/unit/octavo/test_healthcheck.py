"""The container health check against a real gRPC server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octavo.healthcheck import main

PATIENT = ("--timeout", "60")
"""No answer here is one for being late."""


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
    assert main([address, *arguments, *PATIENT]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("service", "said"), [("loading", "NOT_SERVING"), ("nobody", "NOT_FOUND")])
def test_anything_else_is_status_1_and_one_line(
    address: str, service: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([address, service, *PATIENT]) == 1
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_nobody_there_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unix:/nowhere/at-all.sock", *PATIENT]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()
        self.wfile.write(b'{"error": {"message":\n "no worker"}}')

    def log_message(self, *_words: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Health) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_200_of_a_url_is_status_0(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{url}/health", *PATIENT]) == 0
    assert capsys.readouterr().err == ""


def test_another_status_of_a_url_is_status_1_and_says_what_was_answered(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{url}/other", *PATIENT]) == 1
    line = capsys.readouterr().err
    assert "503" in line
    assert "no worker" in line
    assert line.count("\n") == 1


def test_nobody_at_a_url_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:1/health", *PATIENT]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "address: is required"),
        (["nowhere"], "address nowhere: must be host:port"),
        (["127.0.0.1:1", "--timeout", "soon"], "--timeout soon: must be a number above 0"),
        (["http://127.0.0.1:1/health", "ready"], "service ready: is only for a gRPC server"),
    ],
)
def test_bad_arguments_are_status_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    line = capsys.readouterr().err
    assert (ended.value.code, line.count("\n")) == (2, 1)
    assert line.startswith(f"python -m octavo.healthcheck: {said}")
