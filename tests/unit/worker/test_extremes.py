"""A24: the largest legal plan and answer pass the stream, sized by the configured limits; floods are
bounded.
"""

import asyncio
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from gpu_worker import step_loop
from gpu_worker.wire import TokenLogprobs, encode_failure, encode_result
from octavo import arrays, transport
from octavo.worker.v1 import worker_pb2
from tests.fixtures.hand_plans import HandPlanner, HandSequence, to_message
from tests.fixtures.tiny_runner import change_logits
from tests.unit.worker.live_worker import EPOCH, live_worker
from tests.unit.worker.test_server import code_of, first_plan, tokens_of

TOKENS, ROWS, LENGTH, BLOCK, BLOCKS = 8192, 64, 32768, 4, 65536
BIG = 2**64 - 1


def largest_plan(session_id: int) -> worker_pb2.StepPlan:
    """Full token budget, every row set up anew with the longest table, every block zeroed, every array
    spelled out.
    """

    def many(count: int) -> bytes:
        return arrays.encode(np.full(count, 2**31 - 1, np.int32))

    sampling = worker_pb2.SamplingParams(
        temperature=1, top_p=0.5, top_k=2**32 - 1, min_p=0.5, seed=BIG, presence_penalty=1,
        frequency_penalty=1, repetition_penalty=2, logit_bias_ids=many(1024),
        logit_bias_values=[1.0] * 1024, suppressed_ids=many(80), min_tokens=2**32 - 1,
        logprobs=20, prompt_logprobs=20,
    )  # fmt: skip
    history = {"prompt_ids": many(LENGTH // 2), "output_ids": many(LENGTH // 2)}
    entries = ROWS * (LENGTH // BLOCK)
    return worker_pb2.StepPlan(
        session_id=session_id,
        worker_epoch=EPOCH,
        step_id=1,
        base_step=BIG,
        released_rows=many(ROWS),
        row_setups=[
            worker_pb2.RowSetup(row=2**32 - 1, prompt_len=2**32 - 1, sampling=sampling, **history)
            for _ in range(ROWS)
        ],
        table_rows=many(entries),
        table_offsets=many(entries),
        table_blocks=many(entries),
        block_ops=worker_pb2.BlockOps(zero_blocks=many(BLOCKS), copy_pairs=many(2 * ROWS)),
        rows=many(ROWS),
        query_lens=many(ROWS),
        context_lens=many(ROWS),
        input_ids=many(TOKENS),
        positions=many(TOKENS),
        slot_mapping=many(TOKENS),
        sample_positions=many(TOKENS),
        sample_rows=many(TOKENS),
    )


async def test_a24_the_largest_plan_arrives(tiny_llama: Path) -> None:
    """It is past gRPC's default of 4 MiB; what it says is refused, which shows that it was read."""
    bound = transport.plan_bytes_bound(TOKENS, ROWS, LENGTH, BLOCK, BLOCKS)
    plan = largest_plan(1)
    assert 4 * transport.MIB < plan.ByteSize() <= bound
    async with live_worker(tiny_llama, limit=bound) as worker:
        end = await worker.session(1)
        result = await end.ask(plan)
        assert result.failure.reason == worker_pb2.STEP_FAILURE_REASON_INVALID_PLAN
        assert result.failure.detail.startswith("base_step")


def all_logprobs(positions: int) -> TokenLogprobs:
    """With twenty alternatives each."""
    return TokenLogprobs(np.full((positions, 21), -1, np.int32), np.full((positions, 21), -1, np.float32))


def test_a24_the_largest_answer_is_within_its_bound() -> None:
    plan = worker_pb2.StepPlan(session_id=BIG, worker_epoch=BIG, step_id=BIG)
    tokens = np.full(ROWS, -1, np.int32)
    answer = encode_result(
        plan, tokens, [2**32 - 1] * ROWS, (1.0, 1.0, 1.0), all_logprobs(ROWS),
        [(2**32 - 1, 2**32 - 1, all_logprobs(TOKENS // ROWS))] * ROWS,
    )  # fmt: skip
    assert 168 * TOKENS < answer.ByteSize() <= transport.result_bytes_bound(ROWS, TOKENS)
    failure = encode_failure(plan, worker_pb2.STEP_FAILURE_REASON_DEVICE_ERROR, "x" * 1000)
    assert failure.ByteSize() <= transport.result_bytes_bound(1, 1)


async def test_a_flood_of_plans_ends_the_stream(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan runs, eight wait, the tenth is too many."""
    monkeypatch.setattr(step_loop, "MAX_QUEUED", 8)
    async with live_worker(tiny_llama) as worker:
        started, go_on = threading.Event(), threading.Event()

        def hold(logits: torch.Tensor) -> torch.Tensor:
            started.set()
            go_on.wait()
            return logits

        change_logits(worker.runner, hold)
        end = await worker.session(1)
        planner, sequence = HandPlanner(64, 4), HandSequence(0, [5, 6, 7])
        try:
            await end.send(to_message(planner.plan([(sequence, 3)]), 1, EPOCH))
            await asyncio.to_thread(started.wait)
            for _ in range(9):
                await end.send(to_message(planner.plan([(sequence, 1)]), 1, EPOCH))
            assert await code_of(end.call) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "PLAN_BACKLOG")
        finally:
            go_on.set()  # the worker's end waits for the plan that runs
        fresh = await worker.session(2)
        assert tokens_of(await fresh.ask(first_plan(2, [1, 2])))


async def test_a_refusal_is_answered_after_the_steps_before_it(tiny_llama: Path) -> None:
    """Answers leave in step order, also when a later step fails before an earlier one is done."""
    async with live_worker(tiny_llama) as worker:
        end = await worker.session(1)
        good = first_plan(1, [5, 6, 7])
        bad = first_plan(1, [5, 6, 7])
        bad.step_id, bad.base_step = 2, 1
        slow = [torch.randn(300, 300) for _ in range(20)]

        def take_time(logits: torch.Tensor) -> torch.Tensor:
            for matrix in slow:
                torch.linalg.svd(matrix)
            return logits

        change_logits(worker.runner, take_time)
        await end.send(good)
        await end.send(bad)
        first, second = await end.result(), await end.result()
        assert (first.step_id, first.HasField("failure")) == (1, False)
        assert (second.step_id, second.HasField("failure")) == (2, True)
