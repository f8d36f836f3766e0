"""Those who follow the prefix index: numbered events, kept for a while, and snapshots.

Owns the numbers, the events that may be asked for again, and how many may follow; knows neither gRPC nor the
engine's loop. Invariant: events have consecutive numbers, what is kept is bounded, and a reader who fell
behind it gets a snapshot, never a gap.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.errors import ResourceExhausted
from octavo.v1 import kv_cache_pb2 as pb
from scheduler_svc.core.kv_events import BlocksRemoved, BlocksStored, KvChange
from scheduler_svc.core.scheduler import Scheduler

MAX_EVENTS = 65_536
"""Events that are kept, and..."""
MAX_TOKENS = 4 << 20
"""...the token ids in them."""
MESSAGE_TOKENS = 16_384
"""A message ends with the block that passes so many token ids..."""
MESSAGE_EVENTS = 1024
"""...or so many events."""
LINGER_SECONDS = 60.0
"""How long events are noted after the last reader has gone, so that it can resume."""

DEVICE_TIER = "device"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The index when `number` was the last event."""

    number: int
    stored: BlocksStored | None
    parent_keys: list[bytes]


class KvEvents:
    """Belongs to the engine's thread. max_readers: more are refused."""

    def __init__(self, max_readers: int) -> None:
        self.stream_id = secrets.randbits(64)
        self.following = False
        self.changed = asyncio.Event()
        self._max_readers = max_readers
        self._readers = 0
        self._left_at = 0.0
        self._last = 0
        self._kept: deque[tuple[pb.KvEvent, int]] = deque()
        self._kept_tokens = 0
        self._keys: dict[int, bytes] = {}  # of each content that is held, and by how many blocks
        self._holders: Counter[int] = Counter()

    # Readers

    def enter(self) -> None:
        """Raises ResourceExhausted (TOO_MANY_READERS)."""
        if self._readers >= self._max_readers:
            raise ResourceExhausted(
                f"WatchKvEvents: {self._readers} readers follow already, the limit is {self._max_readers}",
                reason="TOO_MANY_READERS",
            )
        self._readers += 1

    def leave(self, now: float) -> None:
        self._readers -= 1
        self._left_at = now

    def follow(self, core: Scheduler) -> None:
        """Events are noted from now on, if they were not."""
        if not self.following:
            core.kv_feed.follow(True)
            self.following = True
            stored = core.kv_feed.snapshot()
            if stored is not None:
                self._learn(stored)

    def snapshot(self, core: Scheduler) -> Snapshot:
        """All that the index holds now."""
        self.follow(core)
        self._take(core.kv_feed.take_changes())
        stored = core.kv_feed.snapshot()
        return Snapshot(self._last, stored, self._parent_keys(stored) if stored is not None else [])

    def after(self, number: int) -> list[pb.KvEvent] | None:
        """The next events, at most a message of them; None if some are not kept any more."""
        if not self.following or not self._last - len(self._kept) <= number <= self._last:
            return None
        found, tokens = [], 0
        skipped = len(self._kept) - (self._last - number)
        for at in range(skipped, len(self._kept)):
            event, count = self._kept[at]
            found.append(event)
            tokens += count
            if tokens >= MESSAGE_TOKENS or len(found) == MESSAGE_EVENTS:
                break
        return found

    # The engine

    def collect(self, core: Scheduler, now: float) -> None:
        """Takes in what the index went through; to be called while `following`."""
        if not self._readers and now - self._left_at > LINGER_SECONDS:
            core.kv_feed.follow(False)
            self.following = False
            self._kept.clear()
            self._forget()
            self._kept_tokens = 0
            return
        self._take(core.kv_feed.take_changes())

    def _take(self, changes: list[KvChange]) -> None:
        if changes:
            self.changed.set()
            self.changed = asyncio.Event()
        for change in changes:
            if isinstance(change, BlocksStored):
                self._learn(change)
                for event in stored_events(change, self._parent_keys(change)):
                    self._keep(event, len(event.stored.token_ids))
            elif isinstance(change, BlocksRemoved):
                self._remove(change)
            else:
                self._forget()
                self._keep(pb.KvEvent(cleared=pb.CacheCleared()), 0)

    def _remove(self, change: BlocksRemoved) -> None:
        for block, uid in zip(change.blocks.tolist(), change.uids.tolist(), strict=True):
            removed = pb.BlockRemoved(key=self._keys[uid], block_id=block, tier=DEVICE_TIER)
            self._holders[uid] -= 1
            if not self._holders[uid]:
                del self._keys[uid], self._holders[uid]
            self._keep(pb.KvEvent(removed=removed), 0)

    def _keep(self, event: pb.KvEvent, tokens: int) -> None:
        self._last += 1
        event.number = self._last
        self._kept.append((event, tokens))
        self._kept_tokens += tokens
        while len(self._kept) > MAX_EVENTS or self._kept_tokens > MAX_TOKENS:
            self._kept_tokens -= self._kept.popleft()[1]

    def _learn(self, stored: BlocksStored) -> None:
        size = stored.tokens.shape[1]
        for uid, key, fill in zip(stored.uids.tolist(), stored.keys, stored.fills.tolist(), strict=True):
            self._keys[uid] = key.tobytes() if fill == size else b""
            self._holders[uid] += 1

    def _forget(self) -> None:
        self._keys.clear()
        self._holders.clear()

    def _parent_keys(self, stored: BlocksStored) -> list[bytes]:
        return [
            self._keys[uid] if uid > 0 else (-uid).to_bytes(8, "little") for uid in stored.parents.tolist()
        ]


def stored_events(stored: BlocksStored, parent_keys: list[bytes]) -> Iterator[pb.KvEvent]:
    """One event a block, without a number."""
    size = stored.tokens.shape[1]
    for at, (block, fill) in enumerate(zip(stored.blocks.tolist(), stored.fills.tolist(), strict=True)):
        yield pb.KvEvent(
            stored=pb.BlockStored(
                key=stored.keys[at].tobytes() if fill == size else b"",
                parent_key=parent_keys[at],
                token_ids=stored.tokens[at, :fill].tolist(),
                block_id=block,
                tier=DEVICE_TIER,
            )
        )


def snapshot_messages(snapshot: Snapshot, stream_id: int) -> Iterator[pb.WatchKvEventsResponse]:
    """A clear, every block, and the end, which carries the number."""
    message = pb.WatchKvEventsResponse(stream_id=stream_id)
    message.events.add(cleared=pb.CacheCleared())
    tokens = 0
    for event in stored_events(snapshot.stored, snapshot.parent_keys) if snapshot.stored else ():
        message.events.append(event)
        tokens += len(event.stored.token_ids)
        if tokens >= MESSAGE_TOKENS or len(message.events) >= MESSAGE_EVENTS:
            yield message
            message, tokens = pb.WatchKvEventsResponse(stream_id=stream_id), 0
    message.events.add(number=snapshot.number, snapshot_complete=pb.SnapshotComplete())
    yield message
