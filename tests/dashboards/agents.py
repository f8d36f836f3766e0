"""Sessions of coding agents out of the WEKA trace, at the size of a tiny model.

Owns the scale; knows no service but the one call it makes. Invariant: two prompts of a session share as many
leading tokens here as they share blocks in the trace.

The trace names each 64 tokens of a prompt by an id; here each id is one token, outputs are as much shorter,
and the time between two turns is a tenth. Sessions whose contexts do not fit the pool are left out.
"""

import asyncio
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from scheduler_svc.simulate.readers import read_trace
from scheduler_svc.simulate.trace import TraceRequest
from tests.e2e.service import Service

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "weka_agentic_coding_8.jsonl.gz"
LONGEST = 900
"""Tokens of prompt and output; the pool of the load has some more."""
_FIRST_TOKEN, _TOKENS = 10, 240
_TIME_SCALE = 0.1
_MULTIPLIER = 2_654_435_761  # of Fibonacci hashing (Knuth, volume 3, 6.4): neighbours get unlike tokens


@dataclass(frozen=True)
class Turn:
    """after: seconds between the begin of the session's last turn and this one's."""

    prompt: list[int]
    outputs: int
    after: float


@dataclass(frozen=True)
class Session:
    name: str
    turns: tuple[Turn, ...]


def read_sessions() -> tuple[Session, ...]:
    """The sessions that fit, in file order."""
    trace = read_trace(TRACE, "weka")
    found = []
    for name, requests in groupby(trace.requests, key=lambda one: one.namespace):
        turns = _turns(list(requests), trace.id_block_size)
        if max(len(turn.prompt) + turn.outputs for turn in turns) <= LONGEST:
            found.append(Session(name, turns))
    return tuple(found)


def _turns(requests: list[TraceRequest], scale: int) -> tuple[Turn, ...]:
    turns, last = [], requests[0].arrival
    for one in requests:
        assert one.block_ids is not None
        mixed = (one.block_ids.astype(np.uint64) * np.uint64(_MULTIPLIER)) >> np.uint64(8)
        prompt = (_FIRST_TOKEN + mixed % np.uint64(_TOKENS)).astype(int).tolist()
        turns.append(Turn(prompt, max(2, one.output_len // scale), (one.arrival - last) * _TIME_SCALE))
        last = one.arrival
    return tuple(turns)


async def play_session(service: Service, session: Session) -> None:
    """Turn by turn, each when the one before was answered; prefixes are shared within the session alone."""
    for turn in session.turns:
        await asyncio.sleep(min(turn.after, 5.0))
        await service.generate(turn.prompt, turn.outputs, cache_salt=session.name)


SESSIONS = read_sessions()
