"""WatchKvEvents: numbers, what is kept, snapshots, and a consumer that holds exactly the index."""

import random
from typing import Any

import numpy as np
import pytest

from octavo.errors import ResourceExhausted
from octavo.v1 import kv_cache_pb2 as pb
from octavo_client.errors import FailedPrecondition
from octavo_client.kv_mirror import KvMirror
from scheduler_svc import kv_stream
from scheduler_svc.kv_stream import LINGER_SECONDS, KvEvents, snapshot_messages
from tests.fakes.core_driver import CoreDriver
from tests.fakes.index_copy import entries_now
from tests.fakes.random_run import RandomRun, random_config


class Reader:
    """A consumer as WatchKvEvents serves it, without gRPC."""

    def __init__(self, events: KvEvents, driver: CoreDriver) -> None:
        self.events, self.driver = events, driver
        self.mirror = KvMirror()
        self.number: int | None = None

    def read(self, messages: int | None = None) -> None:
        """Reads until nothing is left, or so many messages."""
        while messages is None or messages > 0:
            found = self.events.after(self.number) if self.number is not None else None
            if found is None:
                snapshot = self.events.snapshot(self.driver.core)
                for message in snapshot_messages(snapshot, self.events.stream_id):
                    self.mirror.take(copied(message))
                self.number = snapshot.number
            elif found:
                sent = pb.WatchKvEventsResponse(events=found, stream_id=self.events.stream_id)
                self.mirror.take(copied(sent))
                self.number = found[-1].number
            else:
                return
            messages = None if messages is None else messages - 1

    def holds_the_index(self) -> bool:
        wanted = entries_now(self.driver.core)
        held = {block: entry for (_, block), entry in self.mirror.blocks.items()}
        return {b: (e.key, e.token_ids) for b, e in held.items()} == {
            b: (key, tokens) for b, (key, _, _, tokens) in wanted.items()
        }


def copied(message: pb.WatchKvEventsResponse) -> pb.WatchKvEventsResponse:
    return pb.WatchKvEventsResponse.FromString(message.SerializeToString())


def rig(seed: int = 0, **limits: Any) -> tuple[RandomRun, KvEvents]:
    chance = random.Random(seed)
    driver = CoreDriver(24, 2, random_config(chance, prefix_cache=True), max_model_len=40, vocab_size=40)
    events = KvEvents(4)
    return RandomRun(driver, chance), events


def collect(run: RandomRun, events: KvEvents, now: float = 0.0) -> None:
    if events.following:
        events.collect(run.driver.core, now)


@pytest.mark.parametrize("seed", range(5))
def test_a_consumer_holds_exactly_the_index_at_every_point(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_stream, "MAX_EVENTS", 40)
    monkeypatch.setattr(kv_stream, "MESSAGE_EVENTS", 3)
    run, events = rig(seed)
    events.enter()
    quick, slow = Reader(events, run.driver), Reader(events, run.driver)
    quick.read()
    slow.read(1)
    for turn in range(250):
        run.operate(1)
        collect(run, events)
        quick.read()
        assert quick.mirror.complete
        assert quick.holds_the_index()
        if turn % 25 == 0:
            slow.read(1)
    slow.read()
    assert slow.holds_the_index()
    assert quick.mirror.snapshots == 1, "it never fell behind"
    assert slow.mirror.snapshots > 1, "it did, and was told all anew"


def test_a_stream_is_resumed_by_number_while_the_events_are_kept() -> None:
    run, events = rig()
    events.enter()
    reader = Reader(events, run.driver)
    run.operate(40)
    reader.read()
    events.leave(0.0)
    run.operate(60)
    collect(run, events, LINGER_SECONDS - 1)
    again = Reader(events, run.driver)
    again.mirror, again.number = reader.mirror, reader.mirror.number
    again.read()
    assert again.mirror.snapshots == 1
    assert again.holds_the_index()


def test_after_a_while_without_readers_nothing_is_noted_and_a_number_is_too_old() -> None:
    run, events = rig()
    events.enter()
    reader = Reader(events, run.driver)
    reader.read()
    run.operate(40)
    collect(run, events)
    reader.read()
    events.leave(0.0)
    collect(run, events, LINGER_SECONDS + 1)
    assert not events.following
    assert run.driver.core.kv_feed.take_changes() == []
    assert events.after(reader.number or 0) is None
    run.operate(40)
    events.enter()
    reader.read()
    assert reader.mirror.snapshots == 2
    assert reader.holds_the_index()
    run.operate(10)
    collect(run, events)
    reader.read()
    assert reader.holds_the_index()


def test_a_number_of_the_future_is_answered_with_a_snapshot() -> None:
    run, events = rig()
    events.enter()
    events.snapshot(run.driver.core)
    assert events.after(10**9) is None


def test_what_is_kept_is_bounded_in_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "MAX_TOKENS", 20)
    run, events = rig()
    events.enter()
    events.snapshot(run.driver.core)
    for _ in range(100):
        run.operate(1)
        collect(run, events)
        assert sum(len(event.stored.token_ids) for event, _ in events._kept) <= 20


def test_parents_are_named_by_their_keys_and_first_blocks_by_their_namespace() -> None:
    driver = CoreDriver(32, 2)
    for namespace in ("", "", "tenant"):
        driver.add([1, 2, 3, 4, 5, 6, 7], 1, namespace=namespace)
        driver.run()
    events = KvEvents(1)
    reader = Reader(events, driver)
    reader.read()
    blocks = list(reader.mirror.blocks.values())
    full = [block for block in blocks if block.key]
    keys = {block.key for block in full}
    assert len(keys) == len(full) == 6, "the two namespaces share no key"
    roots = {block.parent_key for block in blocks if block.token_ids == (1, 2)}
    assert {len(root) for root in roots} == {8}
    assert len(roots) == 2
    assert b"tenant" not in b"".join([*keys, *roots])
    assert all(block.parent_key in keys for block in blocks if block.token_ids != (1, 2))


def test_more_readers_than_allowed_are_refused() -> None:
    events = KvEvents(2)
    events.enter()
    events.enter()
    with pytest.raises(ResourceExhausted, match="2 readers follow already, the limit is 2") as refused:
        events.enter()
    assert refused.value.reason == "TOO_MANY_READERS"
    events.leave(0.0)
    events.enter()


def test_a_mirror_notices_a_gap() -> None:
    mirror = KvMirror()
    mirror.take(
        pb.WatchKvEventsResponse(events=[pb.KvEvent(number=4, snapshot_complete=pb.SnapshotComplete())])
    )
    with pytest.raises(FailedPrecondition, match="event 6 after 4"):
        mirror.take(pb.WatchKvEventsResponse(events=[pb.KvEvent(number=6, cleared=pb.CacheCleared())]))
    assert not mirror.complete
    assert not mirror.request().HasField("after")


def test_a_lost_worker_is_a_clear() -> None:
    run, events = rig()
    events.enter()
    reader = Reader(events, run.driver)
    run.driver.add([1, 2, 3, 4, 5], 1)
    run.driver.run()
    reader.read()
    assert reader.mirror.blocks
    run.driver.worker_lost()
    collect(run, events)
    reader.read()
    assert reader.mirror.blocks == {}
    assert reader.mirror.snapshots == 1
    assert np.all([event.WhichOneof("event") == "cleared" for event, _ in list(events._kept)[-1:]])
