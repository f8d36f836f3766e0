"""The folder of `octavo serve`: private, gone with its owner; a killed one's goes at the next start."""

import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from octavo.binding import bind
from octavo.transport import require_address
from octavo_client import deployment
from octavo_client.supervisor import run_dir
from octavo_client.supervisor.run_dir import RunDir

OWNER = """
import pathlib, sys
from octavo_client.supervisor.run_dir import RunDir
folder = RunDir()
(folder.path / "worker.sock").touch()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where run folders go; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def owner() -> tuple["subprocess.Popen[str]", Path]:
    """A process that has a run folder, and the folder."""
    words = [sys.executable, "-c", OWNER]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_its_owner_s_alone_and_goes_with_it(base: Path) -> None:
    with RunDir() as one, RunDir() as other:
        assert one.path != other.path
        assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
        assert one.socket == f"unix:{one.path}/worker.sock"
        (one.path / "worker.sock").touch()
    assert not list(base.iterdir())


def test_what_a_killed_owner_left_goes_at_the_next_start_and_what_a_live_one_has_stays(base: Path) -> None:
    killed, left = owner()
    killed.kill()
    killed.communicate()
    alive, used = owner()
    try:
        assert {left.parent, used.parent} == {base}
        assert not left.exists()
        with RunDir():
            assert (used / "worker.sock").exists()
    finally:
        alive.kill()
        alive.communicate()
    with RunDir() as last:
        assert list(base.iterdir()) == [last.path]


def test_what_is_not_left_by_a_run_stays(base: Path) -> None:
    other, full = base / "octavo-x", base / "octavo-run-full"
    for folder in (other, full):
        folder.mkdir()
    (full / "notes").touch()
    (base / "octavo-run-link").symlink_to(other)
    with RunDir():
        pass
    assert {path.name for path in base.iterdir()} == {"octavo-x", "octavo-run-full", "octavo-run-link"}
    assert (full / "notes").exists()


def test_a_folder_that_another_start_took_for_one_left_behind_is_made_anew(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = run_dir._lock, []

    def swept_once(folder: Path) -> int:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return real(folder)

    monkeypatch.setattr(run_dir, "_lock", swept_once)
    with RunDir() as found:
        assert made == [made[0], found.path]
        assert found.path.is_dir()


@pytest.mark.parametrize("name", ["x" * 80, "é" * 40])
def test_a_path_too_long_for_a_socket_is_not_taken(
    base: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A system counts bytes."""
    deep = base / name
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with RunDir() as found:
        assert found.path.parent == Path("/tmp")
        assert len(found.socket) < 100


@pytest.mark.parametrize("name", ["a%20b", "a?b", "a#b", "a b", "é", "\udcff"])
async def test_the_socket_is_in_the_folder_whatever_its_base_is_called(
    base: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    odd = base / name
    odd.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))
    server = grpc.aio.server()
    with RunDir() as found:
        require_address(found.socket)
        bind(server, found.socket)
        await server.start()
        assert (found.path / "worker.sock").is_socket()
        assert found.socket in deployment._served_sockets()
        async with grpc.aio.insecure_channel(found.socket) as channel:
            await channel.channel_ready()
        await server.stop(0)
