"""The stream replays to the exact pool, whatever happens and however slow the reader is."""

import random

import numpy as np
import pytest

from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import SchedulerConfig
from scheduler_svc.core.stats import Counters, PoolStats
from scheduler_svc.pool_page.sample import Listed, Sample, sample_of
from scheduler_svc.pool_page.updates import MAX_CHARACTERS, Viewer
from tests.fakes.core_driver import CoreDriver
from tests.fakes.pool_reader import PoolReader


class StubEngine:
    """As much of an engine as a sample needs."""

    def __init__(self) -> None:
        self.worker = worker_pb2.GetCapacityResponse(worker_epoch=1, model_id="tiny")
        self.ready, self.num_sessions = True, 1

    def name_of(self, seq_id: int) -> str:
        return f"r{seq_id}"


def assert_same(reader: PoolReader, sample: Sample) -> None:
    assert reader.whole
    assert reader.cells == list(
        zip(sample.flags.tolist(), sample.fill.tolist(), sample.owner.tolist(), strict=True)
    )
    assert reader.order == [one.seq for one in sample.listed]
    assert reader.sequences == {one.seq: list(one) for one in sample.listed}
    assert reader.tables == {seq: table.tolist() for seq, table in sample.tables.items()}


@pytest.mark.parametrize("seed", range(12))
def test_deltas_replay_to_the_exact_pool_of_a_real_core(seed: int) -> None:
    """Random requests, aborts, lost workers and readers that skip many steps, in pools of random shape."""
    chance = random.Random(seed)
    engine = StubEngine()
    size = chance.choice([1, 2, 4, 16])
    core = CoreDriver(chance.randint(8, 60), size, SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=6))
    viewer, reader, whole = Viewer(), PoolReader(), 0
    common = [chance.randrange(900) for _ in range(2 * size)]
    for _ in range(120):
        action = chance.random()
        if action < 0.25:
            own = [chance.randrange(900) for _ in range(chance.randint(1, 2 * size + 1))]
            core.offer((common if chance.random() < 0.6 else []) + own, max_tokens=chance.randint(1, 9))
        elif action < 0.3 and core.requests:
            core.abort(chance.choice(list(core.requests)))
        elif action < 0.32:
            core.worker_lost()
            engine.ready = False
        elif core.kv is None:
            core.worker_ready()
            engine.ready, engine.num_sessions = True, engine.num_sessions + 1
        else:
            core.step()
        if chance.random() < 0.4:
            sample = sample_of(core.core, engine, 0.0)  # type: ignore[arg-type]
            reader.apply(viewer.update(sample, [], 0))
            if reader.whole:
                assert_same(reader, sample)
                whole += 1
    assert whole > 20


def sample_with(chance: random.Random, blocks: int, session: str = "a") -> Sample:
    """A pool in which nothing is alike, and as many long names and tables as are listed."""
    noise = np.random.default_rng(chance.randrange(1 << 30))
    listed = tuple(
        Listed(seq, 1, 4000, 0, chance.randrange(4000), 5, 900, 0, 0, 0, 1.5) for seq in range(128)
    )
    return Sample(
        0.0, session, "m" * 300, 16, 4096,
        noise.integers(0, 1 << 20, blocks).astype(np.uint32), noise.integers(0, 17, blocks).astype(np.uint32),
        noise.integers(0, 1 << 32, blocks).astype(np.uint32), np.zeros(blocks, np.int64), listed,
        {seq: f"{seq}-" + "\u00e9" * 70 for seq in range(128)},
        {seq: noise.integers(0, blocks, 1000).astype(np.int32) for seq in range(48)},
        PoolStats(counters=Counters()),
    )  # fmt: skip


def test_an_update_is_bounded_and_a_pool_too_large_for_one_comes_in_pieces() -> None:
    chance = random.Random(0)
    viewer, reader = Viewer(), PoolReader()
    events = [{"kind": "hit", "t": 1.0, "n": 64, "blocks": list(range(10**6, 10**6 + 64))}] * 512
    sample, updates = sample_with(chance, 100_000), 0
    while not reader.whole:
        text = viewer.update(sample, events, 7)
        assert len(text) <= MAX_CHARACTERS <= 64 * 1024
        reader.apply(text)
        updates += 1
    assert 2 < updates < 80
    assert_same(reader, sample)
    assert len(reader.events) + reader.missed == updates * 519  # none is lost without being counted
    assert len(viewer.update(sample, [], 0)) < 1_200  # nothing has changed since


def test_a_new_session_begins_with_empty_blocks_on_both_sides() -> None:
    chance = random.Random(1)
    viewer, reader = Viewer(), PoolReader()
    for session, blocks in (("a", 50), ("b", 50), ("c", 20), ("", 0), ("d", 30)):
        sample = sample_with(chance, blocks, session) if blocks else sample_with(chance, 1, session)
        while True:
            reader.apply(viewer.update(sample, [], 0))
            if reader.whole:
                break
        assert_same(reader, sample)
        assert reader.pool["session"] == session
