"""From a command line to runs: the trace read, the pools sized, one run after the other.

Owns the sizes of pools and the report's form; knows no terminal. Invariant: the report is a function of trace
and arguments, and every run of it saw the same requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scheduler_svc.core.growth import RUNNING_PER_RESERVED_BLOCK
from scheduler_svc.core.plan import PreemptionMode, SchedulerConfig
from scheduler_svc.simulate.arguments import CONTIGUOUS, MAX_SLOTS, Arguments
from scheduler_svc.simulate.collector import Collector
from scheduler_svc.simulate.readers import ReadOptions, load_encoder, read_trace
from scheduler_svc.simulate.results import Figures, figures_of
from scheduler_svc.simulate.simulator import Setup, Simulator
from scheduler_svc.simulate.trace import Trace, TraceError
from scheduler_svc.simulate.worker_model import PRESETS, StepTimes, read_worker_model

Progress = Callable[[str, int], None]
"""Called with a run's label and the number of its requests that have ended."""

NOT_IN_REPORT = ("json", "plots", "trace", "tokenizer")


def load(arguments: Arguments) -> tuple[Trace, StepTimes]:
    """Raises TraceError, and OSError for a file that cannot be read."""
    name = arguments.worker_model
    worker = PRESETS[name] if name in PRESETS else _worker_from_file(arguments)
    encode = load_encoder(arguments.tokenizer) if arguments.tokenizer is not None else None
    options = ReadOptions(arguments.limit, arguments.session_interval, encode)
    trace = read_trace(arguments.trace, arguments.format, options)
    if arguments.block_ids and not trace.id_block_size:
        raise TraceError(f"--block-ids: {arguments.trace}: format {trace.format} has no block ids")
    in_file_order = arguments.one_at_a_time or arguments.block_ids
    return trace if in_file_order else trace.by_arrival(), worker


def run_all(arguments: Arguments, trace: Trace, worker: StepTimes, progress: Progress) -> Figures:
    """The report. Raises TraceError where a pool cannot be made."""
    setups = list(setups_of(arguments, trace))
    return {
        "trace": _described(trace),
        "settings": _settings(arguments),
        "worker_model": asdict(worker),
        "runs": [run_one(label, setup, trace, worker, progress) for label, setup in setups],
    }


def run_one(label: str, setup: Setup, trace: Trace, worker: StepTimes, progress: Progress) -> Figures:
    span = max(request.arrival for request in trace.requests) / setup.arrival_scale
    collector = Collector(len(trace.requests), span, setup.n)
    Simulator(trace, setup, worker, collector, lambda ended: progress(label, ended)).run()
    return figures_of(label, setup, collector)


def setups_of(arguments: Arguments, trace: Trace) -> Iterator[tuple[str, Setup]]:
    """A label and a setup for each block size. Raises TraceError for a pool of no block or too many."""
    longest = max(_lengths(arguments, trace))
    limit = arguments.max_model_len or longest
    base = Setup(
        _config(arguments), 1, 1, limit, arguments.arrival_scale,
        arguments.one_at_a_time or arguments.block_ids, arguments.block_ids,
        arguments.priority == "shortest-first", arguments.queue_timeout, n=arguments.n,
    )  # fmt: skip
    for size in arguments.block_sizes:
        if size:
            num_blocks = _num_blocks(arguments, trace, size)
            yield (
                str(size),
                replace(
                    base, block_size=size, num_blocks=num_blocks, host_blocks=arguments.swap_tokens // size
                ),
            )
        else:
            yield CONTIGUOUS, contiguous(base, arguments.pool_tokens or limit * len(trace.requests))


def contiguous(base: Setup, pool_tokens: int) -> Setup:
    """The baseline: each request gets one piece of the pool, as long as the model's limit, and shares
    nothing.

    It is a block of max_model_len tokens, so that the same core runs it. Nothing grows out of it, so it needs
    none of the blocks that an admission leaves free for growth: they are added, and never held.
    """
    pieces = pool_tokens // base.max_model_len
    if pieces < 1:
        raise TraceError(
            f"--pool-tokens {pool_tokens}: holds no reservation of --max-model-len {base.max_model_len}"
        )
    rows = min(base.config.max_num_seqs, pieces)
    config = replace(base.config, prefix_cache=False, watermark_blocks=0, max_num_seqs=rows)
    spare = 1 + rows // RUNNING_PER_RESERVED_BLOCK
    pieces = min(pieces, MAX_SLOTS // base.max_model_len - spare)
    return replace(base, config=config, block_size=base.max_model_len, num_blocks=pieces, spare_blocks=spare)


def _num_blocks(arguments: Arguments, trace: Trace, size: int) -> int:
    if arguments.num_blocks is not None:
        flag, blocks = "--num-blocks", arguments.num_blocks
    elif arguments.pool_tokens is not None:
        flag, blocks = "--pool-tokens", arguments.pool_tokens // size
    else:  # nothing is ever evicted, and no admission waits for the reserve
        flag, blocks = "--num-blocks unbounded", unbounded(trace, size, arguments.n)
    if blocks < 1 or blocks * size > MAX_SLOTS:
        raise TraceError(f"{flag}: {blocks} blocks of {size} tokens, must be 1 to {MAX_SLOTS} tokens")
    return blocks


def unbounded(trace: Trace, size: int, n: int = 1) -> int:
    """Blocks of which no request of the trace ever lacks one, whatever is kept; each prompt counts 2 more
    than it has, for tails that are copied.
    """
    tails = ((r.prompt_len, max(1, r.output_len)) for r in trace.requests)
    return 1024 + sum(2 + -(-prompt // size) + n * (1 + -(-output // size)) for prompt, output in tails)


def _lengths(arguments: Arguments, trace: Trace) -> Iterator[int]:
    """Tokens of prompt and output of each request, as the core sees it."""
    for request in trace.requests:
        if arguments.block_ids:
            yield (0 if request.block_ids is None else len(request.block_ids)) + 2
        else:
            yield request.prompt_len + max(1, request.output_len)


def _config(arguments: Arguments) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_prefill_chunk=arguments.max_prefill_chunk,
        watermark_blocks=arguments.watermark_blocks,
        depth=arguments.depth,
        prefix_cache=arguments.prefix_cache,
        match_inside_blocks=arguments.match_inside_blocks,
        preemption=PreemptionMode(arguments.preemption),
    )


def _worker_from_file(arguments: Arguments) -> StepTimes:
    path = Path(arguments.worker_model)
    if not path.exists():
        names = ", ".join(PRESETS)
        raise TraceError(f"--worker-model {arguments.worker_model}: neither a file nor one of {names}")
    return read_worker_model(path)


def _described(trace: Trace) -> Figures:
    requests = trace.requests
    return {
        "name": trace.name,
        "format": trace.format,
        "requests": len(requests),
        "prompt_tokens": sum(request.prompt_len for request in requests),
        "output_tokens": sum(request.output_len for request in requests),
        "span_s": max(request.arrival for request in requests),
        "id_block_size": trace.id_block_size,
    }


def _settings(arguments: Arguments) -> dict[str, Any]:
    named = {name: getattr(arguments, name) for name in arguments.__slots__ if name not in NOT_IN_REPORT}
    named["block_sizes"] = [size or CONTIGUOUS for size in arguments.block_sizes]
    return named
