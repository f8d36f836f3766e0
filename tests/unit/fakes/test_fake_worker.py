"""The fake worker over its own wire: sessions, refusals and every fault, seen by a bare client."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.e2e.processes import REPOSITORY, child_environment
from tests.fakes.fake_worker import FakeSettings, FakeWorker
from tests.fakes.faults import FAILS_A_ROW, FaultKind
from tests.fakes.simulated_kv import expected_tokens

PROMPT = [5, 6, 7, 8, 9]
VOCAB = 384


def packed(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


class BareClient:
    """One session of one row with table [1, 6, 3] of block_size 4, by hand."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        self.step = 0

    async def open(self, session_id: int = 7, epoch: int | None = None, version: int = 1) -> None:
        capacity = await self.stub.GetCapacity(worker_pb2.GetCapacityRequest())
        self.epoch, self.session_id = capacity.worker_epoch if epoch is None else epoch, session_id
        self.call = self.stub.Run()
        hello = worker_pb2.SessionHello(
            session_id=session_id, worker_epoch=self.epoch, protocol_version=version
        )
        await self.call.write(worker_pb2.RunRequest(hello=hello))
        answer = await self.call.read()
        assert answer.accepted.session_id == session_id

    def plan(self, **changes: object) -> worker_pb2.StepPlan:
        self.step += 1
        message = worker_pb2.StepPlan(
            session_id=self.session_id, worker_epoch=self.epoch, step_id=self.step, base_step=self.step - 1
        )
        if self.step == 1:
            message.row_setups.add(row=0, prompt_len=len(PROMPT))
            message.table_rows, message.table_offsets = packed(0, 0, 0), packed(0, 1, 2)
            message.table_blocks, message.rows = packed(1, 6, 3), packed(0)
            message.query_lens, message.context_lens = packed(5), packed(5)
            message.input_ids, message.slot_mapping = packed(*PROMPT), packed(4, 5, 6, 7, 24)
        else:
            position = len(PROMPT) + self.step - 2
            message.same_rows, message.context_lens = True, packed(position + 1)
            message.slot_mapping = packed([1, 6, 3][position // 4] * 4 + position % 4)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    async def send(self, **changes: object) -> None:
        await self.call.write(worker_pb2.RunRequest(plan=self.plan(**changes)))

    async def result(self) -> worker_pb2.StepResult:
        answer = await asyncio.wait_for(self.call.read(), 60)
        return answer.result

    async def ask(self, **changes: object) -> worker_pb2.StepResult:
        await self.send(**changes)
        return await self.result()


def tokens(result: worker_pb2.StepResult) -> list[int]:
    return np.frombuffer(result.token_ids, "<i4").tolist()


@pytest.fixture
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeWorker]:
    """At a socket that nobody else takes while it restarts."""
    fake = FakeWorker(FakeSettings(num_blocks=8, block_size=4, vocab_size=VOCAB))
    await fake.start(f"unix:{tmp_path_factory.mktemp('fake')}/worker.sock")
    yield fake
    await fake.die()


@pytest.fixture
async def client(worker: FakeWorker) -> AsyncIterator[BareClient]:
    bare = BareClient(worker.address)
    await bare.open()
    yield bare
    await bare.channel.close()


async def test_two_steps_in_flight_give_the_expected_tokens(worker: FakeWorker, client: BareClient) -> None:
    for _ in range(4):
        await client.send()
    answers = [await client.result() for _ in range(4)]
    assert [tokens(answer)[0] for answer in answers] == expected_tokens(PROMPT, 4, VOCAB)
    assert [answer.step_id for answer in answers] == [1, 2, 3, 4]
    assert not worker.violations


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"step_id": 3}, "step_id"), ({"step_id": 1}, "step_id"), ({"base_step": 0}, "base_step"),
     ({"session_id": 8}, "session_id"), ({"worker_epoch": 1}, "worker_epoch"), ({"rows": packed(0)}, "rows"),
     ({"slot_mapping": b"\0"}, "slot_mapping")],
)  # fmt: skip
async def test_a_wrong_plan_is_refused_until_a_new_session(
    worker: FakeWorker, client: BareClient, changes: dict[str, object], field: str
) -> None:
    await client.ask()
    assert (await client.ask(**changes)).failure.detail.startswith(field)
    assert "a new session is due" in (await client.ask()).failure.detail
    assert worker.violations
    fresh = BareClient(worker.address)
    await fresh.open(session_id=9)
    assert tokens(await fresh.ask()) == expected_tokens(PROMPT, 1, VOCAB)
    await fresh.channel.close()


async def test_a_new_session_ends_the_old_stream(worker: FakeWorker, client: BareClient) -> None:
    fresh = BareClient(worker.address)
    await fresh.open(session_id=9)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await client.result()
    assert ended.value.code() == grpc.StatusCode.ABORTED
    await fresh.channel.close()


@pytest.mark.parametrize(
    ("hello", "code"),
    [({"version": 2}, grpc.StatusCode.FAILED_PRECONDITION), ({"epoch": 1}, grpc.StatusCode.ABORTED)],
)
async def test_a_wrong_hello_is_refused(
    worker: FakeWorker, hello: dict[str, int], code: grpc.StatusCode
) -> None:
    client = BareClient(worker.address)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.open(**hello)
    assert refused.value.code() == code
    await client.channel.close()


async def test_answers_wait_while_held_and_go_one_at_a_time(worker: FakeWorker, client: BareClient) -> None:
    worker.hold()
    await client.send()
    await client.send()
    await worker.wait_for_plans(2)
    await worker.release(1)
    assert (await client.result()).step_id == 1
    pending = asyncio.create_task(client.result())
    await asyncio.sleep(0.05)
    assert not pending.done()
    await worker.release()
    assert (await pending).step_id == 2


RIGHT = expected_tokens(PROMPT, 1, VOCAB)
FAULTS = {
    FaultKind.OUT_OF_VOCABULARY: [2**31 - 1],
    FaultKind.NEGATIVE_TOKEN: [-1],
    FaultKind.LACK_TOKEN: [],
    FaultKind.EXTRA_TOKEN: RIGHT * 2,
    FaultKind.FAIL_ROW: [-1],
    FaultKind.FAIL_GRAMMAR: [-1],
    FaultKind.FAIL_UNKNOWN_ROW: RIGHT,
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_bends_one_answer(worker: FakeWorker, client: BareClient, kind: FaultKind) -> None:
    worker.inject(kind)
    assert tokens(await client.ask()) == FAULTS[kind]
    goes_on = tokens(await client.ask()) == expected_tokens(PROMPT, 2, VOCAB)[1:]
    assert goes_on == (kind not in FAILS_A_ROW)  # what a failed row wrote is spoilt


@pytest.mark.parametrize(
    ("kind", "steps"),
    [(FaultKind.DROP, [2, 3]), (FaultKind.REPEAT, [1, 1, 2]), (FaultKind.REORDER, [2, 1, 3]),
     (FaultKind.FUTURE_STEP, [1001, 1, 2])],
)  # fmt: skip
async def test_a_fault_changes_the_order(
    worker: FakeWorker, client: BareClient, kind: FaultKind, steps: list[int]
) -> None:
    worker.inject(kind)
    for _ in range(3):
        await client.send()
    assert [(await client.result()).step_id for _ in steps] == steps


async def test_refuse_and_restart(worker: FakeWorker, client: BareClient) -> None:
    worker.inject(FaultKind.REFUSE)
    assert (await client.ask()).HasField("failure")
    assert not worker.violations
    old = worker.epoch
    await worker.restart()
    assert worker.epoch != old
    fresh = BareClient(worker.address)
    await fresh.open()
    assert tokens(await fresh.ask()) == RIGHT
    await fresh.channel.close()


@asynccontextmanager
async def fake_process(*flags: str) -> AsyncIterator[Process]:
    """The fake worker as a process, which has ended at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fakes.fake_worker",
        *flags,
        stdin=PIPE,
        stdout=PIPE,
        cwd=REPOSITORY,
        env=child_environment(),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_process_serves_and_obeys_its_standard_input() -> None:
    async with fake_process("--num-blocks", "8", "--block-size", "4") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        serving = json.loads(await process.stdout.readline())
        assert (serving["event"], serving["service"]) == ("serving", "worker")
        process.stdin.write(json.dumps({"do": "script", "prompt": PROMPT, "tokens": [3]}).encode() + b"\n")
        assert json.loads(await process.stdout.readline()) == {"event": "done"}
        client = BareClient(serving["listen"])
        await client.open()
        assert tokens(await client.ask()) == [3]
        process.stdin.write(b'{"do": "die"}\n')
        assert await process.wait() == 137
        await client.channel.close()


async def test_the_process_ends_with_its_standard_input() -> None:
    async with fake_process() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline()
        process.stdin.close()
        assert await process.wait() == 0
