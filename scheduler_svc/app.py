"""The parts of a scheduler process, put together and taken down.

Owns construction and the order of the shutdown; knows no request. Invariant: the process ends when the
engine or the link ends, with status 1 and one line, and after SIGTERM with status 0.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from octavo import logging as octavo_logging
from octavo.errors import OctavoError, Unavailable
from octavo.settings import RefusedSetting, reason_of
from scheduler_svc.config import Settings
from scheduler_svc.core.plan import PreemptionMode, SchedulerConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine import Engine, EngineSettings
from scheduler_svc.grammar_holds import GrammarHolds
from scheduler_svc.inference import InferenceService
from scheduler_svc.inspect import KvCacheService
from scheduler_svc.intake import Intake
from scheduler_svc.limits import Limits, sampling_defaults
from scheduler_svc.metrics import ShellMetrics
from scheduler_svc.recorder.recording import RecordedScheduler
from scheduler_svc.recorder.writer import Recorder
from scheduler_svc.requests import QueueLimits
from scheduler_svc.server import Server, receive_bound
from scheduler_svc.setting_files import token_in
from scheduler_svc.streams import BacklogLimits
from scheduler_svc.text import TextModel, load_text_model
from scheduler_svc.web import WebEndpoint
from scheduler_svc.worker_client import LinkSettings, WorkerClient

if TYPE_CHECKING:
    from octavo.tracing import Tracing
    from scheduler_svc.tracing import RequestTrace, StepTracer

_log = logging.getLogger(__name__)
SERVICE = "scheduler"
_clock = time.monotonic


def run(settings: Settings) -> int:
    """Serves until a signal or a failure. Returns the exit status."""
    octavo_logging.configure(SERVICE, settings.log_level)
    try:
        if not settings.model.exists():
            raise RefusedSetting("does not exist", "model")
        text = load_text_model(settings.model)
        return uvloop.run(_serve(settings, text))
    except RefusedSetting as error:
        _log.critical("cannot serve: %s", error.named(settings))
        return 2
    except (OctavoError, OSError, RuntimeError) as error:
        _log.critical("cannot serve: %s", error)
        return 1


async def _serve(settings: Settings, text: TextModel) -> int:
    return await App(settings, text).serve()


class App:
    """All parts of one process; made inside the running loop, which gRPC binds to."""

    def __init__(self, settings: Settings, text: TextModel) -> None:
        self._settings = settings
        self._metrics = ShellMetrics()
        config = core_config(settings)
        self._recorder: Recorder | None = None
        if settings.record:
            self._recorder = _begin_recording(settings, config)
        limits = Limits(
            prompt_bytes=settings.max_prompt_bytes,
            prompt_tokens=settings.max_prompt_tokens,
            n=min(settings.max_n, settings.max_num_seqs),
        )
        self._engine = Engine(
            RecordedScheduler(config, self._recorder.note) if self._recorder else Scheduler(config),
            EngineSettings(
                grace_seconds=settings.worker_grace_seconds,
                queue=QueueLimits(settings.max_queue_requests, settings.max_queue_tokens),
                kv_readers=limits.kv_readers,
                check_invariants=settings.check_invariants,
            ),
            self._metrics,
            _clock,
            lambda ready: self._server.set_ready(ready),
        )
        defaults = sampling_defaults(text.sampling if settings.generation_config == "auto" else {}, limits)
        if settings.generation_config == "auto":
            _log.info("sampling defaults from generation_config.json: %s", dict(text.sampling) or "none")
        self._tracing = open_tracing(settings)
        begin_trace, trace_steps = _tracers(self._tracing, self._engine)
        grammars = GrammarHolds()
        self._intake = Intake(
            self._engine, text, limits, self._metrics, _clock, grammars, defaults, begin_trace
        )
        backlog = BacklogLimits(
            settings.stream_backlog_tokens, settings.stream_backlog_characters, settings.stream_stall_seconds
        )
        inspector = KvCacheService(self._engine, limits, _clock)
        self._server = Server(
            InferenceService(self._engine, self._intake, text, backlog, _clock),
            inspector,
            receive_bound(settings.max_prompt_bytes, settings.max_prompt_tokens),
            settings.max_concurrent_streams,
        )
        token = token_in(settings.pool_page_token_file)
        self._endpoint = WebEndpoint(
            self._engine, inspector, self._metrics, _clock, settings.pool_page, token
        )
        self._link = WorkerClient(link_settings(settings), self._engine, _clock, grammars, trace_steps)
        self._engine.on_reset(self._link.reset)

    async def serve(self) -> int:
        """Runs everything; returns the exit status."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        metrics_port = self._endpoint.start(self._settings.metrics_host, self._settings.metrics_port, loop)
        try:
            address = await self._server.start(self._settings.listen)
        except RuntimeError:
            await asyncio.to_thread(self._endpoint.stop)
            raise
        octavo_logging.announce_serving(SERVICE, address, metrics_port)
        parts = [
            loop.create_task(self._engine.run(), name="engine"),
            loop.create_task(self._link.run(), name="worker link"),
        ]
        stopping = loop.create_task(stop.wait())
        try:
            await asyncio.wait([*parts, stopping], return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    _log.critical(
                        "%s ended; the service ends too", part.get_name(), exc_info=part.exception()
                    )
                    return 1
            await self._drain(parts)
            return 0
        finally:
            await asyncio.to_thread(self._endpoint.stop)
            await self._server.stop()
            for task in (*parts, stopping):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*parts, stopping, return_exceptions=True)
            self._intake.close()
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.close)
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    async def _drain(self, parts: "list[asyncio.Task[None]]") -> None:
        """Refuses new work and lets the rest finish, for as long as the settings allow."""
        self._intake.draining = True
        await self._server.begin_drain()
        _log.info("draining: %d requests", self._engine.num_requests)
        idle = asyncio.create_task(self._engine.idle())
        waited = [*parts, idle]
        await asyncio.wait(waited, timeout=self._settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        if self._engine.num_requests and not any(part.done() for part in parts):
            _log.warning("drain time is over: %d requests are cut off", self._engine.num_requests)
            self._engine.end_all(
                Unavailable("the service has shut down", reason="DRAINING", retry_after=1.0), "drained"
            )
            await self._engine.idle()


def _begin_recording(settings: Settings, config: SchedulerConfig) -> Recorder:
    try:
        return Recorder(Path(settings.record), config, plans=settings.record_plans)
    except OSError as error:
        raise RefusedSetting(f"cannot be written: {reason_of(error)}", "record") from error


def open_tracing(settings: Settings) -> "Tracing | None":
    """Spans go to the endpoint; None without one. The tracing library is imported only then."""
    if not settings.otlp_traces_endpoint:
        return None
    from octavo.tracing import Tracing

    return Tracing(SERVICE, settings.otlp_traces_endpoint, _clock)


def _tracers(
    tracing: "Tracing | None", engine: Engine
) -> "tuple[Callable[[float], RequestTrace], Callable[[int], StepTracer]] | tuple[None, None]":
    """What makes the spans of requests and of steps; None for both while nothing is traced."""
    if tracing is None:
        return None, None
    from scheduler_svc.tracing import RequestTrace, StepTracer

    return (
        lambda arrival: RequestTrace(tracing, arrival),
        lambda epoch: StepTracer(tracing, epoch, engine.find_sequence),
    )


def core_config(settings: Settings) -> SchedulerConfig:
    """The core's settings; a random hash seed unless one is given, for a log to be replayed."""
    return SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_prefill_chunk=settings.max_prefill_chunk,
        watermark_blocks=settings.watermark_blocks,
        priority_aging=settings.priority_aging,
        depth=settings.depth,
        prefix_cache=settings.prefix_cache,
        preemption=PreemptionMode(settings.preemption),
        hash_seed=bytes.fromhex(settings.hash_seed) if settings.hash_seed else secrets.token_bytes(16),
    )


def link_settings(settings: Settings) -> LinkSettings:
    return LinkSettings(
        address=settings.worker,
        step_seconds=settings.step_timeout_seconds,
        liveness_seconds=settings.worker_liveness_seconds,
        max_batch_tokens=settings.max_num_batched_tokens,
        max_batch_seqs=settings.max_num_seqs,
        needs_host_tier=settings.preemption == "swap",
    )
