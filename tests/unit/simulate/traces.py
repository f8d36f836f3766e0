"""Traces for the tests of the simulator: excerpts of real ones, and small ones made by hand.

Owns the paths and the hand-made requests; knows no figure. Invariant: a hand-made trace is the same each
time.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.simulate.collector import Collector
from scheduler_svc.simulate.results import Figures
from scheduler_svc.simulate.runs import run_one
from scheduler_svc.simulate.simulator import Setup, Simulator
from scheduler_svc.simulate.trace import Trace, TraceRequest
from scheduler_svc.simulate.worker_model import StepTimes
from tests.architecture.sources import REPOSITORY

DATA = REPOSITORY / "tests" / "data" / "traces"
MOONCAKE = DATA / "mooncake_conversation_first200.jsonl"
AZURE = DATA / "azure2023_conv_first500.csv"
WEKA = DATA / "weka_agentic_coding_8.jsonl.gz"
SESSIONS = DATA / "lmcache_agent_sessions.jsonl.gz"
MODEL = REPOSITORY / "models" / "SmolLM2-135M-Instruct"

TEN_MS = StepTimes("ten milliseconds", ((1.0, 0.010),), 0.0, 0.0, 1)
"""A worker whose every step takes 10 ms."""


def made_trace(*requests: tuple[float, int, int]) -> Trace:
    """Of (arrival, prompt_len, output_len), contents unlike each other."""
    return Trace("made", "made", tuple(TraceRequest(*request) for request in requests))


def session_trace(prompts: Sequence[Sequence[int]], output_len: int = 1) -> Trace:
    """Of prompts as token ids, one second apart."""
    requests = (
        TraceRequest(float(i), len(prompt), output_len, prompt=np.array(prompt, np.int32))
        for i, prompt in enumerate(prompts)
    )
    return Trace("made", "made", tuple(requests))


def setup(block_size: int = 4, num_blocks: int = 1000, **given: object) -> Setup:
    """A Setup with a short configuration; `given` are fields of SchedulerConfig and of Setup."""
    config = {key: given.pop(key) for key in list(given) if key in SchedulerConfig.__slots__}
    return Setup(SchedulerConfig(**config), block_size, num_blocks, 1 << 20, **given)  # type: ignore[arg-type]


def figures(trace: Trace, given: Setup, worker: StepTimes = TEN_MS) -> Figures:
    return run_one("made", given, trace, worker, lambda label, ended: None)


def simulate(trace: Trace, given: Setup, worker: StepTimes = TEN_MS) -> Collector:
    """What the collector kept of a run."""
    span = max(request.arrival for request in trace.requests)
    collector = Collector(len(trace.requests), span, given.n)
    Simulator(trace, given, worker, collector).run()
    return collector


def path_of(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    """A file with that text."""
    path = folder / name
    path.write_text(text)
    return path
