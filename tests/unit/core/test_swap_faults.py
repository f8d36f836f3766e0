"""A30: faults of swapping that random operations found, each as small as it is."""

from scheduler_svc.core.plan import FinishReason, PreemptionMode, SchedulerConfig
from tests.fakes.core_driver import CoreDriver

SWAP = SchedulerConfig(max_num_seqs=8, watermark_blocks=0, preemption=PreemptionMode.SWAP)


def one_swapped_out() -> tuple[CoreDriver, int, int]:
    """(driver, keeper, victim): they share three blocks; the victim's transfer is not acknowledged yet."""
    core = CoreDriver(14, 4, SWAP, host_blocks=64)
    core.holds_transfers = True
    prefix = list(range(12))
    keeper = core.add([*prefix, 50], 22)
    core.step()
    victim = core.add([*prefix, 60], 22)
    while victim not in core.swapped_out:
        core.step()
    return core, keeper, victim


def test_a30_a_failed_holder_does_not_zero_a_block_that_is_still_being_swapped_out() -> None:
    core, keeper, victim = one_swapped_out()
    swap = next(plan for plan in core.plans if len(plan.swap_out_pairs))
    core.flush()  # else the shared blocks stay findable, and are not zeroed
    core.fill()
    core.answer_failed(core.in_flight[0].plan.rows.tolist())
    before = len(core.plans)
    core.run()
    assert core.reason(keeper) is FinishReason.ERROR
    assert core.reason(victim) is FinishReason.LENGTH
    zeroed = {block for plan in core.plans[before:] for block in plan.zero_blocks.tolist()}
    assert zeroed & set(swap.swap_out_pairs[:, 0].tolist()), (
        "they are zeroed once they are not fenced any more"
    )
    core.check_outputs()


def test_what_was_swapped_out_before_a_flush_is_not_found_after_it() -> None:
    core, _, victim = one_swapped_out()
    core.flush()
    core.holds_transfers = False
    core.run()
    assert core.reason(victim) is FinishReason.LENGTH
    assert core.core.stats().counters.blocks_swapped_in > 0
    assert core.core.stats().prefix_entries == 0
    core.check_outputs()


def test_a_flush_of_another_namespace_leaves_a_swapped_out_sequence_findable() -> None:
    core, _, _ = one_swapped_out()
    core.flush("another")
    core.holds_transfers = False
    core.run()
    assert core.core.stats().prefix_entries > 0


def test_who_could_never_come_back_ends_instead_of_being_swapped_out() -> None:
    """Two branches share the only block; neither can go on, nor return beside the other."""
    core = CoreDriver(1, 2, SWAP, host_blocks=4)
    seq_id = core.add([1, 2], None, n=2)
    core.run()
    assert {core.reason(branch) for branch in (seq_id, seq_id + 1)} == {FinishReason.KV_POOL}
