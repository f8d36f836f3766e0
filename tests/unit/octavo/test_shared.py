"""Log lines, addresses, message bounds, handshake and environment names."""

import io
import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octavo import handshake, transport
from octavo.environment import unknown_names
from octavo.errors import FailedPrecondition, StaleEpoch
from octavo.logging import JsonFormatter, announce_serving, current_request_id, epoch_text
from octavo.worker.v1 import worker_pb2


def line(message: str = "hello %s", *args: object, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("here", logging.WARNING, "file", 1, message, args or ("world",), None)
    record.__dict__.update(extra)
    shown = JsonFormatter("scheduler").format(record)
    assert "\n" not in shown
    parsed: dict[str, object] = json.loads(shown)
    return parsed


def test_a_log_line_is_one_line_of_json_with_the_fields_of_its_context() -> None:
    shown = line(step_id=3, epoch="ab", unrelated="x")
    assert {key: shown[key] for key in ("level", "service", "logger", "message", "step_id", "epoch")} == {
        "level": "warning", "service": "scheduler", "logger": "here", "message": "hello world",
        "step_id": 3, "epoch": "ab",
    }  # fmt: skip
    assert "unrelated" not in shown
    assert "request_id" not in shown


def test_the_call_s_id_is_on_its_lines_and_an_explicit_one_wins() -> None:
    token = current_request_id.set("call")
    try:
        assert line()["request_id"] == "call"
        assert line(request_id="given")["request_id"] == "given"
    finally:
        current_request_id.reset(token)


def test_an_exception_is_a_field_of_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("here", logging.ERROR, "f", 1, "bad", (), sys.exc_info())
    shown = JsonFormatter("scheduler").format(record)
    assert "\n" not in shown
    assert "ValueError" in json.loads(shown)["exception"]


def test_a_warning_of_any_package_is_a_log_line() -> None:
    program = (
        "import warnings; from octavo.logging import configure; configure('worker'); warnings.warn('odd')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, text=True, check=True
    )
    shown = json.loads(done.stderr)
    assert (shown["level"], shown["service"], shown["logger"]) == ("warning", "worker", "py.warnings")
    assert "UserWarning: odd" in shown["message"]


def test_the_serving_line_is_alone_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    announce_serving("worker", "unix:/w.sock", 9451)
    assert json.loads(out.getvalue()) == {
        "event": "serving", "service": "worker", "listen": "unix:/w.sock", "metrics_port": 9451,
    }  # fmt: skip
    assert out.getvalue().count("\n") == 1


def test_epochs_are_written_in_16_digits() -> None:
    assert epoch_text(255) == "00000000000000ff"


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/x", True),
        ("unix-abstract:x", True), ("0.0.0.0:1", False), ("[::]:1", False), ("10.1.2.3:1", False),
        ("host.example:1", False), (":1", False),
    ],
)  # fmt: skip
def test_only_this_machine_reaches_a_private_address(address: str, private: bool) -> None:
    assert transport.is_private(address) == private
    transport.require_private(address, allow_insecure_bind=True)
    if not private:
        with pytest.raises(ValueError, match="allow-insecure-bind"):
            transport.require_private(address, allow_insecure_bind=False)


@pytest.mark.parametrize(
    "address",
    [
        "", "junk", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:99999", ":70000",
        "..:80", "a..b:80", "x" * 64 + ":80", "\udcff:80", "unix:/tmp/\udcff",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_and_not_bound_elsewhere(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be host:port with a port from 0 to 65535, or unix:/path"):
        transport.require_private(address, allow_insecure_bind=True)


@pytest.mark.parametrize("address", ["::1:80", "fe80::1%lo:80", "[::1:80", "::1]:80"])
def test_an_ipv6_address_without_brackets_is_none(address: str) -> None:
    with pytest.raises(ValueError, match=r"must have brackets around an IPv6 address, as \[::1\]:7450"):
        transport.require_address(address)


def test_the_bound_address_has_the_port_that_was_picked() -> None:
    assert transport.bound_address("127.0.0.1:0", 81) == "127.0.0.1:81"
    assert transport.bound_address("[::1]:0", 81) == "[::1]:81"
    assert transport.bound_address("unix:/x", 1) == "unix:/x"


def test_a24_pings_of_each_side_agree_with_what_the_other_accepts() -> None:
    client, server = dict(transport.client_options(1)), dict(transport.server_options(1))
    accepted = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] > accepted
    for side in (client, server):
        assert side["grpc.http2.ping_timeout_ms"] == side["grpc.keepalive_timeout_ms"]
        assert side["grpc.http2.max_pings_without_data"] == 0
        assert not any("min_recv_ping" in name for name in side), "a misspelling that gRPC silently ignores"


def test_a_channel_asks_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for this machine's own addresses, which http_proxy without no_proxy would send away."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY")
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=transport.client_options(1 << 20)) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    server.stop(None).wait()
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a24_bounds_grow_with_every_maximum_and_fit_grpc() -> None:
    bound = transport.plan_bytes_bound(2048, 256, 8192, 16, 1000)
    assert transport.plan_bytes_bound(4096, 256, 8192, 16, 1000) > bound
    assert transport.plan_bytes_bound(2048, 512, 8192, 16, 1000) > bound
    assert transport.plan_bytes_bound(2048, 256, 16384, 16, 1000) > bound
    assert transport.plan_bytes_bound(2048, 256, 8192, 8, 1000) > bound
    assert transport.plan_bytes_bound(2048, 256, 8192, 16, 2000) > bound
    assert transport.plan_bytes_bound(1 << 20, 65536, 1 << 20, 1, 1 << 20) == transport.LARGEST_MESSAGE
    assert transport.result_bytes_bound(256, 2048) > 4 * 2048


def capacity_hello(epoch: int = 5, version: int = handshake.PROTOCOL_VERSION) -> worker_pb2.SessionHello:
    return worker_pb2.SessionHello(session_id=3, worker_epoch=epoch, protocol_version=version)


def test_the_handshake_agrees_or_says_why_not() -> None:
    accepted = handshake.accept(handshake.hello(3, 5), 5)
    handshake.check_accepted(accepted, 3, 5)
    with pytest.raises(StaleEpoch):
        handshake.accept(capacity_hello(epoch=6), 5)
    with pytest.raises(FailedPrecondition, match="protocol_version"):
        handshake.accept(capacity_hello(version=99), 5)
    with pytest.raises(StaleEpoch):
        handshake.check_accepted(accepted, 4, 5)
    with pytest.raises(FailedPrecondition):
        handshake.check_accepted(worker_pb2.SessionAccepted(session_id=3, worker_epoch=5), 3, 5)


def test_random_ids_are_never_zero_and_differ() -> None:
    drawn = {handshake.random_id() for _ in range(100)}
    assert len(drawn) == 100
    assert all(0 < number < 1 << 64 for number in drawn)


def test_names_that_no_program_reads_are_found() -> None:
    environ = {
        "OCTAVO_DEPTH": "1",
        "OCTAVO_DEEPTH": "1",
        "OCTAVO_SERVICE_PORT": "1",
        "PATH": "",
        "OCTAVO_X": "",
    }
    assert unknown_names(environ) == ["OCTAVO_DEEPTH", "OCTAVO_X"]
    assert unknown_names(environ, ["OCTAVO_X"]) == ["OCTAVO_DEEPTH"]
