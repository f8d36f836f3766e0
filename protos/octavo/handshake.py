"""The first message each way on the step stream: session, epoch and protocol version.

Owns the version number and the checks of both ends; knows neither transport nor plan. Invariant: two ends
that pass these checks agree on the session, on the worker's epoch and on the meaning of every later message.
"""

import secrets

from octavo.errors import FailedPrecondition, StaleEpoch
from octavo.worker.v1 import worker_pb2

PROTOCOL_VERSION = 1


def random_id() -> int:
    """A random non-zero unsigned 64-bit number, for a session or an epoch."""
    return secrets.randbits(63) << 1 | 1


def check_version(version: int, peer: str) -> None:
    """Raises FailedPrecondition (PROTOCOL_VERSION) when the peer speaks another version."""
    if version != PROTOCOL_VERSION:
        raise FailedPrecondition(
            f"protocol_version: {peer} speaks {version}, this side {PROTOCOL_VERSION}",
            reason="PROTOCOL_VERSION",
            field="protocol_version",
        )


def hello(session_id: int, worker_epoch: int) -> worker_pb2.SessionHello:
    """The scheduler's first message."""
    return worker_pb2.SessionHello(
        session_id=session_id, worker_epoch=worker_epoch, protocol_version=PROTOCOL_VERSION
    )


def accept(message: worker_pb2.SessionHello, worker_epoch: int) -> worker_pb2.SessionAccepted:
    """The worker's answer. Raises StaleEpoch for another epoch, FailedPrecondition for another version."""
    check_version(message.protocol_version, "scheduler")
    if message.worker_epoch != worker_epoch:
        raise StaleEpoch(
            f"worker_epoch: {message.worker_epoch:016x} is not the epoch of this worker, {worker_epoch:016x}",
            field="worker_epoch",
        )
    return worker_pb2.SessionAccepted(
        session_id=message.session_id, worker_epoch=worker_epoch, protocol_version=PROTOCOL_VERSION
    )


def check_accepted(message: worker_pb2.SessionAccepted, session_id: int, worker_epoch: int) -> None:
    """Raises StaleEpoch when the answer belongs to another session or epoch, FailedPrecondition for another
    version.
    """
    check_version(message.protocol_version, "worker")
    if (message.session_id, message.worker_epoch) != (session_id, worker_epoch):
        raise StaleEpoch(
            f"worker accepted session {message.session_id:016x} of epoch {message.worker_epoch:016x}, "
            f"asked was {session_id:016x} of {worker_epoch:016x}"
        )
