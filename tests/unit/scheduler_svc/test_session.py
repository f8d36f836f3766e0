"""A session's bookkeeping: step order, stale and repeated answers (A26), numbering."""

from typing import Any

import pytest

from octavo import arrays
from octavo.worker.v1 import worker_pb2
from scheduler_svc.session import Session
from tests.unit.scheduler_svc.plans import ints, plan

EPOCH, SESSION = 5, 9


class Rig:
    def __init__(self) -> None:
        self.sent: list[worker_pb2.StepPlan] = []
        self.odd: list[str] = []
        self.session = Session(SESSION, EPOCH, 100, self.sent.append, self.odd.append)

    def take(self, step: int, now: float = 0.0, session: int = SESSION, epoch: int = EPOCH) -> list[int]:
        """The core's step ids of the answers that this message sets free."""
        message = worker_pb2.StepResult(
            session_id=session, worker_epoch=epoch, step_id=step, token_ids=arrays.encode(ints(1))
        )
        return [answer.decoded.result.step_id for answer in self.session.take(message, now)]


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.session.send(plan(31), now=1.0)
    made.session.send(plan(32), now=2.0)
    return made


def test_steps_are_numbered_from_one_whatever_the_core_counts(rig: Rig) -> None:
    assert [message.step_id for message in rig.sent] == [1, 2]
    assert [message.base_step for message in rig.sent] == [0, 1]
    assert {message.session_id for message in rig.sent} == {SESSION}
    assert [message.same_rows for message in rig.sent] == [False, True]


def test_answers_come_back_under_the_core_s_numbers_with_their_times(rig: Rig) -> None:
    assert rig.session.oldest_sent_at() == 1.0
    message = worker_pb2.StepResult(
        session_id=SESSION, worker_epoch=EPOCH, step_id=1, token_ids=arrays.encode(ints(7))
    )
    (answer,) = rig.session.take(message, now=4.0)
    assert answer.decoded.result.step_id == 31
    assert answer.rpc_seconds == 3.0
    assert (rig.session.oldest_sent_at(), rig.session.num_in_flight) == (2.0, 1)
    assert rig.take(2) == [32]
    assert (rig.session.oldest_sent_at(), rig.session.num_in_flight) == (None, 0)
    assert rig.odd == []


def test_a26_answers_out_of_order_leave_in_order(rig: Rig) -> None:
    assert rig.take(2) == []
    assert rig.take(1) == [31, 32]
    assert rig.odd == ["out_of_order"]


def test_a26_a_repeated_answer_is_counted_and_left_out(rig: Rig) -> None:
    assert rig.take(1) == [31]
    assert rig.take(1) == []
    assert rig.take(2) == [32]
    assert rig.odd == ["unexpected_step"]


def test_a26_a_repeated_early_answer_is_counted_and_left_out(rig: Rig) -> None:
    assert rig.take(2) == []
    assert rig.take(2) == []
    assert rig.take(1) == [31, 32]
    assert rig.odd == ["out_of_order", "unexpected_step"]


@pytest.mark.parametrize("other", [{"session": 1}, {"epoch": 1}])
def test_a26_an_answer_of_another_session_or_epoch_is_left_out(rig: Rig, other: dict[str, Any]) -> None:
    assert rig.take(1, **other) == []
    assert rig.odd == ["stale_session"]
    assert rig.take(1) == [31]


def test_a26_a_step_that_was_never_sent_is_left_out(rig: Rig) -> None:
    assert rig.take(3) == []
    assert rig.take(0) == []
    assert rig.odd == ["unexpected_step"] * 2


def test_a_closed_session_takes_nothing(rig: Rig) -> None:
    rig.session.closed = True
    assert rig.take(1) == []
    assert rig.odd == ["stale_session"]
