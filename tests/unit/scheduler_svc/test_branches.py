"""Several sequences of one request as its client is told of them (A14), from hand-made tokens and notices."""

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.errors import Unavailable
from octavo.v1 import inference_pb2 as pb
from scheduler_svc import answers
from scheduler_svc.core.plan import (
    Admitted,
    Finished,
    FinishReason,
    NewRequest,
    Notices,
    SeqId,
    TokenEvents,
)
from scheduler_svc.delivery import Bundle, Delivery
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.requests import QueueLimits, Record, Requests
from scheduler_svc.streams import BacklogLimits, Outbox, Pending
from scheduler_svc.text import TextModel, load_text_model
from tests.fixtures.small_tokenizers import KINDS, write_folder

FIRST = 11


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return load_text_model(write_folder(tmp_path_factory.mktemp("text"), KINDS[sorted(KINDS)[0]]()))


class Group:
    """A request of three sequences, 11 to 13, and what its stream has been told."""

    def __init__(self, text: TextModel, stop: tuple[str, ...] = ()) -> None:
        self.metrics = ShellMetrics()
        self.requests = Requests(QueueLimits())
        self.delivery = Delivery(self.requests, self.metrics)
        self.outbox = Outbox(BacklogLimits())
        self.record = Record(
            request_id="r",
            request=NewRequest(SeqId(FIRST), np.arange(5, dtype=np.int32), n=3),
            outbox=self.outbox,
            emitters=[text.new_emitter(stop) for _ in range(3)],
            include_stop_token=False,
            tokens_only=False,
            arrival=1.0,
        )
        self.requests.add(self.record)
        self.tell(notices=Notices(admitted=(Admitted(SeqId(FIRST), 4),)))

    def tell(
        self,
        tokens: Sequence[tuple[int, int, int]] = (),
        notices: Notices | None = None,
        now: float = 2.0,
    ) -> None:
        """tokens: (sequence index, token, output length) triples."""
        events = TokenEvents(
            np.array([FIRST + index for index, _, _ in tokens], np.int64),
            np.array([token for _, token, _ in tokens], np.int32),
            np.array([length for _, _, length in tokens], np.int32),
        )
        self.delivery.deliver(Bundle(events, notices or Notices()), now)

    def end(
        self, index: int, output_len: int, reason: FinishReason = FinishReason.LENGTH, saved: int = 0
    ) -> None:
        finished = Finished(
            SeqId(FIRST + index), reason, output_len, 5, 4, preemptions=index, blocks_saved=saved
        )
        self.tell(notices=Notices(finished=(finished,)))

    def told(self) -> list[pb.GenerateResponse]:
        return [event for pending in self.outbox.take() for event in answers.single(pending)]


def test_a14_every_event_names_its_sequence_and_accepted_comes_once_and_first(text: TextModel) -> None:
    group = Group(text)
    a, b = text.encode("a b", add_special_tokens=False).tolist()[:2]
    group.tell([(1, a, 1), (0, b, 1), (2, a, 1)])
    group.tell([(1, b, 2)])
    first, *rest = group.told()
    assert first.accepted == pb.Accepted(request_id="r", prompt_tokens=5, cached_prompt_tokens=4)
    assert sorted((event.delta.index, list(event.delta.token_ids)) for event in rest) == [
        (0, [b]),
        (1, [a, b]),
        (2, [a]),
    ]
    assert {event.delta.index: event.delta.text for event in rest}[1] == text.decode([a, b])


def test_a14_the_request_lives_until_its_last_sequence_has_ended(text: TextModel) -> None:
    group = Group(text)
    for index, living in ((2, True), (0, True), (1, False)):
        group.end(index, output_len=index)
        assert (len(group.requests) == 1) is living
        assert ("r" in group.outbox.live) is living
        assert (group.requests.by_seq(FIRST + index)) is None
    assert [event.finished.index for event in group.told() if event.HasField("finished")] == [0, 2, 1]
    assert group.metrics.outcomes["length"] == 1, "a request is counted once"


def test_a14_a_stop_string_ends_its_own_sequence_only(text: TextModel) -> None:
    group = Group(text, stop=("STOP",))
    script = text.encode("go STOP", add_special_tokens=False).tolist()
    other = text.encode("go on and on", add_special_tokens=False).tolist()
    for place, token in enumerate(script):
        group.tell([(0, other[place % len(other)], place + 1), (1, token, place + 1)])
    assert [branch.index for branch in group.delivery.stops] == [1]
    group.tell([(1, script[0], len(script) + 1), (0, other[0], len(script) + 1)])
    group.end(1, len(script) + 1, FinishReason.STOP)
    group.end(0, len(script) + 1)
    told = group.told()
    ends = {event.finished.index: event.finished for event in told if event.HasField("finished")}
    assert (ends[1].stop, ends[1].usage.completion_tokens) == ("STOP", len(script))
    assert (ends[0].WhichOneof("matched"), ends[0].usage.completion_tokens) == (None, len(script) + 1)
    said = {i: "".join(e.delta.text for e in told if e.delta.index == i) for i in (0, 1)}
    assert said[1] == "go "
    heard = [other[place % len(other)] for place in range(len(script))] + [other[0]]
    assert said[0] == text.decode(heard)
    assert group.metrics.undelivered_tokens == 1, "the overshoot of the stopped sequence alone"


def test_a14_an_error_is_told_once_for_the_whole_request(text: TextModel) -> None:
    group = Group(text)
    group.end(1, 0)
    group.delivery.fail(group.record, Unavailable("gone"), "worker_lost")
    group.tell([(0, 1, 1), (2, 1, 1)])
    for index in (0, 2):
        group.end(index, 1, FinishReason.ABORTED)
    pending = group.outbox.take()
    assert [(one.index, one.error is not None, one.token_ids) for one in pending] == [
        (0, True, []),
        (1, False, []),
    ]
    assert group.metrics.outcomes["worker_lost"] == 1
    assert group.metrics.outcomes["aborted"] == 0
    assert (len(group.requests), group.metrics.undelivered_tokens) == (0, 2)


def test_a14_usage_counts_the_prompt_once_and_sums_the_rest() -> None:
    sequences = [Pending("r", index, token_ids=[1] * index, text=[str(index)]) for index in range(3)]
    for index, pending in enumerate(sequences):
        usage = pb.Usage(
            prompt_tokens=5,
            cached_prompt_tokens=4,
            completion_tokens=index,
            preemptions=1,
            shared_blocks_saved=2 * index,
        )
        pending.finished = pb.Finished(index=index, usage=usage)
    response = answers.whole("r", sequences)
    assert [(c.index, c.text, len(c.token_ids)) for c in response.completions] == [
        (0, "0", 0),
        (1, "1", 1),
        (2, "2", 2),
    ]
    assert response.usage == pb.Usage(
        prompt_tokens=5,
        cached_prompt_tokens=4,
        completion_tokens=3,
        preemptions=3,
        shared_blocks_saved=6,
    )


def test_a14_the_queue_counts_a_request_of_many_sequences_once(text: TextModel) -> None:
    group = Group(text)
    waiting = Record(
        request_id="w",
        request=NewRequest(SeqId(20), np.arange(7, dtype=np.int32), n=3),
        outbox=group.outbox,
        emitters=[None] * 3,
        include_stop_token=False,
        tokens_only=True,
        arrival=1.0,
    )
    group.requests.add(waiting)
    assert (group.requests.waiting_requests, group.requests.waiting_tokens) == (1, 7)
    group.requests.remove(waiting)
    assert (group.requests.waiting_requests, group.requests.waiting_tokens) == (0, 0)
    assert [group.requests.by_seq(seq) for seq in (20, 21, 22)] == [None] * 3
