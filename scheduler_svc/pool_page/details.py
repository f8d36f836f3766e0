"""What a click asks for: one block, or one sequence.

Owns the form of the answers; knows no HTTP. Invariant: an answer is one moment of the core, and holds no
token.
"""

from typing import Any

from google.protobuf.json_format import MessageToDict

from scheduler_svc.core.plan import BlockId, SeqId
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine import Engine
from scheduler_svc.inspect import KvCacheService

SHOWN_BLOCKS = 4096


def block_details(core: Scheduler, engine: Engine, block: int, now: float) -> dict[str, Any] | None:
    """Who holds the block, its fill, its place in the hash chain and its age; None when there is no such
    block.
    """
    found = core.block_view(BlockId(block), now)
    if found is None:
        return None
    holders = [{"seq": seq_id, "id": engine.name_of(seq_id), "logical": at} for seq_id, at in found.holders]
    return {
        "block": found.block,
        "state": found.state,
        "refs": found.ref_count,
        "fill": found.fill,
        "holders": holders,
        "key": found.key,
        "parents": found.parents,
        "rooted": found.depth_known,
        "children": found.children,
        "held_for": found.held_for,
        "idle_for": found.idle_for,
    }


def sequence_details(core: Scheduler, inspector: KvCacheService, seq_id: int) -> dict[str, Any] | None:
    """Why it waits or what it was served, and its block table; None when it is not live."""
    found = inspector.explanation(core, SeqId(seq_id))
    if found is None:
        return None
    table = core.sequence_blocks(SeqId(seq_id))
    return {
        "seq": seq_id,
        "explanation": MessageToDict(found, preserving_proto_field_name=True),
        "blocks": [list(entry) for entry in table[:SHOWN_BLOCKS]],
        "num_blocks": len(table),
    }
