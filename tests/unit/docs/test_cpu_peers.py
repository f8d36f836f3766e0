"""A peer in a process of its own: the pipes, the choice of threads, the end; a stand-in plays the library."""

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peer_process import ProcessPeer, python_with

STAND_IN = """
import sys, time
sys.path.insert(0, {root!r})
from benchmarks.peer_loop import serve

def load(asked):
    print("a library's chatter on stdout")
    if asked["threads"] == "none":
        sys.exit("this many threads cannot be had")
    def generate(prompts, tokens):
        while time.process_time() < 0.1:  # as much as a clock of ticks can tell
            pass
        return [tokens - (len(ids) == 13) for ids in prompts]
    return "stand-in with threads " + asked["threads"], generate

serve(load)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in a folder that stands for the repository's root."""
    root = str(Path(__file__).resolve().parents[3])
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(root=root), encoding="utf-8")
    monkeypatch.setattr("benchmarks.peer_process.ROOT", tmp_path)
    return "stand_in"


def test_the_fastest_setting_of_threads_stays(module: str, tmp_path: Path) -> None:
    settings = ["best", "slow", "none"]
    peer = ProcessPeer(Path(sys.executable), module, {}, settings, tmp_path / "log")
    speeds = {"best": 9.0, "slow": 3.0}
    asked: list[str] = []

    def speed() -> float:
        peer.generate([[1, 2]], 4)
        asked.append(peer.name.split()[-1])
        return speeds[asked[-1]]

    peer.choose_threads(speed)
    assert peer.name == "stand-in with threads best"
    assert asked == ["best", "best", "slow", "slow", "best"]
    assert peer.cpu_seconds() > 0
    assert peer._child is not None
    child = psutil.Process(peer._child.pid)
    with pytest.raises(AssertionError):
        peer.generate([list(range(13))], 4)
    peer.close()
    assert not child.is_running()


def test_a_peer_that_cannot_start_says_why(module: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    peer = ProcessPeer(Path(sys.executable), module, {}, ["none"], log)
    with pytest.raises(SystemExit, match="did not start"):
        peer.choose_threads(lambda: 1.0)
    assert "cannot be had" in log.read_text(encoding="utf-8")


def test_a_package_is_looked_for_here_unless_a_python_is_named(tmp_path: Path) -> None:
    assert python_with("no_such_package_here", None) is None
    assert python_with("json", None) == Path(sys.executable)
    assert python_with("no_such_package_here", tmp_path) == tmp_path
