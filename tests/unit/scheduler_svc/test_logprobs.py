"""Whose log-probabilities an answer holds (A15), and what a client is told of them."""

from dataclasses import replace

import numpy as np
import pytest

from octavo.v1 import inference_pb2 as pb
from octavo.worker.v1 import worker_pb2
from scheduler_svc.core.plan import RowSetup, SamplingParams, SeqId
from scheduler_svc.logprob_writer import LOWEST, LogprobWriter
from scheduler_svc.logprobs import AskingRows, PromptPart, PromptSpan, TokenValues, decode_logprobs
from tests.unit.scheduler_svc.plans import ints, plan


def setup(row: int, seq_id: int, prompt_len: int = 5, **sampling: int) -> RowSetup:
    return RowSetup(row, SeqId(seq_id), prompt_len, SamplingParams(**sampling))  # type: ignore[arg-type]


def packed(*positions: tuple[list[int], list[float]]) -> worker_pb2.Logprobs:
    ids = np.array([ids for ids, _ in positions], "<i4")
    values = np.array([values for _, values in positions], "<f4")
    return worker_pb2.Logprobs(width=ids.shape[1], token_ids=ids.tobytes(), values=values.tobytes())


def test_a_step_s_values_belong_to_the_sequences_its_rows_stood_for_then() -> None:
    rows = AskingRows()
    before = rows.asked(plan(1, rows=[0, 1, 2], setups=(setup(1, 71, logprobs=1), setup(2, 72, logprobs=1))))
    after = rows.asked(
        plan(2, rows=[0, 1], released_rows=ints(1, 2), setups=(setup(1, 80), setup(0, 81, logprobs=0)))
    )
    assert before is not None
    assert after is not None
    assert before.samples == ((1, 71), (2, 72))
    assert after.samples == ((0, 81),)
    answer = worker_pb2.StepResult(logprobs=packed(([7, 8], [-1, -2]), ([9, 8], [-3, -4])))
    found = decode_logprobs(answer, before)
    assert found is not None
    assert found.samples == {71: TokenValues([7, 8], [-1, -2]), 72: TokenValues([9, 8], [-3, -4])}
    assert decode_logprobs(answer, after) is None


def test_steps_without_rows_that_ask_ask_for_nothing() -> None:
    rows = AskingRows()
    assert rows.asked(plan(1, rows=[0], setups=(setup(0, 70),))) is None
    assert rows.asked(plan(2, rows=[0])) is None


def test_chunks_span_the_tokens_after_their_own_up_to_the_prompt_s_end() -> None:
    rows = AskingRows()
    first = plan(
        1, rows=[3], query_lens=[3], input_ids=ints(1, 2, 3), setups=(setup(3, 9, prompt_logprobs=0),)
    )
    asked = rows.asked(replace(first, context_lens=ints(3)))
    assert asked is not None
    assert asked.prompts == (PromptSpan(3, 9, 1, 3),)
    assert asked.rows == [3]
    rest = replace(plan(2, rows=[3], query_lens=[2], input_ids=ints(4, 5)), context_lens=ints(5))
    asked = rows.asked(rest)
    assert asked is not None
    assert asked.prompts == (PromptSpan(3, 9, 4, 1),)
    asked = rows.asked(replace(plan(3, rows=[3]), context_lens=ints(6)))
    assert asked is not None
    assert asked.prompts == (), "a decode tells nothing of the prompt"


@pytest.mark.parametrize(
    "part",
    [
        worker_pb2.PromptLogprobs(row=2, first_position=1, logprobs=packed(([1], [0]), ([2], [0]))),
        worker_pb2.PromptLogprobs(row=3, first_position=2, logprobs=packed(([1], [0]), ([2], [0]))),
        worker_pb2.PromptLogprobs(row=3, first_position=1, logprobs=packed(([1], [0]))),
        worker_pb2.PromptLogprobs(row=3, first_position=1),
        worker_pb2.PromptLogprobs(
            row=3,
            first_position=1,
            logprobs=worker_pb2.Logprobs(width=3, token_ids=bytes(8), values=bytes(8)),
        ),
        worker_pb2.PromptLogprobs(
            row=3,
            first_position=1,
            logprobs=worker_pb2.Logprobs(width=1, token_ids=bytes(8), values=bytes(4)),
        ),
    ],
)
def test_a26_parts_of_prompts_that_do_not_fit_are_not_believed(part: worker_pb2.PromptLogprobs) -> None:
    rows = AskingRows()
    asking = plan(1, rows=[3], query_lens=[2], input_ids=ints(1, 2), setups=(setup(3, 9, prompt_logprobs=0),))
    asked = rows.asked(replace(asking, context_lens=ints(2)))
    assert asked is not None
    assert decode_logprobs(worker_pb2.StepResult(prompt_logprobs=[part]), asked) is None
    right = worker_pb2.PromptLogprobs(row=3, first_position=1, logprobs=packed(([1], [0]), ([2], [0])))
    assert decode_logprobs(worker_pb2.StepResult(prompt_logprobs=[right]), asked) is not None
    assert decode_logprobs(worker_pb2.StepResult(prompt_logprobs=[right, right]), asked) is None


def spell(token_id: int) -> bytes:
    return b"<%d>" % token_id


def test_a_position_has_what_its_request_asked_for_and_no_more() -> None:
    values = TokenValues([7, 1, 2, 3], [-1.0, -0.5, -0.75, -2.0])
    told = LogprobWriter(2, None, 5, spell).position(values)
    assert told == pb.PositionLogprobs(
        sampled=pb.TokenLogprob(token_id=7, logprob=-1.0, token=b"<7>"),
        top=[
            pb.TokenLogprob(token_id=1, logprob=-0.5, token=b"<1>"),
            pb.TokenLogprob(token_id=2, logprob=-0.75, token=b"<2>"),
        ],
    )
    assert not LogprobWriter(0, None, 5, spell).position(values).top


def test_a15_no_value_is_without_a_number() -> None:
    told = LogprobWriter(1, None, 5, spell).position(TokenValues([7, 1], [float("-inf"), float("nan")]))
    assert [told.sampled.logprob, told.top[0].logprob] == [LOWEST, LOWEST]


def test_a15_a_prompt_is_told_once_whole_whatever_comes_twice() -> None:
    writer = LogprobWriter(None, 0, 4, spell)
    one, two, three = (TokenValues([at], [-float(at)]) for at in (1, 2, 3))
    assert not writer.prompt_is_whole
    writer.add_prompt(PromptPart(9, 1, [one, two]))
    writer.add_prompt(PromptPart(9, 1, [three, three, three]))  # after a preemption: two are known
    assert writer.prompt_is_whole
    told = writer.take_prompt()
    assert [position.sampled.token_id for position in told] == [0, 1, 2, 3]
    assert not told[0].HasField("sampled")
    assert LogprobWriter(None, 3, 1, spell).prompt_is_whole, "a prompt of one token has nothing to wait for"
    assert LogprobWriter(3, None, 9, spell).prompt_is_whole
