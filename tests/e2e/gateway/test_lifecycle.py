"""The gateway process: what runs is finished at SIGTERM, and each end has its exit status."""

import asyncio
import socket

import pytest

from scheduler_svc.text import TextModel
from tests.e2e.gateway.door import door_at
from tests.e2e.processes import Processes, ProcessFailed
from tests.e2e.rig import Rig, until


async def test_sigterm_finishes_what_runs_takes_nothing_new_and_exits_0(
    processes: Processes, rig: Rig, text: TextModel
) -> None:
    process = processes.gateway(rig.seat.process.address)
    async with door_at(process, rig, text) as door:
        wanted = door.script("one two three")
        rig.fake.hold()
        body = {"prompt": "Tell me", "max_tokens": len(wanted), "ignore_eos": True}
        running = asyncio.create_task(door.events("/v1/completions", body))
        await rig.fake.wait_for_plans(1)
        process.ask_to_stop()
        await until(lambda: "draining" in process.log_end())
        assert process.alive()
        port = int(process.address.rpartition(":")[2])
        await until(lambda: not _accepts(port))
        await rig.fake.release()
        events = await running
        assert events[-1] == "[DONE]"
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "one two three"
    assert await asyncio.to_thread(process.stop) == 0


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--listen", "192.0.2.1:8000"], 2, "--allow-insecure-bind"),
        (["--max-prompts", "0"], 2, "max-prompts"),
        (["--api-key-file", "/nowhere/keys"], 2, "/nowhere/keys"),
        (["--otlp-traces-endpoint", "collector"], 2, "otlp-traces-endpoint"),
    ],
)
def test_what_stops_a_start_is_one_line_and_a_status(
    processes: Processes, flags: list[str], status: int, said: str
) -> None:
    process = processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *flags, wait=False)
    with pytest.raises(ProcessFailed):
        process.wait_serving()
    assert process.popen.returncode == status
    assert said in process.log_end().splitlines()[-1]


def test_an_address_that_is_taken_is_status_1(processes: Processes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = processes.start("gateway", "gateway", "--listen", address, wait=False)
        with pytest.raises(ProcessFailed):
            process.wait_serving()
    assert process.popen.returncode == 1
    assert address in process.log_end().splitlines()[-1]
