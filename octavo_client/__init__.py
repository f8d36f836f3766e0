"""The typed Python client of Octavo, and the `octavo` command.

Owns nothing itself: it names what a user imports, and imports neither service. Invariant: what stands in
__all__ is public.
"""

from octavo_client.aio import AsyncClient
from octavo_client.client import Client
from octavo_client.errors import OctavoError
from octavo_client.types import (
    Accepted,
    BatchEvent,
    ChatMessage,
    Choice,
    Completion,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerateOptions,
    ModelInfo,
    PositionLogprobs,
    Request,
    RequestFailed,
    TokenLogprob,
    Usage,
)
from octavo_client.views import Explanation, PoolMap, PoolStats, RequestView, SequenceBlock, SequenceBlocks

__all__ = [
    "Accepted",
    "AsyncClient",
    "BatchEvent",
    "ChatMessage",
    "Choice",
    "Client",
    "Completion",
    "Delta",
    "Event",
    "Explanation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "ModelInfo",
    "OctavoError",
    "PoolMap",
    "PoolStats",
    "PositionLogprobs",
    "Request",
    "RequestFailed",
    "RequestView",
    "SequenceBlock",
    "SequenceBlocks",
    "TokenLogprob",
    "Usage",
]
