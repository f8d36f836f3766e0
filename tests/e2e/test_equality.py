"""A05, A06, A10, A12, A18: the real worker gives the same tokens however its work is scheduled.

The tiny models run in float64, where rounding picks no token. Each setting is compared with a cold run: one
request at a time, no cache, a pool and a step that hold everything.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.core.plan import branch_seed
from tests.e2e.processes import Processes, ServiceProcess
from tests.e2e.rig import PATIENT, prompt_of, until
from tests.e2e.service import Reply, Service, request

BLOCK = 4
TOKENS = 14
WORKER_FLAGS = (
    "--dtype",
    "float64",
    "--block-size",
    str(BLOCK),
    "--num-blocks",
    "60",
    "--max-model-len",
    "200",
)
SHARED = prompt_of(3 * BLOCK + 1, 900)


@dataclass
class Bench:
    """One real worker, which schedulers with unlike settings take over in turn."""

    processes: Processes
    model: Path
    worker: ServiceProcess

    @contextmanager
    def scheduler(self, *flags: str) -> Iterator[str]:
        process = self.processes.scheduler(self.model, self.worker.address, *PATIENT, *flags)
        try:
            yield process.address
        finally:
            process.stop()

    def replace_worker(self) -> None:
        """kill -9, and another one at the same address."""
        self.worker.kill()
        self.worker = self.processes.worker(self.model, self.worker.address, *WORKER_FLAGS)


def cases() -> list[pb.GenerateRequest]:
    """Greedy and seeded ones at all lengths around block edges, and 16 with one long prefix."""
    lengths = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK + 1, 37]
    prompts = [prompt_of(length, 901) for length in lengths] + [[*SHARED, 20 + i, 60 + i] for i in range(16)]
    return [
        with_asks(request(prompt, TOKENS, temperature=float(i % 2), seed=i, top_k=20 * (i % 3)), i)
        for i, prompt in enumerate(prompts)
    ]


def with_asks(message: pb.GenerateRequest, number: int) -> pb.GenerateRequest:
    """A third of the requests changes its logits, each in a way of its own; others are told of theirs."""
    sampling = message.sampling
    match number % 9:
        case 0:
            sampling.repetition_penalty = 1.4
        case 3:
            sampling.presence_penalty, sampling.frequency_penalty = 0.8, 0.3
            message.output.logprobs = 4
        case 6:
            sampling.logit_bias.update({7: 3.0, 8: -100.0, 9: 2.5})
            sampling.frequency_penalty = 1.5
        case 4:
            message.response_format.regex = "([a-z]{1,3}[0-9] ){2,40}"
        case 7:
            message.output.logprobs, message.output.prompt_logprobs = 0, 1
    return message


async def run(address: str, messages: list[pb.GenerateRequest], together: bool = True) -> list[Reply]:
    async with Service(address) as service:
        await service.wait_ready()
        if together:
            return await service.run_all(messages)
        return [await service.run(message) for message in messages]


async def crowd(bench: Bench, address: str, messages: list[pb.GenerateRequest]) -> list[Reply]:
    """All at once: the worker stands still until the scheduler has all that wait for no grammar."""
    plain = sum(not message.HasField("response_format") for message in messages)
    async with Service(address) as service:
        await service.wait_ready()
        bench.worker.freeze()
        try:
            replies = asyncio.gather(*(service.run(message) for message in messages))
            while len({one.request_id for one in (await service.stats()).requests}) < plain:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            bench.worker.thaw()
        return list(await replies)


@pytest.fixture(scope="module")
def bench(tiny_llama: Path, shared_processes: Processes) -> Bench:
    return _bench(tiny_llama, shared_processes)


def _bench(model: Path, processes: Processes) -> Bench:
    address = f"unix:{processes.folder}/real.sock"  # nobody else takes it while a worker is replaced
    return Bench(processes, model, processes.worker(model, address, *WORKER_FLAGS))


@pytest.fixture(scope="module")
def cold(bench: Bench) -> list[Reply]:
    return _cold(bench)


def _cold(bench: Bench) -> list[Reply]:
    with bench.scheduler("--no-prefix-cache", "--depth", "1") as address:
        replies = asyncio.run(run(address, cases(), together=False))
    assert all(reply.cached == 0 and reply.preemptions == 0 for reply in replies)
    assert len({tuple(reply.tokens) for reply in replies}) > 12
    assert sum(bool(reply.logprobs) for reply in replies) > 4
    return replies


SETTINGS = {
    "a crowd": (),
    "a crowd, depth 1": ("--depth", "1"),
    "a crowd without the cache": ("--no-prefix-cache",),
    "a token a step": ("--max-num-batched-tokens", "1", "--max-num-seqs", "1"),
    "chunks one short of a block": ("--max-num-batched-tokens", str(BLOCK - 1), "--max-num-seqs", "2"),
    "chunks of a block": ("--max-num-batched-tokens", str(BLOCK), "--max-num-seqs", "3"),
    "chunks that end inside blocks": ("--max-num-batched-tokens", str(BLOCK + 1), "--max-num-seqs", "5"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a06_a12_a18_the_tokens_are_those_of_the_cold_run(bench: Bench, cold: list[Reply], name: str) -> None:
    with bench.scheduler(*SETTINGS[name]) as address:
        replies = asyncio.run(crowd(bench, address, cases()))
        again = asyncio.run(run(address, cases()))  # over what the first round left in the cache
    for round_ in (replies, again):
        assert [reply.tokens for reply in round_] == [reply.tokens for reply in cold]
        for reply, first in zip(round_, cold, strict=True):
            assert reply.logprobs == pytest.approx(first.logprobs, abs=1e-5)
            assert reply.prompt_logprobs == pytest.approx(first.prompt_logprobs, abs=1e-5)
    if name == "a crowd":  # 24 requests of up to 13 blocks in 60 blocks: some had to give way
        assert sum(reply.preemptions for reply in replies) > 0
        assert sum(reply.cached for reply in replies) > 0


def group(number: int, n: int, seed: int) -> pb.GenerateRequest:
    """A request of n sequences; some change their logits, some follow a grammar."""
    prompt = [*SHARED[: 3 + number], 30 + number]
    message = with_asks(request(prompt, TOKENS, temperature=1.0, seed=seed), number)
    message.n = n
    return message


GROUPS, BRANCHES = 8, 4


@pytest.fixture(scope="module")
def singles(bench: Bench) -> list[list[list[int]]]:
    """What each branch of each group is, alone, with its derived seed."""
    messages = [
        group(number, 1, branch_seed(number, branch))
        for number in range(GROUPS)
        for branch in range(BRANCHES)
    ]
    with bench.scheduler("--no-prefix-cache", "--depth", "1") as address:
        tokens = [reply.tokens for reply in asyncio.run(run(address, messages, together=False))]
    return [tokens[at : at + BRANCHES] for at in range(0, len(tokens), BRANCHES)]


@pytest.mark.parametrize("name", [*SETTINGS, "a worker killed midway"])
def test_a14_branch_i_is_the_single_run_with_its_derived_seed(
    bench: Bench, singles: list[list[list[int]]], name: str
) -> None:
    messages = [group(number, BRANCHES, number) for number in range(GROUPS)]
    with bench.scheduler(*GROUP_SETTINGS.get(name, SETTINGS.get(name, ()))) as address:
        if name in SETTINGS:
            replies = asyncio.run(crowd(bench, address, messages))
        else:
            replies = asyncio.run(_with_the_worker_killed(bench, address, messages))
    for number, (reply, wanted) in enumerate(zip(replies, singles, strict=True)):
        assert [reply.branches[branch] for branch in range(BRANCHES)] == wanted
        assert reply.prompt_tokens == 4 + number
    assert len({tuple(tokens) for tokens in singles[1]}) == BRANCHES
    if name == "a crowd":
        assert sum(reply.preemptions for reply in replies) > 0


GROUP_SETTINGS = {
    "a token a step": ("--max-num-batched-tokens", "5", "--max-num-seqs", "5"),
    "chunks one short of a block": ("--max-num-batched-tokens", "5", "--max-num-seqs", "4"),
    "chunks of a block": ("--max-num-batched-tokens", "6", "--max-num-seqs", "5"),
}
"""A group needs a row for each of its branches, and its steps one token more."""


async def _with_the_worker_killed(
    bench: Bench, address: str, messages: list[pb.GenerateRequest]
) -> list[Reply]:
    """kill -9 once a third of the tokens are out; another worker takes the address."""
    replies = [Reply() for _ in messages]
    async with Service(address) as service:
        await service.wait_ready()
        runs = asyncio.gather(
            *(service.run(message, reply) for message, reply in zip(messages, replies, strict=True))
        )
        due = GROUPS * BRANCHES * TOKENS // 3
        await until(lambda: sum(len(reply.tokens) for reply in replies) > due, 60)
        await asyncio.to_thread(bench.replace_worker)
        await runs
    return replies


def test_a06_qwen3_s_tokens_in_a_crowd_are_those_of_the_cold_run(
    tiny_qwen3: Path, processes: Processes
) -> None:
    bench = _bench(tiny_qwen3, processes)
    cold = [reply.tokens for reply in _cold(bench)]
    with bench.scheduler() as address:
        for _ in range(2):
            assert [reply.tokens for reply in asyncio.run(run(address, cases()))] == cold


def test_a10_a_prompt_sent_three_times_uses_the_cache_and_computes_a_token(bench: Bench) -> None:
    with bench.scheduler() as address:
        for length in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK):
            message = request(prompt_of(length, 902), TOKENS)
            first, second, third = asyncio.run(run(address, [message] * 3, together=False))
            assert first.tokens == second.tokens == third.tokens
            assert first.cached == 0
            assert (length - 1) // BLOCK * BLOCK <= second.cached <= length - 1
            assert third.cached == second.cached


def test_a05_an_evicted_prefix_is_computed_again(bench: Bench) -> None:
    mine = request(prompt_of(60, 903), 8)
    others = [request(prompt_of(150, 904 + i), 8) for i in range(3)]
    with bench.scheduler() as address:
        first, *_, last = asyncio.run(run(address, [mine, *others, mine], together=False))
    assert (first.cached, last.cached) == (0, 0)
    assert first.tokens == last.tokens


def test_a25_a_killed_scheduler_leaves_a_worker_that_serves_the_next(bench: Bench, cold: list[Reply]) -> None:
    process = bench.processes.scheduler(bench.model, bench.worker.address)
    asyncio.run(_kill_in_the_middle(process))
    with bench.scheduler() as address:
        assert [reply.tokens for reply in asyncio.run(run(address, cases()))] == [
            reply.tokens for reply in cold
        ]


async def _kill_in_the_middle(process: ServiceProcess) -> None:
    async with Service(process.address) as service:
        await service.wait_ready()
        reply = Reply()
        task = asyncio.create_task(service.run(request(SHARED, 150), reply))
        await until(lambda: bool(reply.tokens))
        process.kill()
        await asyncio.gather(task, return_exceptions=True)
