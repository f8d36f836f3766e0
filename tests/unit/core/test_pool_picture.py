"""Owners, contents and single blocks, against the tables they are drawn from."""

import random
from itertools import chain

import numpy as np

from scheduler_svc.core.plan import BlockId, SchedulerConfig, SeqId
from scheduler_svc.core.pool_picture import NOBODY, BlockView
from tests.fakes.core_driver import CoreDriver


def view(core: CoreDriver, block: int, now: float = 0.0) -> BlockView:
    found = core.core.block_view(BlockId(block), now)
    assert found is not None
    return found


def test_owners_contents_and_tables_agree_with_the_pool_at_every_step() -> None:
    chance = random.Random(3)
    core = CoreDriver(24, 4, SchedulerConfig(max_num_batched_tokens=16))
    common = [chance.randrange(900) for _ in range(9)]
    for _ in range(12):
        own = [chance.randrange(900) for _ in range(chance.randint(1, 12))]
        core.add((common if chance.random() < 0.6 else []) + own, chance.randint(1, 12))
    shared = 0
    while core.core.has_work():
        core.step()
        found, running = core.core.pool_picture(100, 100), {}
        for sequence in core.core.sequences():
            table = [block for block, *_ in core.core.sequence_blocks(sequence.seq_id)]
            if table:
                running[sequence.seq_id] = table
        views = {view.seq_id: view for view in core.core.sequences()}
        assert {view.seq_id: view for view in found.sequences} == views
        assert {seq_id: table.tolist() for seq_id, table in found.tables.items()} == running
        refs = np.bincount(np.array([*chain.from_iterable(running.values())], int), minlength=24)
        assert refs.tolist() == found.map.ref_count.tolist()
        for block, owner in enumerate(found.owner.tolist()):
            assert (owner == NOBODY) == (refs[block] == 0)
            assert owner == NOBODY or block in running[owner]
        assert (found.content != 0).tolist() == found.map.cached.astype(bool).tolist()
        shared = max(shared, int(refs.max()))
        for block in range(24):
            holders = [
                (seq_id, at) for seq_id, table in running.items() for at, b in enumerate(table) if b == block
            ]
            assert sorted(view(core, block).holders) == sorted(holders)
            held = [min(4, max(0, views[seq_id].computed - 4 * at)) for seq_id, at in holders]
            fill, cached = int(found.map.fill[block]), bool(found.map.cached[block])
            assert fill >= max(held, default=0)
            assert cached or fill == max(held, default=0)
    assert shared >= 2
    assert list(core.core.pool_picture(0, 0).tables) == []


def test_a_block_names_its_chain_and_how_long_nobody_holds_it() -> None:
    core = CoreDriver(8, 2, SchedulerConfig())
    first = core.add([1, 2, 3, 4, 5, 6, 7], 4)
    core.step()
    table = [block for block, *_ in core.core.sequence_blocks(SeqId(first))]
    middle = view(core, table[1], now=4.0)
    assert (middle.parents, middle.children, middle.depth_known) == ((table[0],), (table[2],), True)
    assert (middle.holders, middle.fill, middle.held_for, middle.idle_for) == (((first, 1),), 2, 4.0, None)
    assert len(middle.key) == 32
    core.run()
    idle = view(core, table[1], now=9.0)
    assert (idle.state, idle.ref_count, idle.holders, idle.idle_for) == (1, 0, (), 9.0)
    free = view(core, next(b for b in range(8) if not core.core.pool_map().state[b]))
    assert (free.key, free.parents, free.held_for, free.idle_for) == ("", (), None, None)


def test_there_is_no_block_beyond_the_pool_or_without_a_worker() -> None:
    core = CoreDriver(4, 2)
    assert core.core.block_view(BlockId(4), 0.0) is None
    assert core.core.block_view(BlockId(-1), 0.0) is None
    core.worker_lost()
    assert core.core.block_view(BlockId(0), 0.0) is None
    assert core.core.pool_picture(4, 4).content.tolist() == []


def test_those_that_run_are_listed_first_then_the_queue_in_its_order() -> None:
    core = CoreDriver(24, 4, SchedulerConfig(max_num_seqs=2))
    ids = [core.add([i, i + 1], 4, priority=-i) for i in range(6)]
    core.schedule()
    for count in (6, 4, 1):
        listed = [view.seq_id for view in core.core.pool_picture(9, count).sequences]
        assert listed == ids[::-1][:count]
