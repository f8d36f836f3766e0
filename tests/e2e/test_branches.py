"""A14 over gRPC: n sequences of one prompt, each the single run with its derived seed, whatever happens."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.core.plan import branch_seed
from tests.e2e.metrics import scrape
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler, until, wanted
from tests.e2e.service import request
from tests.fakes.faults import FaultKind

BLOCK = SMALL.block_size


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


@pytest.fixture
async def rig(seat: SchedulerSeat) -> AsyncIterator[Rig]:
    async with rig_at(seat) as made:
        yield made


def many(prompt: list[int], tokens: int, n: int, seed: int = 7, **options: object) -> pb.GenerateRequest:
    message = request(prompt, tokens, temperature=1.0, seed=seed, **options)  # type: ignore[arg-type]
    message.n = n
    return message


def branches_of(prompt: list[int], tokens: int, n: int, seed: int = 7) -> list[list[int]]:
    """What each sequence is as a single run with its derived seed."""
    return [wanted(prompt, tokens, 1.0, branch_seed(seed, branch)) for branch in range(n)]


@dataclass
class Answer:
    """All that came of one request, by sequence."""

    accepted: list[pb.Accepted] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, pb.Finished] = field(default_factory=dict)

    def take(self, event: pb.GenerateResponse | pb.BatchEvent) -> None:
        if event.HasField("accepted"):
            assert not self.tokens
            self.accepted.append(event.accepted)
        elif event.HasField("delta"):
            assert event.delta.index not in self.ends, "nothing after an end"
            self.tokens.setdefault(event.delta.index, []).extend(event.delta.token_ids)
        else:
            assert event.finished.index not in self.ends
            self.ends[event.finished.index] = event.finished

    def reasons(self) -> list[str]:
        ends = [self.ends[index] for index in sorted(self.ends)]
        return [pb.FinishReason.Name(end.reason).removeprefix("FINISH_REASON_") for end in ends]

    def outputs(self) -> list[list[int]]:
        return [self.tokens[index] for index in sorted(self.tokens)]


async def stream(rig: Rig, message: pb.GenerateRequest, answer: Answer | None = None) -> Answer:
    answer = answer or Answer()
    async for event in rig.service.events(message):
        answer.take(event)
    assert len(answer.accepted) == 1
    return answer


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 15])
async def test_a14_each_branch_is_the_single_run_with_its_derived_seed(rig: Rig, length: int) -> None:
    prompt = prompt_of(length, 100)
    answer = await stream(rig, many(prompt, 10, 4))
    assert answer.outputs() == branches_of(prompt, 10, 4)
    assert len({tuple(tokens) for tokens in answer.outputs()}) == 4
    assert answer.reasons() == ["LENGTH"] * 4
    for branch in range(4):
        single = request(prompt, 10, temperature=1.0, seed=branch_seed(7, branch))
        assert (await rig.service.run(single)).tokens == answer.tokens[branch]
    saved = sum(end.usage.shared_blocks_saved for end in answer.ends.values())
    assert saved == 3 * (length // BLOCK), "three branches hold no full block of the prompt of their own"
    assert {end.usage.prompt_tokens for end in answer.ends.values()} == {length}
    await rig.service.wait_idle()


async def test_a14_a_prompt_is_computed_once_for_all_its_branches(rig: Rig) -> None:
    prompt = prompt_of(15, 101)
    before = await rig.service.stats()
    answer = await stream(rig, many(prompt, 6, 8))
    after = await rig.service.wait_idle()
    assert answer.outputs() == branches_of(prompt, 6, 8)
    assert after.computed_prompt_tokens - before.computed_prompt_tokens == 15
    prefills = [plan for plan in rig.fake.plans if int(plan.query_lens.max()) > 1]
    assert [len(plan.sample_rows) for plan in prefills] == [8]
    assert sum(len(plan.copy_pairs) for plan in rig.fake.plans) == 7, "the last owner writes in place"


async def test_a14_once_and_batch_say_what_the_stream_says(rig: Rig) -> None:
    prompt = prompt_of(9, 102)
    once = await rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=many(prompt, 7, 3)))
    assert [list(done.token_ids) for done in once.completions] == branches_of(prompt, 7, 3)
    assert [done.index for done in once.completions] == [0, 1, 2]
    assert [done.finished.index for done in once.completions] == [0, 1, 2]
    usage = once.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, 21), "the prompt counts once"
    assert usage.shared_blocks_saved == 2 * 2
    messages = [many(prompt_of(9, 103 + number), 7, 3, request_id=f"b{number}") for number in range(3)]
    answers = {message.request_id: Answer() for message in messages}
    sent = iter([pb.GenerateBatchRequest(generate=message) for message in messages])
    async for response in rig.service.inference.GenerateBatch(sent):
        for event in response.events:
            answers[event.request_id].take(event)
    for number in range(3):
        assert answers[f"b{number}"].outputs() == branches_of(prompt_of(9, 103 + number), 7, 3)


async def test_a14_one_branch_ends_early_and_the_others_stream_on(rig: Rig) -> None:
    prompt = prompt_of(10, 110)
    outputs = branches_of(prompt, 20, 4)
    stop = outputs[2][4]
    assert all(stop not in tokens for branch, tokens in enumerate(outputs) if branch != 2)
    answer = await stream(rig, many(prompt, 20, 4, stop_token_ids=[stop]))
    assert answer.reasons() == ["LENGTH", "LENGTH", "STOP", "LENGTH"]
    first = outputs[2].index(stop) + 1
    assert answer.outputs() == [outputs[0], outputs[1], outputs[2][:first], outputs[3]]
    assert answer.ends[2].stop_token_id == stop
    await rig.service.wait_idle()


@pytest.mark.parametrize("tokens_before", [0, 5])
async def test_a14_an_abort_ends_all_branches_and_frees_all_blocks(rig: Rig, tokens_before: int) -> None:
    rig.fake.hold()
    answer = Answer()
    task = asyncio.create_task(stream(rig, many(prompt_of(14, 111), 50, 4, request_id="gone"), answer))
    await rig.fake.wait_for_plans(1)
    await rig.fake.release(answers=tokens_before)
    await until(lambda: sum(map(len, answer.tokens.values())) == 4 * tokens_before)
    assert await rig.abort("gone") == ["gone"]
    await rig.fake.release()
    await task
    assert answer.reasons() == ["ABORTED"] * 4
    assert await rig.abort("gone") == []
    assert (await rig.service.wait_idle()).active_blocks == 0


async def test_a02_a_cancelled_call_ends_all_branches(rig: Rig) -> None:
    rig.fake.step_delay = 0.02
    answer = Answer()
    task = asyncio.create_task(stream(rig, many(prompt_of(14, 112), 40, 4), answer))
    await until(lambda: len(answer.tokens) == 4)
    task.cancel()
    await rig.service.wait_idle()
    assert sum(map(len, answer.tokens.values())) < 4 * 40


async def test_a14_groups_survive_preemption_and_a_killed_worker(
    processes: Processes, tiny_llama: Path
) -> None:
    """Three groups of four in 20 blocks, and a worker that comes back empty."""
    settings = replace(SMALL, num_blocks=20, step_delay=0.002)
    async with rig_at(seat_scheduler(processes, tiny_llama, "--worker-grace-seconds", "60"), settings) as rig:
        prompts = [prompt_of(9 + place, 120 + place) for place in range(3)]
        runs = await rig.together(stream(rig, many(prompt, 14, 4)) for prompt in prompts)
        await until(lambda: len(rig.fake.plans) > 10)
        await rig.fake.restart()
        answers = await asyncio.gather(*runs)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.outputs() == branches_of(prompt, 14, 4)
        assert sum(end.usage.preemptions for answer in answers for end in answer.ends.values()) > 0
        await rig.service.wait_idle()


async def test_a21_a_branch_whose_row_fails_costs_the_others_nothing(rig: Rig) -> None:
    prompt = prompt_of(11, 130)
    rig.fake.step_delay = 0.002
    answer = Answer()
    task = asyncio.create_task(stream(rig, many(prompt, 40, 4), answer))
    await until(lambda: len(answer.tokens) == 4)
    rig.fake.inject(FaultKind.FAIL_ROW)
    await task
    assert sorted(answer.reasons()) == ["ERROR", "LENGTH", "LENGTH", "LENGTH"]
    for branch, tokens in enumerate(branches_of(prompt, 40, 4)):
        assert answer.tokens[branch] == tokens[: len(answer.tokens[branch])]
    told = scrape(rig.seat.metrics_url)
    assert (
        told['octavo_requests_total{outcome="length"}'] + told['octavo_requests_total{outcome="error"}'] >= 1
    )
    await rig.service.wait_idle()


@pytest.mark.parametrize(
    ("n", "tokens", "reason", "said"),
    [
        (17, 4, "EXCEEDS_ROWS", "n: 17 sequences, a step has at most 16"),
        (129, 4, "INVALID_FIELD", "n: 129 is out of [1, 128]"),
        (16, 30, "EXCEEDS_KV_POOL", "n: 16 branches of"),
    ],
)
async def test_a20_an_n_that_can_never_run_is_refused_with_the_numbers(
    rig: Rig, n: int, tokens: int, reason: str, said: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream(rig, many(prompt_of(9, 140), tokens, n))
    assert str(refused.value.details()).startswith(said)
    assert reason in str(refused.value.trailing_metadata())
    assert (await stream(rig, many(prompt_of(9, 141), 4, 16))).reasons() == ["LENGTH"] * 16


async def test_each_branch_has_its_own_text_and_log_probabilities(rig: Rig) -> None:
    prompt = prompt_of(9, 150)
    message = many(prompt, 8, 3)
    message.output.logprobs, message.output.prompt_logprobs = 1, 0
    once = await rig.service.inference.GenerateOnce(pb.GenerateOnceRequest(request=message))
    for done, tokens in zip(once.completions, branches_of(prompt, 8, 3), strict=True):
        assert [position.sampled.token_id for position in done.logprobs] == tokens
    assert [position.sampled.token_id for position in once.prompt_logprobs] == [0, *prompt[1:]]
