"""One moment of the pool, as the viewers are to see it.

Owns which sequences and tables are listed, and the packing of blocks; knows neither viewers nor time but the
moment's own. Invariant: everything in a sample is of one moment between two inputs of the core.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.logging import epoch_text
from scheduler_svc.core.plan import Int32Array, Int64Array
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SeqState
from scheduler_svc.core.stats import PoolStats
from scheduler_svc.engine import Engine

LISTED = 128
"""Sequences that a sample names: those that run by row, then those that wait in the order of the queue."""
TABLES = 48
TABLE_ENTRIES = 1024
ID_CHARACTERS = 80
_STATES = {SeqState.WAITING: 0, SeqState.RUNNING: 1, SeqState.PREEMPTED: 2}
_CACHED_BIT, _REFS_SHIFT = np.uint32(4), np.uint32(3)

UInt32Array = npt.NDArray[np.uint32]


class Listed(NamedTuple):
    """A live sequence. state: 0 waiting, 1 running, 2 preempted. host: blocks of host memory that hold it
    while it is swapped out. arrival: seconds of the engine's clock.
    """

    seq: int
    state: int
    prompt: int
    cached: int
    computed: int
    output: int
    blocks: int
    preemptions: int
    priority: int
    host: int
    arrival: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Arrays [num_blocks].

    session: changes with every session, whose blocks have nothing to do with another's; empty without one.
    flags: state in bits 0 and 1 (a BlockState), findable in bit 2, reference count above. fill: tokens held.
    owner: 1 + a sequence that holds the block (modulo 2^32), 0 for nobody. content: see PoolPicture. tables:
    the first TABLE_ENTRIES entries of the first TABLES rows.
    """

    time: float
    session: str
    model: str
    block_size: int
    bytes_per_block: int
    flags: UInt32Array
    fill: UInt32Array
    owner: UInt32Array
    content: Int64Array
    listed: tuple[Listed, ...]
    ids: dict[int, str]
    tables: dict[int, Int32Array]
    stats: PoolStats

    @property
    def num_blocks(self) -> int:
        return len(self.flags)


def sample_of(core: Scheduler, engine: Engine, now: float) -> Sample:
    """Asked of the engine. Costs a few array operations over the pool and the listed sequences."""
    picture, worker = core.pool_picture(TABLES, LISTED), engine.worker
    listed = tuple(
        Listed(
            view.seq_id, _STATES[view.state], view.prompt_len, view.cached, view.computed, view.output_len,
            view.num_blocks, view.preemptions, view.priority, view.host_blocks,
            view.arrival,
        )
        for view in picture.sequences
    )  # fmt: skip
    pool_map, stats = picture.map, core.stats()
    up = worker is not None and engine.ready
    flags = pool_map.state.astype(np.uint32) | pool_map.cached.astype(np.uint32) * _CACHED_BIT
    return Sample(
        time=now,
        session=f"{epoch_text(worker.worker_epoch)}-{engine.num_sessions}" if worker and up else "",
        model=worker.model_id if worker else "",
        block_size=stats.block_size,
        bytes_per_block=worker.bytes_per_block if worker else 0,
        flags=flags | pool_map.ref_count.astype(np.uint32) << _REFS_SHIFT,
        fill=pool_map.fill.astype(np.uint32),
        owner=(picture.owner + 1).astype(np.uint32),
        content=picture.content,
        listed=listed,
        ids={one.seq: engine.name_of(one.seq)[:ID_CHARACTERS] for one in listed},
        tables={int(seq): table[:TABLE_ENTRIES] for seq, table in picture.tables.items()},
        stats=stats,
    )
