"""ExplainRequest over gRPC: why a request waits and what it was served, in fields and in words."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from octavo.v1 import kv_cache_pb2 as kv
from tests.e2e.cli.run import octavo
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, Rig, prompt_of, rig_at, seat_scheduler
from tests.e2e.service import request


async def explain(rig: Rig, request_id: str) -> kv.ExplainRequestResponse:
    answer: kv.ExplainRequestResponse = await rig.service.kv.ExplainRequest(
        kv.ExplainRequestRequest(request_id=request_id)
    )
    return answer


async def test_who_waits_is_told_why_and_who_runs_what_it_was_served(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama)
    async with rig_at(seat, replace(SMALL, num_blocks=16)) as rig:
        await rig.service.generate(prompt_of(13), 1)
        _, first = await rig.begin(request(prompt_of(13) + [5] * 12, 30, request_id="first"))
        await rig.hold()
        others = [
            asyncio.create_task(rig.service.run(request(prompt_of(40, seed), 2, request_id=f"r{seed}")))
            for seed in (1, 2)
        ]
        await rig.service.wait_waiting(2)
        found = {name: await explain(rig, name) for name in ("first", "r1", "r2")}
        first_found, head, second = found["first"], found["r1"], found["r2"]
        if head.ahead:
            head, second = second, head
        assert list(head.wait_reasons) == [kv.WAIT_REASON_NO_BLOCKS]
        assert list(second.wait_reasons) == [kv.WAIT_REASON_BEHIND_OTHERS, kv.WAIT_REASON_NO_BLOCKS]
        assert list(second.ahead_request_ids) == [head.request.request_id]
        assert (head.need.context, head.need.reserve) == (10, 1)
        lines = head.text.splitlines()
        assert lines[0] == "Waits for KV blocks."
        assert lines[1] == (
            "It needs 11 blocks: 10 for its context of 40 tokens, plus a reserve of 1 for those that run."
        )
        spare = head.free_blocks + head.evictable_blocks - head.promised_blocks
        assert lines[2].startswith(f"The pool can spare {spare}: {head.free_blocks} free and")
        assert lines[2].endswith(f"; {11 - spare} are missing.")
        assert list(first_found.wait_reasons) == []
        assert "13 of its 25 prompt tokens came from the prefix cache" in first_found.text
        assert first_found.request.blocks >= 7
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await explain(rig, "nobody")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        await rig.fake.release()
        await asyncio.gather(first, *others)
        await rig.service.wait_idle()


async def test_each_sequence_of_a_request_has_its_own_table_and_explanation(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama)
    async with rig_at(seat) as rig:
        message = request(prompt_of(10), 30, request_id="three", temperature=1.0)
        message.n = 3
        (task,) = await rig.together([rig.service.run(message)])
        await rig.hold(after=3)
        summaries = [s for s in (await rig.service.stats()).requests if s.request_id == "three"]
        assert sorted(summary.index for summary in summaries) == [0, 1, 2]
        tables = [
            await rig.service.kv.GetSequenceBlocks(
                kv.GetSequenceBlocksRequest(request_id="three", index=index)
            )
            for index in range(3)
        ]
        assert [table.index for table in tables] == [0, 1, 2]
        first, second, third = ([block.block_id for block in table.blocks] for table in tables)
        assert first[:2] == second[:2] == third[:2]
        assert len({first[2], second[2], third[2]}) == 3  # copies, and the original
        assert [block.ref_count for block in tables[0].blocks[:3]] == [3, 3, 1]
        for index in range(3):
            found = await rig.service.kv.ExplainRequest(
                kv.ExplainRequestRequest(request_id="three", index=index)
            )
            assert (found.request.index, found.text.split(":")[0]) == (index, "Runs")
        with pytest.raises(grpc.aio.AioRpcError, match="has 3 sequences") as unknown:
            await rig.service.kv.ExplainRequest(kv.ExplainRequestRequest(request_id="three", index=3))
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        await rig.fake.release()
        await task


async def test_who_is_swapped_out_waits_for_the_transfer_and_top_shows_it(
    processes: Processes, tiny_llama: Path
) -> None:
    seat = await asyncio.to_thread(seat_scheduler, processes, tiny_llama, "--preemption", "swap")
    settings = replace(SMALL, num_blocks=12, num_host_blocks=64, transfer_lag=100)
    async with rig_at(seat, settings) as rig:
        crowd = await rig.together(
            rig.service.run(request(prompt_of(9, i), 30, request_id=f"r{i}")) for i in range(2)
        )
        waiting: list[kv.RequestSummary] = []
        while not waiting:
            await rig.hold(after=1)
            waiting = [one for one in (await rig.service.stats()).requests if one.host_blocks]
        (swapped,) = waiting
        found = await explain(rig, swapped.request_id)
        assert kv.WAIT_REASON_TRANSFER in found.wait_reasons
        assert found.fenced_blocks == swapped.host_blocks > 1
        told = (
            f"Waits for a transfer to host memory to end; {found.fenced_blocks} blocks are fenced until then."
        )
        assert told in found.text.splitlines()
        assert f"s ago; {swapped.host_blocks} blocks in host memory." in found.text
        shown = await asyncio.to_thread(octavo, "top", "--server", seat.process.address, "--once")
        assert f"{swapped.host_blocks} host" in shown.out
        assert told in " ".join(shown.out.split())
        await rig.fake.release()
        await asyncio.gather(*crowd)
        await rig.service.wait_idle()
