"""Why a sequence waits: the explanation says what the next admission will do, and changes nothing."""

import random

import numpy as np

from scheduler_svc.core.explanation import NAMED, Explanation, WaitReason
from scheduler_svc.core.plan import PreemptionMode, SchedulerConfig, SeqId, StepPlan
from scheduler_svc.core.sequence import SeqState
from tests.fakes.core_driver import CoreDriver


def explain(core: CoreDriver, seq_id: int, now: float = 0.0) -> Explanation:
    found = core.core.explain(SeqId(seq_id), now)
    assert found is not None
    return found


def grown(plan: StepPlan) -> int:
    """Blocks that the running sequences took in this step, before anybody was admitted."""
    return int(np.count_nonzero(~np.isin(plan.table_rows, [setup.row for setup in plan.setups])))


def test_what_it_says_of_the_head_of_the_queue_is_what_the_next_step_does() -> None:
    """40 random mixes in tight pools; each outcome is seen often."""
    seen = dict.fromkeys(WaitReason, 0)
    for seed in range(40):
        chance = random.Random(seed)
        config = SchedulerConfig(
            max_num_seqs=3, max_num_batched_tokens=256, depth=1,
            match_inside_blocks=False,  # with it, a head that fits only without the copy goes without
        )  # fmt: skip
        core = CoreDriver(12, 4, config)
        common = [chance.randrange(900) for _ in range(9)]
        for _ in range(10):
            own = [chance.randrange(900) for _ in range(chance.randint(1, 20))]
            core.add((common if chance.random() < 0.5 else []) + own, chance.randint(1, 12))
        while core.core.has_work():
            waiting = [view for view in core.core.sequences() if view.state is not SeqState.RUNNING]
            found = [explain(core, view.seq_id) for view in waiting]
            head = min(found, key=lambda one: one.ahead, default=None)
            preemptions = core.core.stats().counters.preemptions
            plan = core.schedule()
            if head is not None and plan and core.core.stats().counters.preemptions == preemptions:
                (reason, *_) = head.reasons
                seen[reason] += 1
                runs = {view.seq_id: view.state is SeqState.RUNNING for view in core.core.sequences()}
                fits = head.need is not None and head.need.total <= head.spare_blocks - grown(plan)
                assert runs[head.view.seq_id] == (reason is WaitReason.NEXT_STEP and fits), head
                assert [one.ahead for one in sorted(found, key=lambda one: one.ahead)] == [*range(len(found))]
            if core.in_flight:
                core.answer()
    for reason in (WaitReason.NO_ROW, WaitReason.NO_BLOCKS, WaitReason.NEXT_STEP):
        assert seen[reason] > 20, seen


def test_it_changes_nothing() -> None:
    """The same run with and without looks gives the same plans and counts, collisions too."""
    runs = []
    for looks in (False, True):
        chance = random.Random(5)
        core = CoreDriver(8, 4, SchedulerConfig(max_num_batched_tokens=16), hash_block=lambda data: bytes(16))
        for _ in range(8):
            core.add([chance.randrange(3) for _ in range(chance.randint(4, 14))], 6)
        while core.core.has_work():
            for view in core.core.sequences() if looks else ():
                core.core.explain(view.seq_id, 0.0)
            core.step()
        runs.append((repr(core.plans), core.core.stats().counters))
    assert runs[0] == runs[1]
    assert runs[0][1].prefix_collisions > 0


def test_a_waiting_sequence_names_those_ahead_and_what_it_lacks() -> None:
    core = CoreDriver(8, 4, SchedulerConfig(watermark_blocks=1))
    running = core.add(range(10, 30), 10)  # 5 blocks of 8
    core.schedule()
    urgent, second = core.add(range(100, 120), 4, priority=-1), core.add(range(200, 220), 4)
    found = explain(core, second)
    assert found.reasons == (WaitReason.BEHIND_OTHERS, WaitReason.NO_BLOCKS)
    assert (found.ahead, found.first_ahead) == (1, (urgent,))
    assert found.need is not None
    assert (found.need.context, found.need.hits, found.need.reserve, found.need.total) == (5, 0, 1, 6)
    assert (found.spare_blocks, found.free_blocks, found.evictable_blocks) == (3, 3, 0)
    head = explain(core, urgent)
    assert (head.reasons, head.ahead) == ((WaitReason.NO_BLOCKS,), 0)
    runs = explain(core, running)
    assert (runs.reasons, runs.need, runs.ahead, runs.admissions) == ((), None, 0, 1)
    assert core.core.explain(SeqId(99), 0.0) is None


def test_hits_lower_the_need_and_idle_ones_do_not() -> None:
    core = CoreDriver(8, 4, SchedulerConfig(watermark_blocks=0))
    core.add(range(12), 1)
    core.run()  # leaves 2 or 3 findable blocks that nobody holds
    need = explain(core, core.add([*range(12), 50, 51], 1)).need
    assert need is not None
    assert (need.context, need.hits, need.idle_hits, need.total) == (4, 3, 3, 4)


def test_a_preempted_sequence_says_since_when_and_who_gives_way_next() -> None:
    core = CoreDriver(4, 2, SchedulerConfig(watermark_blocks=0))
    older, younger = core.add([1, 2], 6), core.add([3, 4], 6)
    core.schedule()
    assert explain(core, older).next_victim == younger
    while core.core.stats().preempted == 0:
        core.step()
    found = explain(core, younger, now=7.5)
    assert (found.view.state, found.view.preemptions, found.preempted_for) == (SeqState.PREEMPTED, 1, 7.5)
    assert explain(core, older).next_victim is None  # at most one runs
    assert explain(core, older).preempted_for is None


def test_the_blocks_named_are_those_evicted_next() -> None:
    core = CoreDriver(12, 2, SchedulerConfig(watermark_blocks=0))
    for start in range(0, 60, 10):
        core.add(range(start, start + 4), 1)
    core.run()
    waiting = core.add(range(100, 110), 1)
    named = explain(core, waiting)
    assert named.free_blocks == 0
    assert len(named.next_evicted) == NAMED
    core.schedule()
    taken = [block for block, *_ in core.core.sequence_blocks(SeqId(waiting))]
    assert taken == named.next_evicted[: len(taken)].tolist()


def test_without_a_worker_everybody_waits_for_one() -> None:
    core = CoreDriver(4, 2, ready=False)
    found = explain(core, core.add([1], 1))
    assert (found.reasons, found.need, found.next_evicted.tolist()) == ((WaitReason.NO_WORKER,), None, [])


def test_a_group_without_a_row_for_every_branch_waits_for_rows() -> None:
    core = CoreDriver(64, 4, SchedulerConfig(max_num_seqs=3))
    core.add(range(8), 30)
    core.step()
    leader = core.add(range(50, 58), 2, n=3)
    core.step()
    assert explain(core, leader).reasons == (WaitReason.NO_ROW,)
    assert explain(core, leader).free_rows == 2


def test_who_waits_for_a_transfer_is_told_so_and_waits_until_it_ends() -> None:
    """Random crowds with late acknowledgements: a head whose own copy is under way, a head and a row that
    lack blocks which are fenced. None of them goes on in the next plan.
    """
    seen = dict.fromkeys(("own", "fenced", "row"), 0)
    for seed in range(15):
        chance = random.Random(seed)
        config = SchedulerConfig(max_num_seqs=4, depth=1, watermark_blocks=0, preemption=PreemptionMode.SWAP)
        core = CoreDriver(chance.choice([10, 14]), 4, config, host_blocks=64)
        core.holds_transfers = chance.random() < 0.7
        for _ in range(8):
            core.add([chance.randrange(900) for _ in range(chance.randint(1, 20))], chance.randint(1, 20))
        while core.core.has_work():
            found = [explain(core, view.seq_id) for view in core.core.sequences()]
            head = min(
                (one for one in found if one.need is not None), key=lambda one: one.ahead, default=None
            )
            rows = [one for one in found if one.need is None and one.reasons]
            fenced = core.core.stats().blocks_fenced
            plan = core.schedule()
            if head is not None and WaitReason.TRANSFER in head.reasons:
                own = WaitReason.NO_BLOCKS not in head.reasons
                seen["own" if own else "fenced"] += 1
                assert head.view.host_blocks > 0 if own else 0 < head.fenced_blocks == fenced
                now = {view.seq_id: view.state for view in core.core.sequences()}
                assert now[head.view.seq_id] is not SeqState.RUNNING
            for one in rows:
                seen["row"] += 1
                assert one.reasons == (WaitReason.TRANSFER,)
                assert one.fenced_blocks == fenced > 0
                assert plan is None or not len(plan.rows)
            if core.in_flight:
                core.answer()
    assert min(seen.values()) > 5, seen
