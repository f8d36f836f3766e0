"""The writer: the file is private and whole, and nothing about it holds the engine up."""

import errno
import logging
import os
import resource
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.core.plan import NewRequest, SchedulerConfig, SeqId
from scheduler_svc.recorder import writer
from scheduler_svc.recorder.format import Kind, LogReader
from scheduler_svc.recorder.writer import Recorder
from tests.fakes.core_log import replayed


def adds(count: int, length: int = 10) -> list[tuple[int, float, NewRequest]]:
    prompt = np.arange(length, dtype=np.int32)
    return [(int(Kind.ADD), 0.0, NewRequest(SeqId(i), prompt, 1)) for i in range(count)]


def kinds(path: Path) -> list[Kind]:
    with path.open("rb") as file:
        reader = LogReader(file)
        found = [record.kind for record in reader]
        assert reader.torn == ""
        return found


def wait(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_note_is_in_the_file_in_order_and_the_end_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = Recorder(path, SchedulerConfig(hash_seed=b"x" * 16))
    for entry in adds(300):
        recorder.note(entry)
    recorder.close()
    assert kinds(path) == [Kind.ADD] * 300 + [Kind.END]
    difference, replayer, _ = replayed(path.read_bytes())
    assert difference is None
    assert replayer.tally.requests == 300
    recorder.close()


def test_the_file_is_for_its_owner_alone_and_an_older_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(3):
        Recorder(path, SchedulerConfig()).close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_records_reach_the_file_without_a_close(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = Recorder(path, SchedulerConfig())
    recorder.note(adds(1)[0])
    wait(lambda: recorder.records == 1)
    assert kinds(path) == [Kind.ADD]
    recorder.close()


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """Files of this process may not pass some bytes, as if the disk were full. Nothing else may be written
    meanwhile: where pytest's own output goes to a file, that is one too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_recording_with_one_line_and_whole_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    with small_disk(40_000):
        recorder = Recorder(path, SchedulerConfig())
        for entry in adds(2000, 50):
            recorder.note(entry)
        wait(lambda: not recorder.recording)
        recorder.note(adds(1)[0])
        recorder.close()
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "File too large" in line.getMessage()
    assert "serving goes on" in line.getMessage()
    written = kinds(path)
    assert set(written) == {Kind.ADD}
    assert 0 < len(written) == recorder.records
    assert path.stat().st_size <= 40_000


def test_a_disk_that_hangs_bounds_what_waits_and_never_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = threading.Event()
    real_write = os.write

    def hang(file: int, data: memoryview) -> int:
        stuck.wait(60)
        return real_write(file, data)

    recorder = Recorder(tmp_path / "log", SchedulerConfig())
    monkeypatch.setattr(writer.os, "write", hang)
    monkeypatch.setattr(writer, "MAX_PENDING", 100)
    recorder.note(adds(1)[0])
    wait(lambda: not recorder._pending)
    for entry in adds(5000):
        recorder.note(entry)
    assert not recorder.recording
    assert len(recorder._pending) == 101
    assert any("wait to be written" in record.getMessage() for record in caplog.records)
    stuck.set()
    recorder.close()
    assert not recorder._pending


def test_a_file_that_cannot_be_begun_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recorder(tmp_path / "missing" / "log", SchedulerConfig())
    with pytest.raises(OSError, match="No space left"):
        Recorder(Path("/dev/full"), SchedulerConfig())


def test_a_log_that_could_not_be_begun_is_left_neither_empty_nor_for_the_next_start_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr("scheduler_svc.recorder.writer.os.write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                Recorder(tmp_path / "log", SchedulerConfig())
    assert not list(tmp_path.iterdir())
