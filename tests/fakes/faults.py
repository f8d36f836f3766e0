"""The odd answers that a fake worker can give, one fault an answer.

Owns the bending of a right StepResult; knows no stream. Invariant: a fault changes one answer and nothing
of the pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from octavo.worker.v1 import worker_pb2

UNKNOWN_ROW = 9999


class FaultKind(Enum):
    DROP = "drop"  # never answered
    REPEAT = "repeat"  # answered twice
    REORDER = "reorder"  # answered after the next one
    OUT_OF_VOCABULARY = "out_of_vocabulary"  # the first token id is 2^31 - 1
    NEGATIVE_TOKEN = "negative_token"  # the first token id is -1 and no row failed
    LACK_TOKEN = "lack_token"  # one token id too few
    EXTRA_TOKEN = "extra_token"  # one token id too many
    RAGGED_BYTES = "ragged_bytes"  # token ids that are no whole number of int32
    LACK_LOGPROBS = "lack_logprobs"  # no log-probabilities, though rows ask for them
    FAIL_ROW = "fail_row"  # the first sampling row failed
    FAIL_GRAMMAR = "fail_grammar"  # the first sampling row failed by its grammar
    FAIL_UNKNOWN_ROW = "fail_unknown_row"  # names a row that never was
    REFUSE = "refuse"  # the whole step failed; the plan was not obeyed
    FUTURE_STEP = "future_step"  # an answer to a step that was never sent, besides the right one
    OTHER_SESSION = "other_session"  # an answer of another session, besides the right one
    OTHER_EPOCH = "other_epoch"  # an answer of another worker epoch, besides the right one
    NO_MESSAGE = "no_message"  # an empty RunResponse, besides the right one
    SECOND_ACCEPT = "second_accept"  # a handshake in the middle, besides the right one


BEFORE_APPLY = frozenset({FaultKind.REFUSE})
FAILS_A_ROW = frozenset({FaultKind.FAIL_ROW, FaultKind.FAIL_GRAMMAR})


@dataclass(frozen=True, slots=True)
class Fault:
    """at_step: the step id to bend, or None for the next step that arrives."""

    kind: FaultKind
    at_step: int | None = None


def bend(
    fault: Fault | None, result: worker_pb2.StepResult, sample_rows: Sequence[int]
) -> list[worker_pb2.RunResponse]:
    """The messages to send instead of the right one; DROP and REORDER are the stream's business."""
    right = worker_pb2.RunResponse(result=result)
    if fault is None:
        return [right]
    kind = fault.kind
    if kind is FaultKind.DROP:
        return []
    if kind is FaultKind.REPEAT:
        return [right, right]
    if kind is FaultKind.NO_MESSAGE:
        return [worker_pb2.RunResponse(), right]
    if kind is FaultKind.SECOND_ACCEPT:
        accepted = worker_pb2.SessionAccepted(session_id=result.session_id, worker_epoch=result.worker_epoch)
        return [worker_pb2.RunResponse(accepted=accepted), right]
    bent = worker_pb2.StepResult()
    bent.CopyFrom(result)
    _bend_fields(kind, bent, sample_rows)
    both = kind in (FaultKind.FUTURE_STEP, FaultKind.OTHER_SESSION, FaultKind.OTHER_EPOCH)
    return [worker_pb2.RunResponse(result=bent), *([right] if both else [])]


def _bend_fields(kind: FaultKind, bent: worker_pb2.StepResult, sample_rows: Sequence[int]) -> None:
    tokens = np.frombuffer(bent.token_ids, "<i4").copy()
    if kind is FaultKind.OUT_OF_VOCABULARY:
        tokens[:1] = 2**31 - 1
    elif kind is FaultKind.NEGATIVE_TOKEN:
        tokens[:1] = -1
    elif kind is FaultKind.LACK_TOKEN:
        tokens = tokens[:-1]
    elif kind is FaultKind.EXTRA_TOKEN:
        tokens = np.append(tokens, tokens[-1:])
    elif kind is FaultKind.LACK_LOGPROBS:
        bent.ClearField("logprobs")
        bent.ClearField("prompt_logprobs")
    elif kind in FAILS_A_ROW:
        tokens[:1] = -1
        _fail(bent, sample_rows[0])
        if kind is FaultKind.FAIL_GRAMMAR:
            bent.failed_rows[-1].reason = worker_pb2.ROW_FAILURE_REASON_GRAMMAR_FAILED
    elif kind is FaultKind.FAIL_UNKNOWN_ROW:
        _fail(bent, UNKNOWN_ROW)
    elif kind is FaultKind.FUTURE_STEP:
        bent.step_id += 1000
    elif kind is FaultKind.OTHER_SESSION:
        bent.session_id ^= 1
    elif kind is FaultKind.OTHER_EPOCH:
        bent.worker_epoch ^= 1
    bent.token_ids = tokens.astype("<i4").tobytes()
    if kind is FaultKind.RAGGED_BYTES:
        bent.token_ids += b"\0"


def _fail(bent: worker_pb2.StepResult, row: int) -> None:
    bent.failed_rows.append(
        worker_pb2.RowFailure(
            row=row, reason=worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS, detail="scripted"
        )
    )
