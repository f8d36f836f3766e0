"""A copy of a scheduler's prefix index, kept from the stream of WatchKvEvents.

Owns the copy and the number to resume at; opens no connection. Invariant: between two snapshots the events'
numbers are consecutive, and a complete mirror holds exactly what the index held at its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.v1 import kv_cache_pb2 as pb
from octavo_client.errors import FailedPrecondition


@dataclass(frozen=True, slots=True)
class MirroredBlock:
    """What one findable block holds. key is empty for a block that is not full."""

    key: bytes
    parent_key: bytes
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class KvMirror:
    """blocks: by (tier, block id). complete: False while a snapshot is under way."""

    blocks: dict[tuple[str, int], MirroredBlock] = field(default_factory=dict)
    number: int = 0
    stream_id: int = 0
    complete: bool = False
    snapshots: int = 0

    def request(self) -> pb.WatchKvEventsRequest:
        """What goes on where this mirror ends; a snapshot if it is not complete."""
        if not self.complete:
            return pb.WatchKvEventsRequest()
        return pb.WatchKvEventsRequest(after=self.number, stream_id=self.stream_id)

    def take(self, message: pb.WatchKvEventsResponse) -> None:
        """Applies a message. Raises FailedPrecondition for a gap in the numbers."""
        self.stream_id = message.stream_id
        for event in message.events:
            self._take(event)

    def _take(self, event: pb.KvEvent) -> None:
        kind = event.WhichOneof("event")
        if event.number and kind != "snapshot_complete":
            if not self.complete or event.number != self.number + 1:
                self.complete = False
                raise FailedPrecondition(f"event {event.number} after {self.number}: some are missing")
            self.number = event.number
        match kind:
            case "stored":
                stored = event.stored
                held = MirroredBlock(stored.key, stored.parent_key, tuple(stored.token_ids))
                self.blocks[stored.tier, stored.block_id] = held
            case "removed":
                del self.blocks[event.removed.tier, event.removed.block_id]
            case "cleared":
                self.blocks.clear()
                self.complete = event.number > 0
            case "snapshot_complete":
                self.number, self.complete = event.number, True
                self.snapshots += 1
