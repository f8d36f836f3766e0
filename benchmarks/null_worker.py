"""A worker that computes nothing: it answers every plan at once with fixed tokens.

Owns the least that the step protocol asks for; knows no KV pool. Invariant: every sample of a plan gets one
token, so that what is measured in front of it is the scheduler alone.

`python -m benchmarks.null_worker --listen ADDR` prints the serving line of a worker.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator

import grpc
import numpy as np

from octavo import handshake, transport
from octavo.logging import announce_serving
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

VOCAB = 384
TOKEN = 7


class NullWorker(worker_pb2_grpc.WorkerServiceServicer):
    """step_seconds: how long a step seems to take."""

    def __init__(self, num_blocks: int, block_size: int, max_batch_seqs: int, step_seconds: float) -> None:
        self._epoch = handshake.random_id()
        self._blocks = num_blocks, block_size
        self._max_batch_seqs = max_batch_seqs
        self._step_seconds = step_seconds

    async def GetCapacity(  # noqa: N802
        self, request: worker_pb2.GetCapacityRequest, context: object
    ) -> worker_pb2.GetCapacityResponse:
        return worker_pb2.GetCapacityResponse(
            worker_epoch=self._epoch,
            protocol_version=handshake.PROTOCOL_VERSION,
            model_id="null",
            model_fingerprint="null",
            num_blocks=self._blocks[0],
            block_size=self._blocks[1],
            max_batch_tokens=1 << 16,
            max_batch_seqs=self._max_batch_seqs,
            max_model_len=1 << 15,
            vocab_size=VOCAB,
        )

    async def Run(  # noqa: N802
        self, requests: AsyncIterator[worker_pb2.RunRequest], context: object
    ) -> AsyncIterator[worker_pb2.RunResponse]:
        rows = 0
        async for request in requests:
            if request.HasField("hello"):
                yield worker_pb2.RunResponse(accepted=handshake.accept(request.hello, self._epoch))
                continue
            plan = request.plan
            rows = rows if plan.same_rows else len(plan.rows) // 4
            samples = 0 if plan.no_samples else len(plan.sample_rows) // 4 or rows
            if self._step_seconds:
                await asyncio.sleep(self._step_seconds)
            yield worker_pb2.RunResponse(
                result=worker_pb2.StepResult(
                    session_id=plan.session_id,
                    worker_epoch=plan.worker_epoch,
                    step_id=plan.step_id,
                    token_ids=np.full(samples, TOKEN, "<i4").tobytes(),
                )
            )


async def serve(arguments: argparse.Namespace) -> None:
    server = grpc.aio.server(options=transport.server_options(transport.LARGEST_MESSAGE))
    worker = NullWorker(
        arguments.num_blocks, arguments.block_size, arguments.max_batch_seqs, arguments.step_seconds
    )
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(arguments.listen)
    await server.start()
    announce_serving("worker", transport.bound_address(arguments.listen, port), 0)
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker that computes nothing, for benchmarks.")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--num-blocks", type=int, default=65_536)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-batch-seqs", type=int, default=1024)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
