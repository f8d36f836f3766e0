"""Logs in memory: a driver whose core is recorded, and the log's bytes.

Owns the encoding without the writer's thread; knows no test. Invariant: entries are encoded when the log is
asked for, long after they were noted, as the writer may do.
"""

import io
from typing import Any

from scheduler_svc.core.block_hash import HashFunction
from scheduler_svc.core.plan import SchedulerConfig, StepPlan
from scheduler_svc.recorder.digest import digests_of
from scheduler_svc.recorder.format import Kind, LogReader, pack, pack_header
from scheduler_svc.recorder.recording import RecordedScheduler
from scheduler_svc.recorder.replay import Difference, Replayer
from tests.fakes.core_driver import CoreDriver


class Log:
    """make_core: for `CoreDriver`."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.config = SchedulerConfig()

    def make_core(self, config: SchedulerConfig, hash_block: HashFunction) -> RecordedScheduler:
        self.config = config
        return RecordedScheduler(config, self.entries.append, hash_block)

    def driver(self, num_blocks: int, block_size: int, config: SchedulerConfig, **options: Any) -> CoreDriver:
        return CoreDriver(num_blocks, block_size, config, make_core=self.make_core, **options)

    def data(self, plans: bool = False, ended: bool = True) -> bytes:
        entries = [*self.entries, (int(Kind.END),)] if ended else self.entries
        return pack_header(self.config, 0.0, plans) + b"".join(pack(described(e, plans)) for e in entries)


def described(entry: tuple[Any, ...], plans: bool) -> tuple[Any, ...]:
    plan = entry[-1]
    if not isinstance(plan, StepPlan):
        return entry
    return (*entry[:-1], plan.step_id, digests_of(plan), *([plan] if plans else []))


def replayed(data: bytes) -> tuple[Difference | None, Replayer, LogReader]:
    """The first difference of a log's replay, or None at its end."""
    reader = LogReader(io.BytesIO(data))
    replayer = Replayer(reader.header, reader.rebuilder)
    found = next((d for record in reader if (d := replayer.feed(record)) is not None), None)
    return found, replayer, reader
