"""A19: stop ids, min_tokens, lengths, and their precedence: a stop goes before a length on the same token."""

import pytest

from scheduler_svc.core.plan import FinishReason, SchedulerConfig
from tests.fakes.core_driver import CoreDriver
from tests.fakes.simulated_kv import expected_tokens

PROMPT = [5, 6, 7]
TOKENS = expected_tokens(PROMPT, 12, 1000)
MANY = frozenset(range(2000, 2300))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("others", [frozenset[int](), MANY])
@pytest.mark.parametrize(
    ("stops", "min_tokens", "max_tokens", "reason", "length"),
    [
        ((), 0, 5, FinishReason.LENGTH, 5),
        ((TOKENS[0],), 0, 5, FinishReason.STOP, 1),
        ((TOKENS[3], TOKENS[1]), 0, 9, FinishReason.STOP, 2),
        ((TOKENS[4],), 0, 5, FinishReason.STOP, 5),
        ((TOKENS[5],), 0, 5, FinishReason.LENGTH, 5),
        ((TOKENS[0],), 1, 3, FinishReason.LENGTH, 3),
        ((TOKENS[0], TOKENS[2]), 1, 9, FinishReason.STOP, 3),
        ((TOKENS[0], TOKENS[2]), 3, 4, FinishReason.LENGTH, 4),
        ((TOKENS[0],), 0, 1, FinishReason.STOP, 1),
        ((), 0, 1, FinishReason.LENGTH, 1),
    ],
)
def test_a19_what_ends_a_sequence(
    stops: tuple[int, ...], min_tokens: int, max_tokens: int, reason: FinishReason, length: int, depth: int,
    others: frozenset[int],
) -> None:  # fmt: skip
    core = CoreDriver(16, 4, SchedulerConfig(depth=depth))
    seq_id = core.add(PROMPT, max_tokens, min_tokens=min_tokens, stop_token_ids=frozenset(stops) | others)
    neighbour = core.add([9, 9], 12)
    core.run()
    assert (core.reason(seq_id), core.finished[seq_id].output_len) == (reason, length)
    expected = TOKENS[length - 1] if reason is FinishReason.STOP else None
    assert core.finished[seq_id].matched_token == expected
    assert len(core.outputs[neighbour]) == 12


def test_a_stop_string_found_late_cuts_what_was_delivered() -> None:
    core = CoreDriver(16, 4)
    seq_id = core.add(PROMPT, 12)
    while len(core.outputs[seq_id]) < 4:
        core.step()
    assert core.stop(seq_id, 2)
    assert not core.stop(seq_id, 2)
    core.run()
    finished = core.finished[seq_id]
    assert (finished.reason, finished.output_len) == (FinishReason.STOP, 2)
    assert core.core.stats().counters.overshoot_tokens >= 2


def test_an_overshoot_is_at_most_depth_and_never_findable() -> None:
    core = CoreDriver(16, 1)
    seq_id = core.add(PROMPT, 12, stop_token_ids=frozenset({TOKENS[2]}))
    core.run()
    counters = core.core.stats().counters
    assert counters.overshoot_tokens == 1
    assert core.core.stats().prefix_entries == len(PROMPT) + 2, "only the overshoot wrote the stop id"
    assert core.finished[seq_id].output_len == 3


def test_the_end_by_length_is_known_ahead() -> None:
    core = CoreDriver(16, 4)
    core.add(PROMPT, 6)
    core.run()
    assert core.core.stats().counters.overshoot_tokens == 0
    assert sum(len(plan.positions) for plan in core.plans) == len(PROMPT) + 5


@pytest.mark.parametrize("prompt_len", [3, 4, 5])
def test_an_end_at_a_block_boundary_takes_no_needless_block(prompt_len: int) -> None:
    core = CoreDriver(16, 4)
    core.add(list(range(prompt_len)), 5)
    core.run()
    assert core.core.stats().counters.blocks_allocated == -(-(prompt_len + 4) // 4)
