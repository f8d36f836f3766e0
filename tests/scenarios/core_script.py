"""The commands of the core's scenario scripts, and how plans and pools are written down.

Owns the words of the scripts; drives the core through `CoreDriver`, which checks every invariant after each
command. Invariant: the output is a pure function of the commands before it.
"""

import numpy as np

from scheduler_svc.core.plan import (
    Capacity,
    Epoch,
    FinishReason,
    PreemptionMode,
    Refusal,
    SamplingParams,
    SchedulerConfig,
    SeqId,
    StepPlan,
)
from scheduler_svc.core.stats import BlockState
from tests.fakes.core_driver import CoreDriver
from tests.scenarios.datadriven import Command

_STATES = {
    BlockState.FREE: "free",
    BlockState.EVICTABLE: "evictable",
    BlockState.ACTIVE: "active",
    BlockState.FENCED: "fenced",
}


class CoreScript:
    """One script: begins with `worker`, then any of the methods whose names begin with `do_`."""

    def __init__(self) -> None:
        self._driver: CoreDriver | None = None
        self._names: dict[str, int] = {}
        self._ended = 0

    def handle(self, command: Command) -> str:
        output = getattr(self, f"do_{command.name.replace('-', '_')}")(command)
        return "\n".join([*([output] if output else []), *self._new_ends()]) or "ok"

    # Commands

    def do_worker(self, command: Command) -> str:
        """worker blocks=8 block_size=4 [depth rows budget chunk watermark model_len cache inside host
        preemption].
        """
        options = dict(command.options)
        preemption = PreemptionMode(options.pop("preemption", "auto"))
        numbers = {name: int(value) for name, value in options.items()}
        blocks, size, host = numbers.pop("blocks"), numbers.pop("block_size"), numbers.pop("host", 0)
        model_len = numbers.pop("model_len", 1000)
        if self._driver is not None:
            self._driver.worker_ready(
                Capacity(Epoch(0), "model", blocks, size, 4096, 256, model_len, host, 1000 * size)
            )
            return ""
        config = SchedulerConfig(
            max_num_seqs=numbers.pop("rows", 8),
            max_num_batched_tokens=numbers.pop("budget", 64),
            max_prefill_chunk=numbers.pop("chunk", 0),
            watermark_blocks=numbers.pop("watermark", 0),
            depth=numbers.pop("depth", 2),
            prefix_cache=bool(numbers.pop("cache", 1)),
            match_inside_blocks=bool(numbers.pop("inside", 1)),
            preemption=preemption,
        )
        assert not numbers, f"unknown options {numbers}"
        self._driver = CoreDriver(blocks, size, config, max_model_len=model_len, host_blocks=host)
        return ""

    def do_lost(self, command: Command) -> str:
        """lost: the worker is gone."""
        self._core.worker_lost()
        return ""

    def do_add(self, command: Command) -> str:
        """add NAME ... prompt=1..5,9 [max_tokens min_tokens stop priority namespace cache n seed]: requests.

        Branches of NAME are NAME, NAME.1, NAME.2; a seed makes them differ.
        """
        options = dict(command.options)
        fields: dict[str, object] = {
            name: int(options.pop(name))
            for name in ("max_tokens", "min_tokens", "priority", "n")
            if name in options
        }
        if "stop" in options:
            fields["stop_token_ids"] = frozenset(_numbers(options.pop("stop")))
        if "cache" in options:
            fields["use_prefix_cache"] = bool(int(options.pop("cache")))
        if "seed" in options:
            fields["sampling"] = SamplingParams(temperature=1.0, seed=int(options.pop("seed")))
        prompt = _numbers(options.pop("prompt"))
        for name in command.words:
            answer = self._core.offer(prompt, **fields, **options)
            if isinstance(answer, Refusal):
                return f"refused: {answer.reason.value}, {answer.message}"
            self._names[name] = answer
            for branch in range(1, int(command.options.get("n", 1))):
                self._names[f"{name}.{branch}"] = answer + branch
        return ""

    def do_schedule(self, command: Command) -> str:
        """schedule: the next plan."""
        before = set(self._core.cached)
        plan = self._core.schedule()
        if plan is None:
            return "none"
        hits = [
            f"admitted {self._name(seq_id)}, {count} tokens cached"
            for seq_id, count in self._core.cached.items()
            if seq_id not in before
        ]
        return "\n".join([*self._describe(plan), *hits])

    def do_answer(self, command: Command) -> str:
        """answer [failed=NAME] [tokens=N] [step=N]: the oldest answer arrives, or one that is odd."""
        driver = self._core
        if "step" in command.options:
            events = driver.odd_answer(int(command.options["step"]))
        elif "failed" in command.options:
            plan = driver.in_flight[0].plan
            rows = [self._row_in(plan, name) for name in command.options["failed"].split(",")]
            events = driver.answer_failed(rows)
        elif "tokens" in command.options:
            sent = driver.in_flight.popleft()
            given = int(command.options["tokens"])
            tokens = np.resize(sent.tokens, given) if given > len(sent.tokens) else sent.tokens[:given]
            events = driver.apply(driver.result(sent, tokens))
        else:
            events = driver.answer()
        delivered = zip(
            events.seq_ids.tolist(), events.token_ids.tolist(), events.output_lens.tolist(), strict=True
        )
        return "\n".join(
            f"{self._name(seq)} token {output_len}: {token}" for seq, token, output_len in delivered
        )

    def do_transfers(self, command: Command) -> str:
        """transfers hold|flow: whether the worker's answers leave out its acknowledgements."""
        self._core.holds_transfers = command.words[0] == "hold"
        return ""

    def do_host(self, command: Command) -> str:
        """host: the tier's blocks."""
        stats = self._core.core.stats()
        return f"{stats.host_blocks_free} of {stats.host_blocks} free, {stats.swapped} swapped out"

    def do_decisions(self, command: Command) -> str:
        """decisions: how often each mode was chosen, and why."""
        counts = self._core.core.stats().preemption.counts
        return (
            "\n".join(f"{mode.value}, {why.value}: {n}" for (mode, why), n in counts.items() if n) or "none"
        )

    def do_answer_later_first(self, command: Command) -> str:
        """answer-later-first: the younger of two answers arrives."""
        sent = self._core.in_flight.pop()
        events = self._core.apply(self._core.result(sent, sent.tokens))
        return f"{len(events.seq_ids)} tokens delivered"

    def do_fail_step(self, command: Command) -> str:
        """fail-step: the oldest step fails as a whole."""
        self._core.fail_step()
        return ""

    def do_abort(self, command: Command) -> str:
        """abort NAME ..."""
        live = [self._core.abort(self._names[name]) for name in command.words]
        return "" if all(live) else "was not live"

    def do_flush(self, command: Command) -> str:
        """flush [namespace=NAME]: what was computed so far is found no more."""
        return f"{self._core.flush(command.options.get('namespace'))} blocks forgotten"

    def do_stop(self, command: Command) -> str:
        """stop NAME LENGTH: the shell found a stop string that ends before output token LENGTH + 1."""
        live = self._core.stop(self._names[command.words[0]], int(command.words[1]), FinishReason.STOP)
        return "" if live else "was not live"

    def do_run(self, command: Command) -> str:
        """run: until nothing is left to do."""
        return f"{self._core.run()} steps"

    def do_steps(self, command: Command) -> str:
        """steps N: as many times, fills the pipeline and takes in one answer."""
        before = {seq_id: len(tokens) for seq_id, tokens in self._core.outputs.items()}
        for _ in range(int(command.words[0])):
            self._core.step()
        grown = {seq_id: len(tokens) - before[seq_id] for seq_id, tokens in self._core.outputs.items()}
        return "\n".join(f"{self._name(seq_id)}: {count} tokens" for seq_id, count in grown.items() if count)

    def do_pool(self, command: Command) -> str:
        """pool: every block."""
        pool = self._core.core.pool_map()
        return "\n".join(
            f"{block}: {_STATES[int(state)]}"
            + (f", {refs} refs" if refs > 1 else "")
            + (f", {fill} tokens" if state != BlockState.FREE else "")
            + (", findable" if cached else "")
            for block, (state, refs, fill, cached) in enumerate(
                zip(pool.state, pool.ref_count, pool.fill, pool.cached, strict=True)
            )
        )

    def do_sequences(self, command: Command) -> str:
        """sequences: all live ones."""
        lines = [
            f"{self._name(view.seq_id)} {view.state.value}: {view.computed} scheduled, "
            f"{view.output_len} delivered, blocks {self._blocks_of(view.seq_id)}"
            + (f", {view.host_blocks} on the host" if view.host_blocks else "")
            for view in self._core.core.sequences()
        ]
        return "\n".join(lines) or "none"

    def do_count(self, command: Command) -> str:
        """count NAME ...: counters."""
        counters = self._core.core.stats().counters
        return "\n".join(f"{name} {getattr(counters, name)}" for name in command.words)

    # Writing down

    @property
    def _core(self) -> CoreDriver:
        assert self._driver is not None, "a script begins with `worker`"
        return self._driver

    def _name(self, seq_id: int) -> str:
        return next(name for name, known in self._names.items() if known == seq_id)

    def _blocks_of(self, seq_id: int) -> list[int]:
        return [block for block, *_ in self._core.core.sequence_blocks(SeqId(seq_id))]

    def _row_in(self, plan: StepPlan, name: str) -> int:
        """The row that a sequence has or had when this plan was made."""
        setups = [
            setup.row
            for made in self._core.plans
            for setup in made.setups
            if self._name(setup.seq_id) == name
        ]
        assert setups[-1] in plan.rows or setups[-1] in plan.sample_rows
        return setups[-1]

    def _new_ends(self) -> list[str]:
        ended = list(self._core.finished.values())[self._ended :]
        self._ended += len(ended)
        return [
            f"{self._name(end.seq_id)} ends: {end.reason.value}, {end.output_len} tokens"
            + (f", stop id {end.matched_token}" if end.matched_token is not None else "")
            + (f" ({end.error})" if end.error else "")
            for end in ended
        ]

    def _describe(self, plan: StepPlan) -> list[str]:
        lines = [f"step {plan.step_id}"]
        if len(plan.released_rows):
            lines.append(f"  release rows {_joined(plan.released_rows)}")
        lines += [
            f"  set up row {setup.row} for {self._name(setup.seq_id)}, prompt of {setup.prompt_len}"
            for setup in plan.setups
        ]
        for row, offset, block in zip(plan.table_rows, plan.table_offsets, plan.table_blocks, strict=True):
            lines.append(f"  table of row {row}: block {block} at {offset}")
        for device, host in plan.swap_out_pairs.tolist():
            lines.append(f"  swap out block {device} to host block {host}")
        if len(plan.zero_blocks):
            lines.append(f"  zero blocks {_joined(plan.zero_blocks)}")
        lines += [f"  copy block {source} to {target}" for source, target in plan.copy_pairs.tolist()]
        for host, device in plan.swap_in_pairs.tolist():
            lines.append(f"  swap in block {device} from host block {host}")
        start = 0
        for row, query_len, context_len in zip(plan.rows, plan.query_lens, plan.context_lens, strict=True):
            part = slice(start, start + query_len)
            start += query_len
            sampled = plan.sample_positions[plan.sample_rows == row]
            assert list(sampled) in ([], [start - 1])
            lines.append(
                f"  row {row}, context {context_len}: positions {_joined(plan.positions[part])}, "
                f"ids {_joined(plan.input_ids[part])}, slots {_joined(plan.slot_mapping[part])}"
                + (", samples" if len(sampled) else "")
                + self._forks(plan, row, start - 1)
            )
        return lines

    def _forks(self, plan: StepPlan, row: int, position: int) -> str:
        """Which other rows sample the row's last token."""
        rows = plan.sample_rows[(plan.sample_positions == position) & (plan.sample_rows != row)]
        return f", so do rows {_joined(rows)}" if len(rows) else ""


def _numbers(text: str) -> list[int]:
    """`1..4,9` is 1, 2, 3, 4, 9."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _joined(numbers: np.ndarray) -> str:
    return " ".join(str(number) for number in numbers.tolist())
