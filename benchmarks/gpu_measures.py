"""What is measured of an engine on a GPU, the same way for every engine.

Owns the order of the loads, their repeats and the arithmetic on their times; knows no engine. Invariant: the
first run of a load is thrown away, and every run is told to `note`.
"""

import random
import statistics
from collections.abc import Callable, Collection
from typing import Protocol

from benchmarks.gpu_loads import (
    BATCHES,
    LOAD_A,
    LOAD_C,
    LOAD_D,
    SHARED,
    Load,
    decode_name,
    draw_prompt,
    equal_load,
    load_a,
    load_d,
)

Note = Callable[[str, object], None]
_TEMPERATURE = 0.6


class Runs(Protocol):
    """Something that serves a load, whose requests are sent at once; returns seconds."""

    def run(self, load: Load, temperature: float) -> float: ...


class Engine(Runs, Protocol):
    """And tells the seconds of a prompt to its first token."""

    def first_token(self, prompt: list[int]) -> float: ...


LOADS = ("A", "C", "D", "decode")


def measure(engine: Engine, repeats: int, note: Note, loads: Collection[str] = LOADS) -> dict[str, float]:
    """The loads that are asked for, by the names of their rows."""
    rows: dict[str, float] = {}
    if "A" in loads:
        rows[LOAD_A] = rate_a(engine, repeats, note)
    if "C" in loads:
        rows[LOAD_C] = _first_tokens(engine, note)
    if "D" in loads:
        rows[LOAD_D] = _shared_prefix(engine, note)
    if "decode" in loads:
        rows |= {decode_name(count): _decode_step(engine, count, note) for count in BATCHES}
    return rows


def rate_a(engine: Runs, repeats: int, note: Note) -> float:
    """Output tokens a second, the median of the runs after the first."""
    seconds = [engine.run(load_a(repeat), _TEMPERATURE) for repeat in range(repeats + 1)]
    rate = sum(load_a(0).outputs) / statistics.median(seconds[1:])
    note("load A", {"seconds": [round(s, 3) for s in seconds], "tok_s": round(rate)})
    return rate


def _first_tokens(engine: Engine, note: Note) -> float:
    """Median milliseconds of ten prompts of 2048 tokens; ten of two tokens are noted beside them."""
    rng = random.Random(2)
    times = [engine.first_token(draw_prompt(rng, 2048)) * 1e3 for _ in range(12)][2:]
    short = [engine.first_token(draw_prompt(rng, 2)) * 1e3 for _ in range(12)][2:]
    note("load C", {"ms": [round(t, 2) for t in times], "two_tokens_ms": [round(t, 2) for t in short]})
    return statistics.median(times)


def _shared_prefix(engine: Engine, note: Note) -> float:
    """64 requests with a new common prefix of 2048 tokens; others with the same prefix are noted."""
    rng, new, seen = random.Random(3), [], []
    for _ in range(4):
        load = load_d(rng)
        new.append(engine.run(load, _TEMPERATURE))
        again = [prompt[:SHARED] + draw_prompt(rng, 64) for prompt in load.prompts]
        seen.append(engine.run(Load(again, load.outputs), _TEMPERATURE))
    note("load D", {"new_prefix_s": new, "seen_prefix_s": seen})
    return statistics.median(new[1:])


def _decode_step(engine: Engine, rows: int, note: Note) -> float:
    """Milliseconds: (time of 256 outputs - time of 128) / 128, from prompts of 832 tokens."""
    rng = random.Random(rows)
    engine.run(equal_load(rng, rows, 832, 8), _TEMPERATURE)
    low, high = [], []
    for _ in range(2 if rows > 32 else 4):
        low.append(engine.run(equal_load(rng, rows, 832, 128), _TEMPERATURE))
        high.append(engine.run(equal_load(rng, rows, 832, 256), _TEMPERATURE))
    step = (statistics.median(high) - statistics.median(low)) / 128 * 1e3
    note(f"decode {rows}", {"step_ms": round(step, 3), "low_s": low, "high_s": high})
    return step
