"""Binds a gRPC server to its address, and says why where it cannot: gRPC itself says only that it could not,
takes a Unix socket's path from whoever listens there, and of a host's addresses those that are left.

Owns the questions to the system around it. Invariant: an address that cannot be had is as it was before.
"""

import errno
import socket
from pathlib import Path
from typing import Any

import grpc

from octavo.transport import unix_path

_TAKEN = "cannot be bound; is it taken?"
_SERVED = (errno.EAGAIN, errno.EPROTOTYPE)
"""What a Unix socket answers where so many wait that no more fit, or where it serves no streams."""


def bind(server: grpc.aio.Server, address: str) -> int:
    """The port that the server got; of a Unix socket any number. Raises OSError, whose text follows the
    setting's name and value.
    """
    if why := _why_held(address):
        raise OSError(why)
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(why_unbound(address)) from error


def why_unbound(address: str) -> str:
    """What keeps an address, host:port or unix:/path, from being bound."""
    refusals = _refusals(address)
    if _is_taken(refusals):
        return _TAKEN
    return _cannot(refusals[0]) if refusals else "cannot be bound"


def _is_taken(refusals: list[OSError]) -> bool:
    return any(error.errno == errno.EADDRINUSE for error in refusals)


def _cannot(error: OSError) -> str:
    return f"cannot be bound: {error.strerror or error}"


def _why_held(address: str) -> str:
    """Why an address, or one of a host's, is not free, so that gRPC must not take it; empty where it is.

    A Unix socket is free that is not there or that a killed server left, which refuses to be called.
    """
    path = unix_path(address)
    if path is None:
        return _TAKEN if _is_taken(_refusals(address)) else ""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return ""
        except OSError as error:
            if error.errno not in _SERVED:
                return _cannot(error)
    return "cannot be bound: a server listens there"


def _refusals(address: str) -> list[OSError]:
    """What the system says where it does not let an address, or one of a host's, be bound."""
    try:
        places = _places(address)
    except OSError as error:
        return [error]
    refusals = []
    for family, place in places:
        try:
            _try_to_bind(family, place)
        except OSError as error:
            refusals.append(error)
    return refusals


def _places(address: str) -> list[tuple[int, Any]]:
    """Families and addresses as sockets have them. Raises OSError for a host without one."""
    if (path := unix_path(address)) is not None:
        return [(socket.AF_UNIX, path)]
    scheme, _, rest = address.partition(":")
    if scheme == "unix-abstract":
        return [(socket.AF_UNIX, f"\0{rest}")]
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, place) for family, _, _, _, place in found]


def _try_to_bind(family: int, place: Any) -> None:
    """Binds and lets go again. Raises OSError."""
    with socket.socket(family) as probe:
        if family != socket.AF_UNIX:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
    if family == socket.AF_UNIX and not place.startswith("\0"):
        Path(place).unlink(missing_ok=True)
