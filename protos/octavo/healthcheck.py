"""Asks a server's health: `python -m octavo.healthcheck ADDR [SERVICE]`, for container health checks.

ADDR is host:port or unix:/path of a gRPC server, or the http:// URL of a health endpoint. Owns the question
and the exit status; knows no service's methods. Invariant: status 0 only after SERVING, or 200, was answered,
and every other end says why in one line.
"""

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.command_line import Parser, real
from octavo.transport import require_address


def ask(address: str, service: str, timeout: float) -> str:
    """What is wrong, in one line; empty when the service is SERVING. timeout in seconds."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return f"{address}: {service or 'the server'} is {status}"


def ask_http(url: str, timeout: float) -> str:
    """What is wrong, in one line; empty when 200 is answered. timeout in seconds; no proxy is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            status = int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(200).decode("utf-8", "replace")
        return f"{url}: {error.code}: {' '.join(said.split())}"
    except OSError as error:
        return f"{url}: {getattr(error, 'reason', error)}"
    return "" if status == 200 else f"{url}: {status}"


def main(argv: Sequence[str] | None = None) -> int:
    """0: SERVING or 200; 1: anything else, said on stderr; 2: bad arguments."""
    parser = Parser(prog="python -m octavo.healthcheck", description=__doc__)
    parser.add_argument("address", help="host:port, unix:/path, or http://host:port/path")
    parser.add_argument("service", nargs="?", default="", help="full name; left out: the process is alive")
    parser.add_argument(
        "--timeout", type=real(0, above=True), default=5.0, help="seconds (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if options.address.startswith("http://"):
        if options.service:
            parser.error(f"service {options.service}: is only for a gRPC server")
        wrong = ask_http(options.address, options.timeout)
    else:
        try:
            require_address(options.address)
        except ValueError as error:
            parser.error(f"address {options.address}: {error}")
        wrong = ask(options.address, options.service, options.timeout)
    if wrong:
        sys.stderr.write(wrong + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
