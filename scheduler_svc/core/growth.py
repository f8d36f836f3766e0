"""How many blocks the running sequences will open soon, what they were promised, and what an admission leaves
for them.

Owns the three numbers; decides nothing. Invariant: all follow from rows alone, so that they cost a few array
operations however large the pool is.
"""

import numpy as np

from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.core.session import Session

RUNNING_PER_RESERVED_BLOCK = 4
"""An admission leaves a block for every so many running sequences, so that their growth does not soon preempt
it.
"""


def growth(session: Session, steps: int) -> int:
    """Blocks that the decodes open within so many steps."""
    rows = session.rows
    lacking = np.minimum(rows.left[: rows.used], steps) - rows.room[: rows.used]
    return int((-(-np.maximum(lacking, 0) // rows.block_size)).sum())


def swap_horizon(config: SchedulerConfig) -> int:
    """Steps until the blocks of a swap-out begun now can be free again."""
    return config.depth + 1


def reserve_of(session: Session, config: SchedulerConfig) -> int:
    """Blocks that an admission leaves; none while nobody runs.

    With a host tier it is the growth of twice the time that a swap takes, the newcomer's too, so that what
    has just come in is not swapped out at once.
    """
    running = session.rows.count
    if not running:
        return 0
    reserve = max(config.watermark_blocks, running // RUNNING_PER_RESERVED_BLOCK)
    if session.host is None:
        return reserve
    steps = 2 * swap_horizon(config)
    return max(reserve, growth(session, steps) + session.manager.blocks_for(steps))


def promised_blocks(session: Session) -> int:
    """Blocks that the contexts of rows under prefill and the copies after a fork still lack."""
    rows, manager = session.rows, session.manager
    held_and_needed = (
        (int(rows.num_blocks[row]), manager.blocks_for(len(seq.tokens)) + len(seq.followers))
        for row, seq in rows.prefilling.items()
    )
    return sum(needed - held for held, needed in held_and_needed) + rows.num_forked
