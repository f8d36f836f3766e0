"""How the client connects: the address it speaks to, and what waiting for it means.

Owns the address and the words of a missing server; knows no event and no command. Invariant: sync and async
use the same settings.
"""

from __future__ import annotations

import json
import os

from octavo.transport import client_options
from octavo_client.errors import ConnectionFailed, DeadlineExceeded, NotFound, OctavoError

DEFAULT_SERVER = "127.0.0.1:7450"
INFERENCE_SERVICE = "octavo.v1.InferenceService"
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
POLL_SECONDS = 0.1
_RETRIED = ("Generate", "GenerateOnce", "Abort", "Tokenize", "Detokenize", "GetModelInfo")
CONNECT_SECONDS = 20
"""What one attempt to connect may take; gRPC calls it min_reconnect_backoff_ms."""


SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [
                *({"service": INFERENCE_SERVICE, "method": method} for method in _RETRIED),
                {"service": "octavo.v1.KvCacheService"},
            ],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
"""What gRPC sends again by itself: a call that was refused as UNAVAILABLE (no worker, shutting down, nobody
there) before anything of its answer came. A stream that has begun is never sent again.
"""


def server_address(given: str | None) -> str:
    """The address given, else OCTAVO_SERVER, else the default of a local scheduler."""
    return given or os.environ.get("OCTAVO_SERVER") or DEFAULT_SERVER


def channel_options() -> list[tuple[str, int | str]]:
    """The common settings, room for a pool map of millions of blocks, a quick reconnect, and retries."""
    return [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        *client_options(MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", CONNECT_SECONDS * 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def not_ready_message(target: str, timeout: float, last: str) -> str:
    return f"{target} was not ready within {timeout:g} s: {last}"


NOT_SERVING = "the scheduler is up, but no worker is ready"


def health_failure(error: OctavoError) -> str:
    """Why a health call failed, in words, for wait_ready. Raises errors that waiting cannot cure."""
    if isinstance(error, ConnectionFailed | DeadlineExceeded):
        return "nobody answers there"
    if isinstance(error, NotFound):
        return NOT_SERVING
    raise error
