"""What an address is bound to, and why one cannot be, in the system's words."""

import errno
import os
import socket
from pathlib import Path

import grpc
import pytest

from octavo.binding import bind, why_unbound


def test_a_port_that_another_listens_on_may_be_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert why_unbound(f"127.0.0.1:{other.getsockname()[1]}") == "cannot be bound; is it taken?"


def test_a_path_that_is_there_may_be_taken(tmp_path: Path) -> None:
    (tmp_path / "socket").touch()
    assert why_unbound(f"unix:{tmp_path}/socket") == "cannot be bound; is it taken?"
    assert (tmp_path / "socket").exists()


def test_a_path_without_its_folder_is_not_taken(tmp_path: Path) -> None:
    assert why_unbound(f"unix:{tmp_path}/none/socket") == "cannot be bound: No such file or directory"


@pytest.mark.parametrize("address", ["unix:/root/socket", "127.0.0.1:80"])
def test_what_the_system_does_not_allow_is_not_taken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may do all, so the refusal is the test's own."""

    class Refused(socket.socket):
        def bind(self, place: object, /) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket, "socket", Refused)
    assert why_unbound(address) == "cannot be bound: Permission denied"


def test_an_address_is_as_free_afterwards_as_before(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/socket", "unix-abstract:octavo-test-binding", "127.0.0.1:0"):
        assert [why_unbound(address) for _ in range(2)] == ["cannot be bound"] * 2
    assert not list(tmp_path.iterdir())


async def test_a_socket_is_taken_from_no_server_that_listens(tmp_path: Path) -> None:
    """gRPC alone would give the second server the path, and the first would be reached by nobody."""
    address = f"unix:{tmp_path}/socket"
    first, second = grpc.aio.server(), grpc.aio.server()
    bind(first, address)
    await first.start()
    with pytest.raises(OSError, match="cannot be bound: a server listens there"):
        bind(second, address)
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
    await first.stop(0)
    bind(second, address)
    await second.stop(0)


async def test_a_socket_to_which_no_more_can_connect_is_taken(tmp_path: Path) -> None:
    path = f"{tmp_path}/socket"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as caller:
        other.bind(path)
        other.listen(0)
        caller.connect(path)
        with pytest.raises(OSError, match="a server listens there"):
            bind(grpc.aio.server(), f"unix:{path}")


async def test_a_socket_that_a_killed_server_left_is_free(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/socket")
        killed.listen()
    server = grpc.aio.server()
    bind(server, f"unix:{tmp_path}/socket")
    await server.stop(0)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
async def test_a_socket_is_taken_from_no_server_of_another_kind(
    kind: socket.SocketKind, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            other.listen()
        held = path.stat().st_ino
        with pytest.raises(OSError, match="cannot be bound: a server listens there"):
            bind(grpc.aio.server(), f"unix:{path}")
        assert path.stat().st_ino == held


async def test_a_socket_s_path_is_read_as_grpc_reads_it(tmp_path: Path) -> None:
    """Which takes %20 for a blank."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/a socket")
        other.listen()
        with pytest.raises(OSError, match="a server listens there"):
            bind(grpc.aio.server(), f"unix:{tmp_path}/a%20socket")


async def test_a_socket_that_may_not_be_called_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may call all, so the refusal is the test's own."""

    class Refused(socket.socket):
        def connect(self, place: object, /) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(OSError, match="cannot be bound: Permission denied"):
        bind(grpc.aio.server(), f"unix:{tmp_path}/socket")


async def test_a_host_is_bound_at_all_of_its_addresses_or_at_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC alone would listen at the addresses that are left, and callers would reach either server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)
        with pytest.raises(OSError, match=r"cannot be bound; is it taken\?"):
            bind(grpc.aio.server(), f"localhost:{port}")
