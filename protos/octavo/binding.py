"""Why a server could not have an address: gRPC says only that it could not.

Owns the question to the system, asked once a server has failed; knows no server. Invariant: an address is as
free afterwards as before.
"""

import errno
import socket
from pathlib import Path


def why_unbound(address: str) -> str:
    """What keeps an address, host:port or unix:/path, from being bound, to follow the setting's name and
    value.
    """
    try:
        _bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "cannot be bound; is it taken?"
        return f"cannot be bound: {error.strerror or error}"
    return "cannot be bound"


def _bind(address: str) -> None:
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
