"""Binds a gRPC server to its address, and says why where it cannot: gRPC itself says only that it could not,
and takes a Unix socket's path from the server that listens there.

Owns the questions to the system around it. Invariant: an address that cannot be had is as it was before.
"""

import errno
import socket
from pathlib import Path

import grpc


def bind(server: grpc.aio.Server, address: str) -> int:
    """The port that the server got; of a Unix socket any number. Raises OSError, whose text follows the
    setting's name and value.
    """
    if _is_listened_on(address):
        raise OSError("cannot be bound: a server listens there")
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(why_unbound(address)) from error


def why_unbound(address: str) -> str:
    """What keeps an address, host:port or unix:/path, from being bound."""
    try:
        _try_to_bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "cannot be bound; is it taken?"
        return f"cannot be bound: {error.strerror or error}"
    return "cannot be bound"


def _is_listened_on(address: str) -> bool:
    """Whether a Unix socket has a server. One that a killed server left has none, and is free."""
    scheme, _, path = address.partition(":")
    if scheme != "unix":
        return False
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except BlockingIOError:
            return True  # so many wait there that no more fit
        except OSError:
            return False
    return True


def _try_to_bind(address: str) -> None:
    """Binds and lets go again. Raises OSError."""
    scheme, _, path = address.partition(":")
    if scheme in ("unix", "unix-abstract"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path if scheme == "unix" else f"\0{path}")
        if scheme == "unix":
            Path(path).unlink(missing_ok=True)
        return
    host, _, port = address.rpartition(":")
    family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
