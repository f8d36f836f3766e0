"""Tokens per second of one worker's model runner, without gRPC: prefill, and decode at several row counts.

Owns the plans it drives the runner with; measures nothing else. Invariant: rounds take the least time of
several, for the machine is shared. Last line: one JSON object.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gpu_worker.config import read_settings
from gpu_worker.loading import examine, load
from gpu_worker.model_runner import ModelRunner
from gpu_worker.wire import Int32Array, Plan, RowSetup, Sampling, implied_positions

NONE = np.empty(0, np.int32)


class Batch:
    """Rows of equal length on a runner, advanced together, in blocks that lie in no order.

    start: tokens that the pool is taken to hold already.
    """

    def __init__(
        self, runner: ModelRunner, rows: int, length: int, temperature: float, start: int = 0
    ) -> None:
        self._runner = runner
        self._rows = np.arange(rows, dtype=np.int32)
        self._block_size = runner.pool.block_size
        width = -(-length // self._block_size)
        blocks = np.random.default_rng(0).permutation(rows * width).astype(np.int32)
        self._tables = blocks.reshape(rows, width)
        self._sampling = Sampling(temperature, 1.0, 0, 0.0, 1)
        self._context = start
        self._step = 0
        runner.reset()

    def advance(self, tokens: int) -> float:
        """Seconds of a step in which each row computes that many new tokens."""
        first = self._step == 0
        self._context += tokens
        plan = self._plan(first, tokens)
        started = time.perf_counter()
        self._runner.launch(plan).wait()
        return time.perf_counter() - started

    def _plan(self, first: bool, tokens: int) -> Plan:
        self._step += 1
        rows, width = len(self._rows), self._tables.shape[1]
        query_lens = np.full(rows, tokens, np.int32)
        context_lens = np.full(rows, self._context, np.int32)
        positions = implied_positions(query_lens, context_lens)
        owners = np.repeat(self._rows, query_lens)
        blocks, offsets = np.divmod(positions, self._block_size)
        return Plan(
            session_id=0,
            worker_epoch=0,
            step_id=self._step,
            base_step=self._step - 1,
            released_rows=NONE,
            setups=tuple(RowSetup(int(row), self._context, self._sampling) for row in self._rows)
            if first
            else (),
            table_rows=np.repeat(self._rows, width) if first else NONE,
            table_offsets=np.tile(np.arange(width, dtype=np.int32), rows) if first else NONE,
            table_blocks=self._tables.reshape(-1) if first else NONE,
            zero_blocks=NONE,
            copy_pairs=NONE.reshape(0, 2),
            rows=self._rows,
            query_lens=query_lens,
            context_lens=context_lens,
            input_ids=_ids(len(positions), self._runner.rows.limits.vocab_size)
            if tokens > 1
            else np.full(rows, -1, np.int32),
            positions=positions,
            slot_mapping=(self._tables[owners, blocks] * self._block_size + offsets).astype(np.int32),
            sample_positions=(np.cumsum(query_lens) - 1).astype(np.int32),
            sample_rows=self._rows,
        )


def _ids(count: int, vocab_size: int) -> Int32Array:
    return np.random.default_rng(0).integers(0, vocab_size, count, dtype=np.int32)


def measure(
    runner: ModelRunner, rows: int, prompt: int, steps: int, temperature: float
) -> tuple[float, float]:
    """(prefill, decode) tokens per second; decode from the fastest step, prefill from the better of two."""
    prefills = []
    for _ in range(2):
        batch = Batch(runner, rows, prompt + steps, temperature)
        prefills.append(batch.advance(prompt))
    decodes = [batch.advance(1) for _ in range(steps)]
    return rows * prompt / min(prefills), rows / min(decodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="context of each row before it decodes")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    flags = ["--model", str(options.model), "--dtype", options.dtype, "--device", options.device]
    flags += ["--max-model-len", str(options.prompt + options.steps), "--log-level", "WARNING"]
    flags += ["--max-num-batched-tokens", str(max(options.rows) * options.prompt)]
    flags += ["--threads", str(options.threads)] if options.threads else []
    runner = load(examine(read_settings(flags))).runner
    table = Table("rows", "prefill tok/s", "decode tok/s", title=f"{runner.device.name}, {options.dtype}")
    results: dict[str, float] = {}
    for rows in options.rows:
        prefill, decode = measure(runner, rows, options.prompt, options.steps, options.temperature)
        table.add_row(str(rows), f"{prefill:.0f}", f"{decode:.1f}")
        results |= {f"prefill_tok_s_{rows}": round(prefill, 1), f"decode_tok_s_{rows}": round(decode, 1)}
    Console().print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
