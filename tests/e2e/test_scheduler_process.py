"""The scheduler as a process: what it loads, how it starts, how it ends."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octavo.errors import reason_of
from tests.e2e.processes import Processes, ProcessFailed, ServiceProcess
from tests.e2e.rig import SMALL, prompt_of, rig_at, seat_scheduler, wanted
from tests.e2e.service import Service, request
from tests.fakes.fake_worker import FakeWorker

HEAVY = ("torch", "transformers", "triton", "gpu_worker", "paged_kernels", "octavo_client")


async def ended(process: ServiceProcess, seconds: float = 60.0) -> int:
    return await asyncio.to_thread(process.popen.wait, seconds)


async def test_no_tensor_library_is_imported_by_start_request_or_chat(
    processes: Processes, tiny_llama: Path
) -> None:
    """The import log of a whole life; it would show an import at any later moment too."""
    address = f"unix:{processes.folder}/w.sock"
    fake = FakeWorker(SMALL)
    await fake.start(address)
    flags = ["scheduler_svc", "--model", str(tiny_llama), "--worker", address, "--listen", "127.0.0.1:0"]
    logged = {"PYTHONPROFILEIMPORTTIME": "1"}
    process = await asyncio.to_thread(processes.start, "scheduler", *flags, "--metrics-port", "0", env=logged)
    async with Service(process.address) as service:
        await service.wait_ready()
        assert (await service.generate(prompt_of(5), 3)).tokens == wanted(prompt_of(5), 3)
        assert (await service.generate("some text", 3, stop=["zzz"])).reason == "LENGTH"
    assert await asyncio.to_thread(process.stop) == 0
    lines = [line for line in process.err.read_text().splitlines() if line.startswith("import time:")]
    loaded = {line.rsplit("|", 1)[1].strip() for line in lines}
    assert {"scheduler_svc.engine", "tokenizers", "grpc"} <= loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}
    await fake.die()


async def test_sigterm_refuses_new_work_finishes_the_rest_and_exits_0(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama)
    fake = FakeWorker(SMALL)
    await fake.start(seat.worker_address)
    async with Service(seat.process.address) as service:
        await service.wait_ready()
        task = asyncio.create_task(service.generate(prompt_of(9), 100))
        await fake.wait_for_plans(3)
        fake.hold()
        seat.process.popen.terminate()
        await service.wait_ready(False)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.generate(prompt_of(4), 3)
        assert (refused.value.code(), reason_of(refused.value)) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        await fake.release()
        reply = await task
        assert reply.tokens == wanted(prompt_of(9), 100)
        assert await ended(seat.process) == 0
    await fake.die()


async def test_sigterm_cuts_off_what_outlasts_the_drain(processes: Processes, tiny_llama: Path) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama, "--drain-seconds", "0.2")
    fake = FakeWorker(SMALL)
    await fake.start(seat.worker_address)
    fake.step_delay = 0.05
    async with Service(seat.process.address) as service:
        await service.wait_ready()
        task = asyncio.create_task(service.generate(prompt_of(9), 200))
        await fake.wait_for_plans(3)
        seat.process.popen.terminate()
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await task
        assert (cut.value.code(), reason_of(cut.value)) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await ended(seat.process) == 0
    await fake.die()


async def test_a_dead_engine_ends_the_process_with_one_line(processes: Processes, tiny_llama: Path) -> None:
    address = f"unix:{processes.folder}/w.sock"
    fake = FakeWorker(SMALL)
    await fake.start(address)
    arguments = ["tests.e2e.broken_scheduler", "--model", str(tiny_llama), "--worker", address]
    listen = ["--listen", "127.0.0.1:0", "--metrics-port", "0"]
    process = await asyncio.to_thread(processes.start, "broken", *arguments, *listen)
    async with Service(process.address) as service:
        await service.wait_ready()
        with pytest.raises(grpc.aio.AioRpcError):
            await service.generate(prompt_of(4), 3)
        assert await ended(process) == 1
    lines = [json.loads(line) for line in process.err.read_text().splitlines()]
    critical = [line for line in lines if line["level"] == "critical"]
    assert [line["message"] for line in critical] == ["engine ended; the service ends too"]
    assert "planted" in critical[0]["exception"]
    await fake.die()


def failure(processes: Processes, *arguments: str) -> str:
    """The last lines of a scheduler that does not come up."""
    with pytest.raises(ProcessFailed) as failed:
        processes.start("scheduler", "scheduler_svc", *arguments)
    return str(failed.value)


def test_what_stops_a_start_is_said_in_one_line(processes: Processes, tiny_llama: Path) -> None:
    model = ["--model", str(tiny_llama), "--metrics-port", "0"]
    running = processes.scheduler(tiny_llama, "unix:/nowhere.sock")
    taken = failure(processes, *model, "--listen", running.address)
    assert "exit status 1" in taken
    assert '"level": "critical"' in taken
    assert taken.count('"message"') == 1
    assert f"--listen {running.address}: cannot be bound; is it taken?" in taken
    nowhere = f"unix:{processes.folder}/none/s.sock"
    assert f"--listen {nowhere}: cannot be bound: No such file" in failure(
        processes, *model, "--listen", nowhere
    )
    bad_bind = failure(processes, *model, "--listen", "0.0.0.0:0")
    assert "exit status 2" in bad_bind
    assert "--allow-insecure-bind" in bad_bind
    nothing = f"{processes.folder}/nothing"
    no_folder = failure(processes, "--model", nothing, "--listen", "127.0.0.1:0")
    assert "exit status 2" in no_folder
    assert f"--model {nothing}: does not exist" in no_folder
    metrics_taken = failure(
        processes, "--model", str(tiny_llama), "--listen", "127.0.0.1:0",
        "--metrics-port", str(running.serving["metrics_port"]),
    )  # fmt: skip
    assert "exit status 1" in metrics_taken
    port = running.serving["metrics_port"]
    assert f"cannot serve: --metrics-port {port}: 127.0.0.1:{port} cannot be bound: " in metrics_taken
    assert "Event loop is closed" not in metrics_taken


async def test_it_serves_on_a_unix_socket(processes: Processes, tiny_llama: Path) -> None:
    address, listen = f"unix:{processes.folder}/w.sock", f"unix:{processes.folder}/s.sock"
    fake = FakeWorker(SMALL)
    await fake.start(address)
    flags = ["--model", str(tiny_llama), "--worker", address, "--listen", listen, "--metrics-port", "0"]
    process = await asyncio.to_thread(processes.start, "scheduler", "scheduler_svc", *flags)
    assert process.address == listen
    async with Service(process.address) as service:
        await service.wait_ready()
        assert (await service.generate(prompt_of(5), 3)).tokens == wanted(prompt_of(5), 3)
    await fake.die()


async def test_reflection_lists_the_services(processes: Processes, tiny_llama: Path) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama)
    async with rig_at(seat) as rig:
        stub = reflection_pb2_grpc.ServerReflectionStub(rig.service.channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([ask])):
            names = {service.name for service in answer.list_services_response.service}
        assert {"octavo.v1.InferenceService", "octavo.v1.KvCacheService", "grpc.health.v1.Health"} <= names


async def test_a_full_queue_is_refused_with_a_time_to_come_back(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama, "--max-queue-requests", "3")
    async with rig_at(seat) as rig:
        _, first = await rig.begin(request(prompt_of(6), 30))
        await rig.hold()  # no step is free any more
        waiting = [asyncio.create_task(rig.service.generate(prompt_of(6, seed), 2)) for seed in range(1, 4)]
        await rig.service.wait_waiting(3)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await rig.service.generate(prompt_of(6, 9), 2)
        assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(full.value) == "QUEUE_FULL"
        await rig.fake.release()
        await asyncio.gather(first, *waiting)
