"""The step stream: handshake, order, sessions that replace each other, failures that stop a session."""

import asyncio
import threading
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpu_worker.errors import WorkerError
from gpu_worker.model_runner import ModelRunner, PendingStep, StepOutcome
from gpu_worker.server import SERVICE, WorkerServer, WorkerServicer
from gpu_worker.wire import Plan
from octavo import arrays
from octavo.errors import reason_of
from octavo.worker.v1 import worker_pb2
from tests.fixtures.hand_plans import HandPlanner, HandSequence, to_message
from tests.fixtures.tiny_runner import change_logits
from tests.unit.worker.live_worker import EPOCH, LiveWorker, live_worker

INVALID = worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN
STALE = worker_pb2.STEP_FAILURE_REASON_STALE_SESSION


def tokens_of(result: worker_pb2.StepResult) -> list[int]:
    return arrays.decode(result.token_ids, "token_ids").tolist()


def first_plan(session_id: int, prompt: list[int], epoch: int = EPOCH) -> worker_pb2.StepPlan:
    plan = HandPlanner(64, 4).plan([(HandSequence(0, list(prompt)), len(prompt))])
    return to_message(plan, session_id, epoch)


async def code_of(call: grpc.aio.StreamStreamCall[object, object]) -> tuple[grpc.StatusCode, str]:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), reason_of(error)
    return await call.code(), ""


async def test_two_steps_in_flight_are_answered_in_order(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(2, [5, 6, 7])
        for count in (3, 1, 1, 1):
            await end.send(to_message(planner.plan([(sequence, count)]), 1, EPOCH))
        results = [await end.result() for _ in range(4)]
        assert [result.step_id for result in results] == [1, 2, 3, 4]
        assert {result.session_id for result in results} == {1}
        assert all(len(tokens_of(result)) == 1 for result in results)
        assert results[-1].forward_seconds > 0


async def test_a_plan_that_finds_nothing_unanswered_is_launched_where_it_arrives(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one, which comes while that one is unanswered, by the launching thread."""
    threads, all_launched, go_on = list[str](), asyncio.Event(), threading.Event()
    events = asyncio.get_running_loop()
    launch, wait = ModelRunner.launch, PendingStep.wait

    def launched(runner: ModelRunner, plan: Plan) -> PendingStep:
        threads.append(threading.current_thread().name)
        if len(threads) == 3:
            events.call_soon_threadsafe(all_launched.set)
        return launch(runner, plan)

    def waited(pending: PendingStep) -> StepOutcome:
        assert go_on.wait(30)
        return wait(pending)

    monkeypatch.setattr(ModelRunner, "launches_quickly", True)
    monkeypatch.setattr(ModelRunner, "launch", launched)
    monkeypatch.setattr(PendingStep, "wait", waited)
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(2, [5, 6, 7])
        for count in (3, 1, 1):
            await end.send(to_message(planner.plan([(sequence, count)]), 1, EPOCH))
        await all_launched.wait()  # the answering thread holds the first
        go_on.set()
        assert [(await end.result()).step_id for _ in range(3)] == [1, 2, 3]
    assert threads == [threading.main_thread().name, "launcher", "launcher"]


async def test_a_plan_whose_rows_ask_for_more_is_left_to_the_launching_thread(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities of a prompt take the host long, and so might a grammar."""
    threads, launch = list[str](), ModelRunner.launch

    def launched(runner: ModelRunner, plan: Plan) -> PendingStep:
        threads.append(threading.current_thread().name)
        return launch(runner, plan)

    monkeypatch.setattr(ModelRunner, "launches_quickly", True)
    monkeypatch.setattr(ModelRunner, "launch", launched)
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        message = to_message(HandPlanner(64, 4).plan([(HandSequence(2, [5, 6, 7]), 3)]), 1, EPOCH)
        message.row_setups[0].sampling.prompt_logprobs = 1
        message.row_setups[0].prompt_ids = np.array([5, 6, 7], "<i4").tobytes()
        await end.send(message)
        assert (await end.result()).step_id == 1
    assert threads == ["launcher"]


async def test_a_fault_in_launching_where_a_plan_arrives_ends_its_stream(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched(runner: ModelRunner, plan: Plan) -> PendingStep:
        raise KeyError(7)

    monkeypatch.setattr(ModelRunner, "launches_quickly", True)
    async with live_worker(tiny_llama) as worker:
        with monkeypatch.context() as broken:
            broken.setattr(ModelRunner, "launch", launched)
            end = await worker.session(1)
            await end.send(first_plan(1, [5, 6, 7]))
            assert await code_of(end.call) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        again = await worker.session(2)
        assert len(tokens_of(await again.ask(first_plan(2, [5, 6, 7])))) == 1


async def test_before_the_model_is_loaded(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama, ready=False) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.stub.GetCapacity(worker_pb2.GetCapacityRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(caught.value) == "LOADING"
        assert await code_of(worker.stub.Run()) == (grpc.StatusCode.UNAVAILABLE, "LOADING")
        assert await health(worker, "") == health_pb2.HealthCheckResponse.SERVING
        assert await health(worker, SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING


async def health(worker: LiveWorker, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(worker.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


async def test_health_capacity_and_reflection(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        capacity = await worker.stub.GetCapacity(worker_pb2.GetCapacityRequest())
        assert capacity.worker_epoch == EPOCH
        assert await health(worker, SERVICE) == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(worker.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            names = {service.name for service in answer.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize(
    ("epoch", "version", "code", "reason"),
    [
        (EPOCH + 1, 1, grpc.StatusCode.ABORTED, "STALE_EPOCH"),
        (EPOCH, 99, grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_VERSION"),
    ],
)
async def test_a_wrong_hello_is_refused(
    tiny_llama: Path, epoch: int, version: int, code: grpc.StatusCode, reason: str
) -> None:
    async with live_worker(tiny_llama) as worker:
        call = worker.stub.Run()
        hello = worker_pb2.SessionHello(session_id=1, worker_epoch=epoch, protocol_version=version)
        await call.write(worker_pb2.RunRequest(hello=hello))
        assert await code_of(call) == (code, reason)


async def test_a_plan_before_the_hello_is_refused(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        call = worker.stub.Run()
        await call.write(worker_pb2.RunRequest(plan=first_plan(1, [1, 2])))
        assert await code_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


@pytest.mark.parametrize(("step", "base"), [(1, 0), (3, 2), (2, 0), (0, 0)])
async def test_a_repeat_and_a_gap_are_refused(tiny_llama: Path, step: int, base: int) -> None:
    """After step 1 only step 2 on base 1 is legal; then the session is over."""
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(0, [5, 6, 7])
        assert tokens_of(await end.ask(to_message(planner.plan([(sequence, 3)]), 1, EPOCH)))
        plan = to_message(planner.plan([(sequence, 1)]), 1, EPOCH)
        plan.step_id, plan.base_step = step, base
        refused = await end.ask(plan)
        assert refused.failure.reason == INVALID
        assert refused.failure.detail.startswith(("step_id", "base_step"))
        plan.step_id, plan.base_step = 2, 1
        later = await end.ask(plan)
        assert later.failure.reason == INVALID
        assert "open a new session" in later.failure.detail


@pytest.mark.parametrize(("session", "epoch"), [(2, EPOCH), (1, EPOCH + 1)])
async def test_another_session_or_epoch_is_stale(tiny_llama: Path, session: int, epoch: int) -> None:
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        result = await end.ask(first_plan(session, [5, 6], epoch))
        assert result.failure.reason == STALE
        assert result.session_id == session


async def test_a_bad_plan_fails_the_session_and_a_new_one_recovers(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        good = tokens_of(await end.ask(first_plan(1, [5, 6, 7])))
        bad = first_plan(1, [5, 6, 7])
        bad.step_id, bad.base_step = 2, 1
        result = await end.ask(bad)
        assert result.failure.reason == INVALID
        assert result.failure.detail == "row_setups.row: 0 is set up already and was not released"
        fresh = await worker.session(2)
        assert tokens_of(await fresh.ask(first_plan(2, [5, 6, 7]))) == good


async def test_a_new_session_ends_the_old_stream_and_drops_its_plans(tiny_llama: Path) -> None:
    """A thawed scheduler, or a second one: plans still queued for the old session never run."""
    async with live_worker(tiny_llama) as worker:
        old = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(0, [5, 6, 7])
        for count in (3, *[1] * 60):
            await old.send(to_message(planner.plan([(sequence, count)]), 1, EPOCH))
        fresh = await worker.session(2)
        result = await fresh.ask(first_plan(2, [9, 8, 7]))
        assert (result.session_id, result.step_id) == (2, 1)
        assert not result.HasField("failure")
        assert await code_of(old.call) == (grpc.StatusCode.ABORTED, "STALE_EPOCH")


async def test_when_the_scheduler_is_gone_rows_are_dropped_and_the_worker_waits(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        expected = tokens_of(await end.ask(first_plan(1, [5, 6, 7])))
        assert worker.runner.rows.live.any()
        end.call.cancel()
        while worker.runner.rows.live.any():  # noqa: ASYNC110  another thread clears them
            await asyncio.sleep(0.01)
        again = await worker.session(3)
        assert tokens_of(await again.ask(first_plan(3, [5, 6, 7]))) == expected


async def test_a_half_closed_stream_gets_its_answers_and_ends(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        await end.send(first_plan(1, [5, 6, 7]))
        await end.call.done_writing()
        assert tokens_of(await end.result())
        assert await code_of(end.call) == (grpc.StatusCode.OK, "")


async def test_a21_a_row_with_nan_fails_alone(tiny_llama: Path) -> None:
    """The other rows' tokens are those of a step without it."""
    async with live_worker(tiny_llama) as worker:

        def two_rows(session_id: int) -> worker_pb2.StepPlan:
            work = [(HandSequence(row, [5 + row, 6, 7]), 3) for row in range(3)]
            return to_message(HandPlanner(64, 4).plan(work), session_id, EPOCH)

        healthy = tokens_of(await (await worker.session(1)).ask(two_rows(1)))

        def poison(logits: torch.Tensor) -> torch.Tensor:
            logits[1, 17] = float("nan")
            return logits

        change_logits(worker.runner, poison)
        result = await (await worker.session(2)).ask(two_rows(2))
        assert tokens_of(result) == [healthy[0], -1, healthy[2]]
        assert [(row.row, row.reason) for row in result.failed_rows] == [
            (1, worker_pb2.ROW_FAILURE_REASON_NON_FINITE_LOGITS)
        ]
    # Behind the worker's end: a step is counted only once its answer has left.
    value = worker.metrics.registry.get_sample_value(
        "octavo_worker_failed_rows_total", {"reason": "non_finite_logits"}
    )
    assert value == 1


async def test_running_out_of_memory_fails_the_step_and_not_the_worker(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:

        def no_memory(logits: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("tried to allocate 9 GiB\nmore text")

        change_logits(worker.runner, no_memory)
        result = await (await worker.session(1)).ask(first_plan(1, [5, 6]))
        assert result.failure.reason == worker_pb2.STEP_FAILURE_REASON_OUT_OF_MEMORY
        assert result.failure.detail == "tried to allocate 9 GiB"
        change_logits(worker.runner, None)
        assert tokens_of(await (await worker.session(2)).ask(first_plan(2, [5, 6])))
        assert not worker.poisoned


async def test_a_poisoned_device_is_reported(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_worker(tiny_llama) as worker:
        monkeypatch.setattr(worker.runner.device, "is_poisoned_by", lambda error: True)

        def break_device(logits: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        change_logits(worker.runner, break_device)
        result = await (await worker.session(1)).ask(first_plan(1, [5, 6]))
        assert result.failure.reason == worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR
        while not worker.poisoned:  # noqa: ASYNC110  another thread appends
            await asyncio.sleep(0.01)
        assert worker.poisoned == ["CUDA error: an illegal memory access was encountered"]


async def test_a_taken_port_is_named(tiny_llama: Path) -> None:
    async with live_worker(tiny_llama) as worker:
        second = WorkerServer(WorkerServicer(EPOCH), 1 << 20, 1 << 20)
        with pytest.raises(WorkerError, match=f"--listen {worker.address}: cannot be bound"):
            await second.start(worker.address)
        await second.stop(0)
        taken = worker.metrics.serve("127.0.0.1", 0)
        with pytest.raises(
            WorkerError, match=f"--metrics-port {taken.port}: .* cannot be bound: Address already in use"
        ):
            worker.metrics.serve("127.0.0.1", taken.port)
        taken.close()
