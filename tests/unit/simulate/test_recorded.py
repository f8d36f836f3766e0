"""A recorded log is a trace: the requests, their times, and the answers that they got."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.core.block_hash import xxh3_128
from scheduler_svc.core.plan import FinishReason, SeqId
from scheduler_svc.simulate.collector import Collector
from scheduler_svc.simulate.command import main
from scheduler_svc.simulate.readers import ReadOptions, load_encoder, read_trace
from scheduler_svc.simulate.simulator import Setup, Simulator
from scheduler_svc.simulate.trace import Trace, TraceError
from tests.fakes.core_log import Log
from tests.unit.simulate.traces import MODEL, SESSIONS, TEN_MS, figures, made_trace, setup


def sessions(count: int = 12) -> Trace:
    options = ReadOptions(limit=count, session_interval=0.0, encode=load_encoder(MODEL))
    trace = read_trace(SESSIONS, options=options).by_arrival()
    changed = (replace(r, priority=i % 3, namespace="ab"[i % 2]) for i, r in enumerate(trace.requests))
    return replace(trace, requests=tuple(changed))


def recorded(trace: Trace, given: Setup) -> Log:
    """The log of a simulated run."""
    log = Log()
    simulator = Simulator(trace, given, TEN_MS, Collector(len(trace.requests), 1.0))
    simulator.core = log.make_core(given.config, xxh3_128)
    simulator.core.worker_ready(given.capacity)
    simulator.run()
    return log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "flight.log"
    file.write_bytes(recorded(sessions(), setup(16, 300)).data())
    return file


def test_requests_answers_and_times_come_back(path: Path) -> None:
    trace, source = read_trace(path), sessions()
    assert (trace.format, len(trace.requests)) == ("log", 12)
    for got, given in zip(trace.requests, source.requests, strict=True):
        assert got.prompt is not None
        assert got.output is not None
        assert given.output is not None
        assert np.array_equal(got.prompt, given.prompt)
        assert got.output[: len(given.output)].tolist() == given.output.tolist()
        assert got.output_len == max(1, given.output_len)
        assert got.arrival == pytest.approx(given.arrival - source.requests[0].arrival)
        assert (got.priority, got.namespace) == (given.priority, given.namespace)


def test_a_log_simulated_as_it_was_served_gives_the_run_that_was_recorded(path: Path) -> None:
    again = figures(read_trace(path), setup(16, 300))
    first = figures(sessions(), setup(16, 300))
    for part in ("prefix", "preemption", "requests"):
        assert again[part] == first[part]
    assert again["throughput"]["steps"] == first["throughput"]["steps"]


def test_the_command_takes_a_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--block-size", "16,64"]) == 0
    assert "flight.log: 12 requests" in capsys.readouterr().out
    assert len(read_trace(path, "log", ReadOptions(limit=5)).requests) == 5


def test_what_a_client_ended_early_ends_there(tmp_path: Path) -> None:
    log = Log()
    trace = made_trace((0.0, 20, 10), (0.0, 20, 10))
    simulator = Simulator(trace, setup(16, 300), TEN_MS, Collector(2, 1.0))
    core = simulator.core = log.make_core(simulator.setup.config, xxh3_128)
    core.worker_ready(simulator.setup.capacity)
    simulator._add(0, 0.0)
    simulator._add(1, 0.0)
    for _ in range(4):
        simulator._send_plans()
        simulator.now = simulator._sent[0].ends_at
        simulator._take_answer()
    core.stop(SeqId(0), 2, FinishReason.STOP, simulator.now)
    core.abort(SeqId(1), simulator.now)
    core.take_notices()
    file = tmp_path / "flight.log"
    file.write_bytes(log.data(ended=False))
    assert [request.output_len for request in read_trace(file).requests] == [2, 4]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:14], "the log ends inside its header"),
        (lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:], "flight.log"),
        (lambda data: b"octavo-log\n\xff\xff" + data[13:], "version 65535"),
    ],
)
def test_a_damaged_log_is_one_line(path: Path, damage, said: str) -> None:  # type: ignore[no-untyped-def]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_log_whose_plans_come_out_otherwise_is_refused(tmp_path: Path) -> None:
    log = recorded(sessions(), setup(16, 300))
    log.config = replace(log.config, max_num_batched_tokens=64)
    file = tmp_path / "flight.log"
    file.write_bytes(log.data())
    with pytest.raises(TraceError, match="its plans are not made again"):
        read_trace(file)


def test_a_text_file_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("{}")
    with pytest.raises(TraceError, match="not a log of the flight recorder"):
        read_trace(file, "log")
