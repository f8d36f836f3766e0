"""Runs one plan: block operations, forward pass, sampling; the device is only waited for in `PendingStep`.

Owns the order in which a step touches the device; knows no session and no wire. Invariant: no number of a
plan reaches the device before its range is checked, and no step is pending whose plan does not fit its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.asks import PromptSpan
from gpu_worker.device import Device, Marker
from gpu_worker.grammars import GrammarCompiler
from gpu_worker.graph_runner import GraphRunner, NotCapturableError, StepProgram
from gpu_worker.host_pool import NOTHING, Acknowledged, HostPool
from gpu_worker.input_buffers import InputBuffers, StepTensors
from gpu_worker.kv_pool import KvPool
from gpu_worker.logprobs import PendingLogprobs, prompt_logprobs_of
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.fused_decoder import FusedDecoder, ModelStep, obstacle
from gpu_worker.models.model import Model
from gpu_worker.models.step_model import PlainStepModel, StepModel, attention_of
from gpu_worker.null_step import null_step
from gpu_worker.rows import Limits, RowTable
from gpu_worker.sample_stage import Drawn, SampleStage
from gpu_worker.sampler import sample
from gpu_worker.wire import Int32Array, Plan, TokenLogprobs
from paged_kernels.dispatch import Kernels

_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """token_ids [S], -1 where the row failed; failed_rows by id, and those of them whose grammar allows no
    token, barred_rows; logprobs of the samples that ask, in order,
    and (row, first position, values) of prompts; times in seconds on the device's own clock.

    sample_seconds is part of forward_seconds, and 0 where a graph holds both. gap_seconds: since the end of
    the step before, 0 for the first. replayed: whether it ran as one graph.
    """

    token_ids: Int32Array
    failed_rows: tuple[int, ...]
    forward_seconds: float
    sample_seconds: float
    block_move_seconds: float
    gap_seconds: float
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[tuple[int, int, TokenLogprobs], ...] = ()
    transfers: Acknowledged = NOTHING
    barred_rows: frozenset[int] = frozenset()
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class _Marks:
    previous_end: Marker | None
    start: Marker
    moved: Marker
    forwarded: Marker
    end: Marker


class PendingStep:
    """A step that was launched. `wait` blocks until the device has finished it."""

    def __init__(
        self,
        sample_rows: Int32Array,
        drawn: Drawn | None,
        marks: _Marks,
        prompts: Sequence[tuple[PromptSpan, PendingLogprobs]] = (),
        transfers: Callable[[], Acknowledged] = lambda: NOTHING,
        replayed: bool = False,
    ) -> None:
        self._sample_rows = sample_rows
        self._drawn = drawn
        self._marks = marks
        self._prompts = prompts
        self._transfers = transfers
        self._replayed = replayed

    def wait(self) -> StepOutcome:
        """Called once, from the thread that answers. Raises what the device raises."""
        marks = self._marks
        marks.end.wait()
        drawn = self._drawn
        tokens = np.empty(0, np.int32) if drawn is None else drawn.tokens.read().astype(np.int32)
        return StepOutcome(
            token_ids=tokens,
            failed_rows=tuple(int(row) for row in self._sample_rows[tokens < 0]),
            forward_seconds=marks.end.seconds_since(marks.moved),
            sample_seconds=marks.end.seconds_since(marks.forwarded),
            block_move_seconds=marks.moved.seconds_since(marks.start),
            gap_seconds=max(marks.start.seconds_since(marks.previous_end), 0.0)
            if marks.previous_end
            else 0.0,
            logprobs=None if drawn is None or drawn.logprobs is None else drawn.logprobs.read(),
            prompt_logprobs=tuple((span.row, span.first, found.read()) for span, found in self._prompts),
            transfers=self._transfers(),
            barred_rows=frozenset() if drawn is None else drawn.barred,
            replayed=self._replayed,
        )


class ModelRunner:
    """One model on one pool, for one session at a time. Not thread-safe: one thread at a time calls it."""

    def __init__(
        self,
        device: Device,
        decoder: Model,
        pool: KvPool,
        kernels: Kernels,
        limits: Limits,
        grammars: GrammarCompiler | None = None,
        host: HostPool | None = None,
    ) -> None:
        """grammars None: rows that have one fail."""
        self.device = device
        self.decoder = decoder
        self.pool = pool
        self.host = host
        self.kernels = kernels
        self.rows = RowTable(limits)
        self.fused: FusedDecoder | None = None
        if kernels.fused is not None and isinstance(decoder, Decoder) and not obstacle(decoder.config):
            self.fused = FusedDecoder(decoder, pool, kernels, kernels.fused)
        self._graphs: GraphRunner | None = None
        self._buffers = InputBuffers(device, self.rows)
        self._stage = SampleStage(device, self.rows, self._buffers, grammars)
        self._last_end: Marker | None = None

    @property
    def launches_quickly(self) -> bool:
        """Whether `launch` takes about a millisecond, for the rows there are, where no step is in flight."""
        return self._graphs is not None and self.device.torch_device.type == "cuda" and self.rows.asks.nobody

    def reset(self) -> None:
        """Waits for the device and drops every row: a new session begins, or the scheduler is gone."""
        self.device.synchronize()
        self.rows.clear()
        self._stage.clear()
        if self.host is not None:
            self.host.reset()
        self._last_end = None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs a decode and a prefill through the null block, so that real steps find kernels compiled."""
        for logits in self._null_logits():
            sample(logits, None)
        self.device.synchronize()

    @torch.inference_mode()
    def rehearse(self, captured: bool) -> None:
        """Launches what `warm_up` and, where captured, `capture_graphs` will, on few layers.

        For a mode in which launches only ask for their kernels. Does nothing without fused kernels.
        """
        whole = self.fused
        if whole is None:
            return
        self.fused = whole.shortened()
        try:
            if captured:  # first, for they have the kernels that compile longest
                self._graphs_of(self.fused).rehearse()
            for _ in self._null_logits():
                pass
        finally:
            self.fused = whole

    def _null_logits(self) -> Iterator[Tensor]:
        for tokens in (1, min(_WARM_UP_TOKENS, self.rows.limits.max_model_len)):
            step = null_step(self.pool, tokens, self.rows.limits.max_batch_seqs)
            yield self._head(self._hidden(step, step.sample_positions, tokens, tokens))

    @torch.inference_mode()
    def capture_graphs(self, captured: bool = True) -> None:
        """From now on steps that fit a bucket are replayed. Needs fused kernels, and CUDA where captured.

        captured False: the buckets run as plain launches, for tests. Raises what the device raises, and
        NotCapturableError where the layers are not the fused ones and cannot be captured.
        """
        assert self.kernels.fused is not None
        if self.fused is not None:
            graphs = self._graphs_of(self.fused)
            graphs.prepare(captured)
        else:
            plain = PlainStepModel(self.decoder, self.pool, self.kernels, self.kernels.fused)
            graphs = self._graphs_of(plain)
            try:
                graphs.prepare(captured)
                graphs.check()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise NotCapturableError(str(error).strip().split("\n")[0]) from error
        self.device.synchronize()
        self._graphs = graphs

    def _graphs_of(self, model: StepModel) -> GraphRunner:
        return GraphRunner(model, self.rows, self._buffers.tables, self._buffers.last_tokens)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> PendingStep:
        """Starts a step. Raises PlanError, after a graph was started with it if only its ranges are right."""
        self.rows.enter(plan)
        self._stage.enter(plan)
        if self.host is not None and len(plan.swap_out_pairs):
            self.host.swap_out(plan.step_id, plan.swap_out_pairs)
        spans = self.rows.asks.prompt_spans(plan)
        if self._graphs is not None and not spans:
            program = self._graphs.choose(plan)
            if program is not None:
                pending = self._replay(self._graphs, program, plan)
                self.rows.verify(plan)  # meanwhile
                return pending
        self.rows.verify(plan)
        return self._launch_eagerly(plan, spans)

    def _replay(self, graphs: GraphRunner, program: StepProgram, plan: Plan) -> PendingStep:
        """A step as one graph; what single rows ask for beyond temperature comes after it, on its logits."""
        packed = graphs.pack(program, plan)
        start = moved = self.device.mark()  # what the host has done so far is no time of the device's
        enters = program.layout.enters(plan)
        if len(plan.zero_blocks) or len(plan.copy_pairs) or len(plan.swap_in_pairs) or not enters:
            self._move_blocks(plan, *self._buffers.upload_house_keeping(plan, not enters))
            moved = self.device.mark()
        graphs.start(program, packed)
        count = len(plan.sample_rows)
        drawn = self._stage.draw_rest(plan, program.logits[:count], program.tokens[:count]) if count else None
        end = self.device.mark()
        marks = _Marks(self._last_end, start, moved, end, end)
        self._last_end = end
        return PendingStep(plan.sample_rows, drawn, marks, transfers=self._acknowledging(plan), replayed=True)

    def _launch_eagerly(self, plan: Plan, spans: Sequence[PromptSpan]) -> PendingStep:
        start = self.device.mark()
        step = self._buffers.upload(plan)
        self._move_blocks(plan, step.zero_blocks, step.copy_pairs)
        moved = self.device.mark()
        hidden = self._forward(plan, step, spans)
        count = len(plan.sample_rows)
        logits = self._head(hidden[:count]) if hidden is not None and count else None
        forwarded = self.device.mark()
        drawn = None if logits is None else self._stage.draw(plan, logits, step.sample_rows)
        prompts = [] if hidden is None else self._prompt_logprobs(spans, hidden[count:])
        end = self.device.mark()
        marks = _Marks(self._last_end, start, moved, forwarded, end)
        self._last_end = end
        return PendingStep(plan.sample_rows, drawn, marks, prompts, self._acknowledging(plan))

    def _acknowledging(self, plan: Plan) -> Callable[[], Acknowledged]:
        """What names the transfers that are done; for a plan without rows it waits for all of them."""
        host = self.host
        if host is None:
            return lambda: NOTHING
        return lambda: host.acknowledge(plan.step_id, wait=not len(plan.rows))

    def _prompt_logprobs(
        self, spans: Sequence[PromptSpan], hidden: Tensor
    ) -> list[tuple[PromptSpan, PendingLogprobs]]:
        """The log-probabilities of prompt tokens, from the hidden states [P, hidden] of those before them."""
        found, first = [], 0
        for span in spans:
            last = first + len(span.targets)
            targets = self.device.upload(span.targets.copy()).long()
            top = self.rows.asks.prompt_logprobs(span.row)
            packed = prompt_logprobs_of(self._head, hidden[first:last], targets, top)
            found.append((span, PendingLogprobs(1 + top, self.device.download(packed.flatten()))))
            first = last
        return found

    def _move_blocks(self, plan: Plan, zero_blocks: Tensor, copy_pairs: Tensor) -> None:
        if len(zero_blocks):
            self.kernels.zero_blocks(self.pool.tensor, zero_blocks)
        if len(copy_pairs):
            self.kernels.copy_blocks(self.pool.tensor, copy_pairs)
        if self.host is not None and len(plan.swap_in_pairs):
            self.host.swap_in(plan.swap_in_pairs)

    def _forward(self, plan: Plan, step: StepTensors, spans: Sequence[PromptSpan]) -> Tensor | None:
        """[S + P, hidden] of the samples and of the tokens before those of the spans; None without rows."""
        if not len(plan.rows):
            return None
        at = step.sample_positions
        if spans:
            before = [np.arange(span.at, span.at + len(span.targets), dtype=np.int32) for span in spans]
            at = torch.cat((at, self.device.upload(np.concatenate(before)).long()))
        return self._hidden(step, at, int(plan.query_lens.max()), int(plan.context_lens.max()))

    def _hidden(self, step: StepTensors, at: Tensor, max_query_len: int, max_context_len: int) -> Tensor:
        """What `_head` takes, at these of the step's tokens; K and V of all of them are stored."""
        inputs = ModelStep(
            positions=step.positions,
            slot_mapping=step.slot_mapping,
            block_tables=step.block_tables,
            cu_query_lens=step.cu_query_lens,
            context_lens=step.context_lens,
            sample_positions=at,
            max_query_len=max_query_len,
            max_context_len=max_context_len,
        )
        if self.fused is not None:
            return self.fused.hidden(F.embedding(step.input_ids, self.fused.decoder.embedding), inputs)
        attend = attention_of(self.decoder.config, self.pool, self.kernels, inputs)
        hidden = self.decoder.forward(step.input_ids, step.positions, attend)
        return hidden.index_select(0, at)

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of what `_hidden` returned [n, hidden]."""
        return self.decoder.logits(hidden) if self.fused is None else self.fused.head(hidden)
