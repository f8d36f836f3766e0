"""Block sizes and a decode step of the real worker on this CPU.

Owns the shape (SmolLM2-135M-Instruct, 8 rows after 1024 tokens) and the turns; knows no scheduler. Invariant:
one set of weights, one pool a block size, written all over, with blocks in no order; block sizes take turns
and a time is the least of all rounds. It is CPU time of one thread, which a shared machine distorts least.
"""

import time
from pathlib import Path
from typing import Any

from benchmarks.block_size.traffic import MODEL, Note
from benchmarks.worker import Batch
from gpu_worker.config import read_settings
from gpu_worker.kv_pool import KvPool
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner
from gpu_worker.rows import Limits

ROWS, CONTEXT, STEPS = 8, 1024, 4


def decode_steps(sizes: tuple[int, ...], rounds: int, note: Note, model: Path = MODEL) -> dict[str, Any]:
    """Milliseconds of one core for a whole decode step at each block size."""
    note("CPU step: loading the model")
    flags = ["--model", str(model), "--device", "cpu", "--num-blocks", "64", "--log-level", "WARNING"]
    flags += ["--max-model-len", "4096", "--max-num-batched-tokens", "64", "--max-num-seqs", str(ROWS)]
    flags += ["--threads", "1"]
    first = load(examine(read_settings(flags))).runner
    runners = {size: _on_pool(first, size) for size in sizes}
    best = dict.fromkeys(sizes, float("inf"))
    for turn in range(rounds):
        for size, runner in runners.items():
            note(f"CPU step at {size}, round {turn + 1} of {rounds}")
            batch = Batch(runner, ROWS, CONTEXT + 2 + STEPS, 0.0, start=CONTEXT)
            batch.advance(2)
            best[size] = min(best[size], *(_cpu_seconds(batch) for _ in range(STEPS)))
    return {
        "rows": ROWS,
        "context": CONTEXT,
        "dtype": str(first.pool.tensor.dtype).removeprefix("torch."),
        "steps": [{"block_size": size, "ms": 1e3 * seconds} for size, seconds in best.items()],
    }


def _cpu_seconds(batch: Batch) -> float:
    """Of one step of one token a row."""
    started = time.process_time()
    batch.advance(1)
    return time.process_time() - started


def _on_pool(first: ModelRunner, size: int) -> ModelRunner:
    """The same model on a pool of that block size."""
    config = first.decoder.config
    blocks = ROWS * -(-(CONTEXT + 2 + STEPS) // size)
    pool = KvPool(config, blocks, size, first.pool.tensor.dtype, first.device.torch_device)
    pool.tensor.fill_(0.01)  # memory that was never written is one page of zeros, and reads too fast
    old = first.rows.limits
    limits = Limits(
        num_blocks=blocks,
        block_size=size,
        max_batch_tokens=old.max_batch_tokens,
        max_batch_seqs=old.max_batch_seqs,
        max_model_len=old.max_model_len,
        vocab_size=old.vocab_size,
    )
    return ModelRunner(first.device, first.decoder, pool, first.kernels, limits)
