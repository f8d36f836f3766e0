"""A15, A26 over gRPC with a fake worker: log-probabilities reach their own tokens, whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.text import TextModel, load_text_model
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import request
from tests.fakes.fake_logprobs import value_of
from tests.fakes.faults import FaultKind


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama, "--max-prefill-chunk", "7")


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


@pytest.fixture(scope="module")
def text(tiny_llama: Path) -> TextModel:
    return load_text_model(tiny_llama)


def asking(prompt: list[int], tokens: int, top: int | None, prompt_top: int | None) -> pb.GenerateRequest:
    message = request(prompt, tokens)
    if top is not None:
        message.output.logprobs = top
    if prompt_top is not None:
        message.output.prompt_logprobs = prompt_top
    return message


def check(
    text: TextModel, positions: Sequence[pb.PositionLogprobs], tokens: Sequence[int], top: int | None
) -> None:
    """What the fakes say of these tokens, with so many alternatives; None: nothing is told."""
    if top is None:
        assert list(positions) == []
        return
    assert [position.sampled.token_id for position in positions] == list(tokens)
    for position in positions:
        assert [one.token_id for one in position.top] == list(range(top))
        for one in (position.sampled, *position.top):
            assert one.logprob == value_of(one.token_id)
            assert one.token == text.token_bytes(one.token_id)


def check_prompt(
    text: TextModel, positions: Sequence[pb.PositionLogprobs], prompt: Sequence[int], top: int | None
) -> None:
    if top is not None:
        first, *positions = positions
        assert first == pb.PositionLogprobs()
    check(text, positions, prompt[1:], top)


async def streamed(
    rig: Rig, message: pb.GenerateRequest
) -> tuple[pb.Accepted, list[pb.PositionLogprobs], list[int], str]:
    accepted, logprobs, tokens, reason = pb.Accepted(), [], [], ""
    async for event in rig.service.events(message):
        if event.HasField("accepted"):
            assert not tokens
            accepted = event.accepted
        elif event.HasField("delta"):
            logprobs += event.delta.logprobs
            tokens += event.delta.token_ids
        else:
            reason = pb.FinishReason.Name(event.finished.reason)
    return accepted, logprobs, tokens, reason


MIX = [(None, None), (0, None), (3, 2), (None, 0), (20, 20), (2, None)]


async def test_a15_a_mixed_crowd_is_told_what_each_asked_for(rig: Rig, text: TextModel) -> None:
    prompts = [prompt_of(1 + 6 * place, place) for place in range(len(MIX))]
    messages = [asking(prompt, 9, *tops) for prompt, tops in zip(prompts, MIX, strict=True)]
    replies = await asyncio.gather(*(streamed(rig, message) for message in messages))
    for prompt, (top, prompt_top), reply in zip(prompts, MIX, replies, strict=True):
        accepted, logprobs, tokens, _ = reply
        assert tokens == wanted(prompt, 9)
        check(text, logprobs, tokens, top)
        check_prompt(text, accepted.prompt_logprobs, prompt, prompt_top)
    await rig.service.wait_idle()


async def test_a15_once_and_batch_say_the_same_as_the_stream(rig: Rig, text: TextModel) -> None:
    prompt = prompt_of(19, 5)
    message = asking(prompt, 6, 2, 1)
    once = await rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=message))
    check(text, once.completions[0].logprobs, wanted(prompt, 6), 2)
    check_prompt(text, once.prompt_logprobs, prompt, 1)
    message.request_id = "b"
    events = [
        event
        async for answer in rig.service.inference.GenerateBatch(
            iter([pb.GenerateBatchRequest(generate=message)])
        )
        for event in answer.events
    ]
    assert events[0].accepted.prompt_logprobs == once.prompt_logprobs
    said = [position for event in events for position in event.delta.logprobs]
    assert said == list(once.completions[0].logprobs)


async def test_a15_a_warm_prompt_is_told_whole_and_the_cache_is_not_read(rig: Rig, text: TextModel) -> None:
    prompt = prompt_of(25, 6)
    for _ in range(2):
        assert (await rig.service.generate(prompt, 3)).tokens == wanted(prompt, 3)
    accepted, _, _, _ = await streamed(rig, asking(prompt, 3, None, 1))
    assert accepted.cached_prompt_tokens == 0
    check_prompt(text, accepted.prompt_logprobs, prompt, 1)
    _, logprobs, tokens, _ = await streamed(rig, asking(prompt, 3, 1, None))
    check(text, logprobs, tokens, 1)
    assert (await rig.service.generate(prompt, 3)).cached == 24


async def test_a15_preempted_and_recovered_requests_are_told_each_token_once(
    processes: Processes, tiny_llama: Path, text: TextModel
) -> None:
    """12 blocks for five sequences of up to 7, and a worker that dies: prompts are computed again, often."""
    settings = replace(SMALL, num_blocks=12, step_delay=0.002)
    seat = seat_scheduler(processes, tiny_llama, "--max-prefill-chunk", "5", "--worker-grace-seconds", "60")
    async with rig_at(seat, settings) as rig:
        prompts = [prompt_of(9 + place, 20 + place) for place in range(5)]
        runs = await rig.together(streamed(rig, asking(prompt, 12, 1, 0)) for prompt in prompts)
        await until(lambda: len(rig.fake.plans) > 12)
        await rig.fake.restart()
        for prompt, reply in zip(prompts, await asyncio.gather(*runs), strict=True):
            accepted, logprobs, tokens, _ = reply
            assert tokens == wanted(prompt, 12)
            check(text, logprobs, tokens, 1)
            check_prompt(text, accepted.prompt_logprobs, prompt, 0)
        assert (await rig.service.wait_idle()).preemptions > 0


async def test_a26_an_answer_without_logprobs_fails_those_that_asked(rig: Rig) -> None:
    rig.fake.step_delay = 0.002
    prompts = [prompt_of(5 + place, 40 + place) for place in range(4)]
    tops = [(1, None), (None, None), (0, None), (None, None)]
    runs = await rig.together(
        streamed(rig, asking(prompt, 40, *top)) for prompt, top in zip(prompts, tops, strict=True)
    )
    await until(lambda: any(len(plan.sample_rows) == 4 for plan in rig.fake.plans))
    rig.fake.inject(FaultKind.LACK_LOGPROBS)
    replies = await asyncio.gather(*runs)
    assert [reason for _, _, _, reason in replies] == [
        "FINISH_REASON_ERROR",
        "FINISH_REASON_LENGTH",
    ] * 2
    for prompt, (_, logprobs, tokens, _) in zip(prompts, replies, strict=True):
        assert tokens == wanted(prompt, 40)[: len(tokens)]
        assert len(logprobs) in (0, len(tokens))
    told = scrape(rig.seat.metrics_url)
    assert told['octavo_worker_oddities_total{kind="missing_logprobs"}'] == 1
    await rig.service.wait_idle()


async def test_a01_a_request_aborted_inside_its_prompt_is_told_an_end(rig: Rig) -> None:
    rig.fake.hold()
    message = asking(prompt_of(30, 50), 5, None, 3)
    message.request_id = "cut"
    run = asyncio.create_task(streamed(rig, message))
    await rig.fake.wait_for_plans(1)
    await rig.fake.release(answers=1)
    assert await rig.abort("cut") == ["cut"]
    await rig.fake.release()
    accepted, _, tokens, reason = await run
    assert (accepted.request_id, list(accepted.prompt_logprobs), tokens) == ("cut", [], [])
    assert reason == "FINISH_REASON_ABORTED"
    await rig.service.wait_idle()
