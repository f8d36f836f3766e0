"""A04, A30: preemption by swap and the choice between swap and recompute. Scripts show single steps."""

import random

import numpy as np
import pytest

from scheduler_svc.core.cost_model import GUESSED_BYTES_PER_SECOND, GUESSED_TOKENS_PER_SECOND, CostModel, Rate
from scheduler_svc.core.decisions import ERROR_BOUNDS, Decision, Mode, PreemptionRecord, Reason
from scheduler_svc.core.plan import FinishReason, PreemptionMode, SchedulerConfig, SeqId
from tests.fakes.core_driver import CoreDriver, Times
from tests.unit.core.test_cost import Decoding, calls_in

SWAP = SchedulerConfig(max_num_seqs=8, watermark_blocks=0, preemption=PreemptionMode.SWAP)
DEAR_TRANSFERS, CHEAP_TRANSFERS = Times(moved_block=1.0), Times(moved_block=1e-6)


def crowd(core: CoreDriver, count: int = 4, outputs: int = 40) -> list[int]:
    """Sequences that together outgrow the pool."""
    return [core.add([100 * i + j for j in range(8)], outputs) for i in range(count)]


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.AUTO])
def test_a04_with_a_host_tier_mixes_stay_within_the_bounds(
    prefix_cache: bool, depth: int, mode: PreemptionMode
) -> None:
    """Preemptions per request <= 4, thrown-away / useful tokens <= 1.0, and a bounded number of steps: no
    livelock. Late acknowledgements in every other mix.
    """
    swapped = 0
    for seed in range(8):
        chance = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=32, prefix_cache=prefix_cache, depth=depth, preemption=mode
        )
        core = CoreDriver(20, 4, config, host_blocks=chance.choice([6, 20, 80]))
        core.holds_transfers = bool(seed % 2)
        shapes = [(chance.randint(2, 30), chance.randint(2, 40)) for _ in range(chance.randint(4, 8))]
        for length, outputs in shapes:
            core.add([chance.randrange(900) for _ in range(length)], outputs)
        useful = sum(map(sum, shapes))
        steps = core.run(max_steps=4 * useful)
        assert steps <= useful
        assert max(finished.preemptions for finished in core.finished.values()) <= 4
        assert {finished.reason for finished in core.finished.values()} == {FinishReason.LENGTH}
        stats = core.core.stats()
        assert stats.counters.preempted_tokens <= useful
        swapped += stats.counters.blocks_swapped_in
    assert swapped > 0


def test_a30_swapped_out_requests_are_not_starved_by_newcomers() -> None:
    core = CoreDriver(16, 4, SWAP, host_blocks=64)
    first = crowd(core)
    while not core.swapped_out:
        core.step()
    newcomers = []
    for _ in range(300):
        if len(newcomers) < 60:
            newcomers.append(core.add([len(newcomers)], 2))
        core.step()
        if all(seq_id in core.finished for seq_id in first):
            break
    assert all(seq_id in core.finished for seq_id in first)
    ended = list(core.finished)
    assert all(ended.index(seq_id) < len(first) + len(newcomers) // 2 + 8 for seq_id in first)


def test_a30_a_fenced_block_is_handed_out_only_after_its_acknowledgement() -> None:
    core = CoreDriver(16, 4, SWAP, host_blocks=64)
    core.holds_transfers = True
    crowd(core)
    fenced: set[int] = set()
    while not fenced:
        core.step()
        pool = core.core.pool_map()
        fenced = set(np.flatnonzero(pool.state == 3).tolist())
    while fenced & set(np.flatnonzero(core.core.pool_map().state == 3).tolist()) == fenced:
        plan = core.schedule()
        if plan is not None:
            assert fenced.isdisjoint(plan.table_blocks.tolist())
        if core.in_flight:
            core.answer()
    core.holds_transfers = False
    core.run()


def test_shared_blocks_are_copied_but_not_taken_from_the_others() -> None:
    core = CoreDriver(14, 4, SWAP, host_blocks=64)
    prefix = list(range(12))
    keeper = core.add([*prefix, 50], 22)
    core.step()
    victim = core.add([*prefix, 60], 22)
    while victim not in core.swapped_out:
        core.step()
    swap = next(plan for plan in core.plans if len(plan.swap_out_pairs))
    shared = {block for block, *_ in core.core.sequence_blocks(SeqId(keeper))} & set(
        swap.swap_out_pairs[:, 0].tolist()
    )
    assert len(shared) == 3
    pool = core.core.pool_map()
    assert all(pool.ref_count[block] == 1 for block in shared)
    core.run()


def test_a_resumed_sequence_takes_from_the_device_what_the_index_still_has() -> None:
    core = CoreDriver(16, 4, SWAP, host_blocks=64)
    crowd(core, count=2)
    core.run()
    counters = core.core.stats().counters
    assert 0 < counters.blocks_swapped_in < counters.blocks_swapped_out
    assert counters.recomputed_tokens == 0


def test_a_prefill_under_way_can_be_swapped_out_and_goes_on_where_it_was() -> None:
    config = SchedulerConfig(
        max_num_seqs=8, max_num_batched_tokens=6, watermark_blocks=0, prefix_cache=False,
        preemption=PreemptionMode.SWAP,
    )  # fmt: skip
    found = 0
    for num_blocks in (24, 26, 28, 30):
        core = CoreDriver(num_blocks, 4, config, host_blocks=64)
        for i in range(3):
            core.add([100 * i], 40)
        late = core.add(list(range(500, 564)), 3)
        while late not in core.finished:
            core.step()
            found += late in core.swapped_out and not core.outputs[late]
        core.run()
        assert core.core.stats().counters.recomputed_tokens == 0
        assert sum(len(plan.positions) for plan in core.plans) == 3 * 40 + 64 + 2
    assert found


def test_an_abort_or_stop_of_a_swapped_out_sequence_gives_its_host_blocks_back() -> None:
    for end in ("abort", "stop"):
        core = CoreDriver(16, 4, SWAP, host_blocks=64)
        crowd(core)
        while not core.swapped_out:
            core.step()
        core.step()
        victim = next(iter(core.swapped_out))
        held = core.core.stats().host_blocks_free
        assert core.abort(victim) if end == "abort" else core.stop(victim, len(core.outputs[victim]))
        core.step()
        assert core.core.stats().host_blocks_free > held
        assert not core.abort(victim)
        core.run()


def test_without_a_host_tier_nothing_is_swapped_and_the_reason_says_so() -> None:
    core = CoreDriver(16, 4, SWAP)
    crowd(core)
    core.run()
    counts = core.core.stats().preemption.counts
    assert counts[Mode.RECOMPUTE, Reason.FORCED] == sum(counts.values()) > 0


# The choice


@pytest.mark.parametrize(("times", "mode"), [(DEAR_TRANSFERS, Mode.RECOMPUTE), (CHEAP_TRANSFERS, Mode.SWAP)])
def test_auto_learns_which_way_costs_less(times: Times, mode: Mode) -> None:
    core = CoreDriver(16, 4, SchedulerConfig(max_num_seqs=8, watermark_blocks=0), host_blocks=64, times=times)
    for _ in range(3):
        crowd(core)
        core.run()
    before = core.core.stats().preemption.counts
    crowd(core)
    core.run()
    after = core.core.stats().preemption.counts
    fresh = {key: after[key] - before[key] for key in after if after[key] > before[key]}
    assert set(fresh) == {(mode, Reason.COST)}


def test_each_measured_preemption_has_its_estimate_beside_its_cost() -> None:
    core = CoreDriver(16, 4, SWAP, host_blocks=64)
    for _ in range(4):
        crowd(core)
        core.run()
    record = core.core.stats().preemption
    swaps = record.counts[Mode.SWAP, Reason.FORCED]
    assert sum(record.errors[Mode.SWAP].counts) == swaps > 2
    moved = core.core.stats().counters
    blocks = moved.blocks_swapped_out + moved.blocks_swapped_in
    assert record.cost[Mode.SWAP] == pytest.approx(Times().moved_block * blocks)


def test_a_lost_copy_counts_as_work_thrown_away_by_swap() -> None:
    core = CoreDriver(16, 4, SWAP, host_blocks=64)
    crowd(core)
    while not core.swapped_out:
        core.step()
    core.worker_lost()
    core.run()
    assert core.core.stats().preemption.lost_tokens[Mode.SWAP] > 0


def test_a_measurement_replaces_the_guess_and_older_ones_fade() -> None:
    rate = Rate(GUESSED_TOKENS_PER_SECOND)
    rate.observe(0, 1.0)
    rate.observe(100, 0.0)
    assert rate.per_second == pytest.approx(GUESSED_TOKENS_PER_SECOND)
    rate.observe(100, 0.01)
    assert rate.per_second == pytest.approx(10_000, rel=0.01)
    for _ in range(60):
        rate.observe(100, 0.1)
    assert rate.per_second == pytest.approx(1000, rel=0.01)


def test_the_costs_are_tokens_over_rate_and_bytes_both_ways() -> None:
    model = CostModel()
    assert model.recompute_seconds(1000, 0) == pytest.approx(1000 / GUESSED_TOKENS_PER_SECOND)
    assert model.recompute_seconds(1000, 400) == pytest.approx(800 / GUESSED_TOKENS_PER_SECOND)
    assert model.swap_seconds(4000) == pytest.approx(8000 / GUESSED_BYTES_PER_SECOND)


def test_a_prefill_costs_what_its_step_takes_longer_than_decodes_alone() -> None:
    model = CostModel()
    for _ in range(3):
        model.observe_decode(0.01)
    assert model.observe_prefill(100, True, 0.03) == pytest.approx(0.02)
    assert model.observe_prefill(100, False, 0.03) == pytest.approx(0.03)
    assert model.observe_prefill(100, True, 0.001) == pytest.approx(0.0001)  # never nothing


def test_the_error_is_relative_to_the_cost() -> None:
    record = PreemptionRecord()
    record.came_back(Decision(Mode.SWAP, Reason.COST, 9.0, 3.0, cost=2.0))
    record.came_back(Decision(Mode.SWAP, Reason.COST, 9.0, 3.0, cost=0.0))  # nothing was measured
    errors = record.errors[Mode.SWAP]
    assert (sum(errors.counts), errors.total) == (1, 0.5)
    assert errors.counts[ERROR_BOUNDS.index(0.5)] == 1


def test_a_host_tier_that_is_not_needed_costs_a_few_calls_a_step() -> None:
    def calls(host_blocks: int, rows: int) -> int:
        decoding = Decoding(rows, host_blocks=host_blocks)
        return calls_in(lambda: [decoding.step() for _ in range(20)])

    for rows in (8, 64):
        assert calls(1000, rows) - calls(0, rows) <= 20 * 12


def test_what_recomputes_find_again_weighs_what_is_findable() -> None:
    model = CostModel()
    model.observe_found(0, 0)  # teaches nothing
    assert model.recompute_seconds(100, 100) == pytest.approx(50 / GUESSED_TOKENS_PER_SECOND)
    model.observe_found(0, 100)
    assert model.recompute_seconds(100, 100) == pytest.approx(100 / GUESSED_TOKENS_PER_SECOND, rel=1e-3)
    for _ in range(100):
        model.observe_found(150, 100)
    assert model.recompute_seconds(100, 100) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("lost", [False, True])
def test_a_sequence_that_comes_back_teaches_what_was_found_of_it(lost: bool) -> None:
    """After a lost worker it does not: what was findable is no more, and that is nobody's estimate."""
    core = CoreDriver(20, 4, SchedulerConfig(watermark_blocks=0))
    crowd(core, 2)
    while not core.core.stats().counters.preemptions:
        core.step()
    model = core.core._swapping.model
    if lost:
        core.worker_lost()
        core.worker_ready()
        model = core.core._swapping.model
    before = model.found.per_second
    core.run(max_steps=500)
    assert core.core.stats().counters.preemptions == 1
    assert (model.found.per_second != before) is not lost
