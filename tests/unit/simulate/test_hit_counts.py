"""Hit counts of the production index over real traces, against counting that knows no block pool."""

from pathlib import Path

import numpy as np
import pytest

from scheduler_svc.simulate.readers import ReadOptions, load_encoder, read_trace
from scheduler_svc.simulate.trace import Trace
from tests.unit.simulate.traces import MODEL, MOONCAKE, SESSIONS, WEKA, figures, setup


def naive_blocks(trace: Trace) -> tuple[int, int]:
    """(asked, found): in file order, a request finds its longest leading run of ids seen before."""
    seen: set[tuple[str, int]] = set()
    asked = found = 0
    for request in trace.requests:
        assert request.block_ids is not None
        keys = [(request.namespace, int(block_id)) for block_id in request.block_ids]
        asked += len(keys)
        found += next((i for i, key in enumerate(keys) if key not in seen), len(keys))
        seen.update(keys)
    return asked, found


def naive_tokens(trace: Trace, block_size: int) -> tuple[int, int]:
    """(asked, found) tokens: whole blocks whose prefix was computed before, without a prompt's last token."""
    seen: set[tuple[str, bytes]] = set()
    asked = found = 0
    for number, request in enumerate(trace.requests):
        prompt = trace.prompt_of(number)
        asked += len(prompt)
        usable = (len(prompt) - 1) // block_size
        keys = prefixes(request.namespace, prompt, block_size)[:usable]
        found += block_size * next((i for i, key in enumerate(keys) if key not in seen), usable)
        output = np.empty(0, np.int32) if request.output is None else request.output[:-1]
        seen.update(prefixes(request.namespace, np.concatenate((prompt, output)), block_size))
    return asked, found


def prefixes(namespace: str, tokens: np.ndarray, block_size: int) -> list[tuple[str, bytes]]:
    ends = range(block_size, len(tokens) + 1, block_size)
    return [(namespace, tokens[:end].tobytes()) for end in ends]


@pytest.mark.parametrize(
    ("path", "asked", "found"), [(MOONCAKE, 5537, 322), (WEKA, 29062, 22752)], ids=["mooncake", "weka"]
)
def test_the_trace_s_own_blocks_are_found_exactly(path: Path, asked: int, found: int) -> None:
    trace = read_trace(path)
    assert naive_blocks(trace) == (asked, found), "the excerpt's known numbers"
    prefix = figures(trace, setup(1, 100_000, one_at_a_time=True, block_ids=True))["prefix"]
    assert (prefix["trace_blocks_asked"], prefix["trace_blocks_found"]) == (asked, found)
    assert prefix["trace_block_hit_rate"] == found / asked
    assert prefix["evicted_blocks"] == prefix["collisions"] == 0


@pytest.mark.parametrize("block_size", [16, 48, 512])
def test_expanded_block_ids_are_found_exactly(block_size: int) -> None:
    trace = read_trace(MOONCAKE, options=ReadOptions(limit=40))
    prefix = figures(
        trace, setup(block_size, 1_000_000 // block_size, one_at_a_time=True, match_inside_blocks=False)
    )["prefix"]
    assert (prefix["lookup_tokens"], prefix["hit_tokens"]) == naive_tokens(trace, block_size)
    assert prefix["hit_tokens"] > 0


@pytest.mark.parametrize("block_size", [16, 100])
def test_prompts_find_what_earlier_requests_generated(block_size: int) -> None:
    trace = read_trace(SESSIONS, options=ReadOptions(limit=60, encode=load_encoder(MODEL)))
    prefix = figures(trace, setup(block_size, 4000, one_at_a_time=True, match_inside_blocks=False))["prefix"]
    assert (prefix["lookup_tokens"], prefix["hit_tokens"]) == naive_tokens(trace, block_size)
    assert prefix["hit_tokens"] > 0


def test_a_small_pool_finds_less() -> None:
    trace = read_trace(MOONCAKE)
    small = figures(trace, setup(1, 400, one_at_a_time=True, block_ids=True))["prefix"]
    assert small["evicted_blocks"] > 0
    assert 0 < small["trace_blocks_found"] < 322


def test_without_the_cache_nothing_is_looked_up() -> None:
    trace = read_trace(WEKA, options=ReadOptions(limit=5))
    given = setup(1, 10_000, one_at_a_time=True, block_ids=True, prefix_cache=False)
    prefix = figures(trace, given)["prefix"]
    assert (prefix["lookup_tokens"], prefix["hit_tokens"], prefix["hit_rate"]) == (0, 0, None)


def naive_prefixes(trace: Trace) -> int:
    """Tokens that each prompt, but for its last, shares with the beginning of anything computed before."""
    computed: list[np.ndarray] = []
    found = 0
    for number, request in enumerate(trace.requests):
        prompt = trace.prompt_of(number)
        found += max((common_prefix(prompt[:-1], other) for other in computed), default=0)
        output = np.empty(0, np.int32) if request.output is None else request.output[:-1]
        computed.append(np.concatenate((prompt, output)))
    return found


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter


@pytest.mark.parametrize("block_size", [16, 256, 1024])
def test_with_matches_inside_blocks_every_common_prefix_is_found(block_size: int) -> None:
    """Whatever the block size: a cached block that begins as the prompt goes on is copied."""
    trace = read_trace(SESSIONS, options=ReadOptions(limit=60, encode=load_encoder(MODEL)))
    prefix = figures(trace, setup(block_size, 64_000 // block_size, one_at_a_time=True))["prefix"]
    assert prefix["hit_tokens"] == naive_prefixes(trace)
