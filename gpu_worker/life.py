"""The life of a worker whose settings are read: port, model, serving, stop.

Owns the order of that life and the exit status; knows no command line and no plan. Invariant: whatever ends
it leaves one line on stderr that says why, and status 0 only after SIGTERM or SIGINT.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import uvloop

from gpu_worker.config import Settings
from gpu_worker.errors import SettingsError, WorkerError
from gpu_worker.loading import Examined, Loaded, examine, load
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.server import WorkerServer, WorkerServicer
from gpu_worker.start_clock import StartClock
from gpu_worker.step_loop import StepLoop
from octavo import transport
from octavo.handshake import random_id
from octavo.logging import announce_serving, epoch_text

if TYPE_CHECKING:
    from gpu_worker.tracing import WorkerTracing

_log = logging.getLogger("gpu_worker")
_SWITCH_SECONDS = 1e-4
"""How long a thread may hold the interpreter while another waits. Beside a GPU three threads share the short
work of each step, and the default of 5 ms would be several steps."""
STOP_GRACE_SECONDS = 2.0
_NO_MEMORY = ("out of memory", "DefaultCPUAllocator")
"""What torch's errors say where a device or the host had too little."""
_PARENT_POLL_SECONDS = 0.5


def run(settings: Settings, clock: StartClock) -> int:
    """Runs a worker until it is told to stop, and returns its exit status, as `main` tells it."""
    clock.done("imports")
    try:
        if settings.exit_with_parent:
            _watch_parent()
        found = examine(settings, clock)
        return uvloop.run(_serve(found))
    except SettingsError as error:
        _log.error("cannot start: %s", error.named(settings))
        return 2
    except (WorkerError, ValueError, OSError) as error:
        _log.error("cannot start: %s", error)
        return 1
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, MemoryError) or any(sign in str(error) for sign in _NO_MEMORY)
        line = " ".join(str(error).split()) if short else ""
        _log.error("cannot start%s", f": no memory left: {line}" if short else "", exc_info=not short)
        return 1


async def _serve(found: Examined) -> int:
    settings, epoch = found.settings, random_id()
    stopping, failure = asyncio.Event(), ""
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, stopping.set)

    def poisoned(line: str) -> None:
        nonlocal failure
        failure = line
        events.call_soon_threadsafe(stopping.set)

    def crashed(crash: threading.ExceptHookArgs) -> None:
        _log.error("a thread of the worker ended", exc_info=crash.exc_value)
        poisoned(f"{crash.exc_type.__name__} in a thread of the worker")

    threading.excepthook = crashed
    metrics = WorkerMetrics()
    metrics_server = metrics.serve(settings.metrics_host, settings.metrics_port)
    tracing = _open_tracing(settings)
    servicer = WorkerServicer(epoch)
    server = WorkerServer(servicer, *_message_limits(found))
    loop = None
    try:
        address = await server.start(settings.listen)
        _log.info("listening on %s, epoch %s, loading %s", address, epoch_text(epoch), settings.model)
        loaded = await _load_unless_stopped(found, stopping)
        if loaded is not None:
            metrics.loaded(loaded.size)
            if found.device.torch_device.type == "cuda":
                sys.setswitchinterval(_SWITCH_SECONDS)
            loop = StepLoop(loaded.runner, epoch, metrics, poisoned, tracing)
            loop.start()
            servicer.ready(loaded.capacity, loop, loaded.grammars)
            await server.set_serving(True)
            announce_serving("worker", address, metrics_server.port)
            await stopping.wait()
    finally:
        await server.stop(STOP_GRACE_SECONDS)
        metrics_server.close()
    if tracing is not None and loop is not None:
        await asyncio.to_thread(tracing.close)
    if failure:  # an orderly end would ask the device once more, and tell of calls that it cancels
        _log.error("cannot go on: %s", failure)
        _exit_now(1)
    if loop is None:
        _log.info("stopped while loading")
        _exit_now(0)
    else:
        loop.stop()
    _log.info("stopped")
    return 0


def _open_tracing(settings: Settings) -> "WorkerTracing | None":
    """Spans go to the endpoint; None without one. The tracing library is imported only then."""
    if not settings.otlp_traces_endpoint:
        return None
    from gpu_worker.tracing import WorkerTracing
    from octavo.tracing import Tracing

    return WorkerTracing(Tracing("worker", settings.otlp_traces_endpoint))


async def _load_unless_stopped(found: Examined, stopping: asyncio.Event) -> Loaded | None:
    """The loaded worker, or None when the process was told to stop meanwhile. Raises what `load` raises."""
    loading = asyncio.create_task(asyncio.to_thread(load, found))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        return None
    stop.cancel()
    return loading.result()


def _exit_now(status: int) -> NoReturn:
    """Ends the process as it stands; nothing is held that needs an orderly end."""
    sys.stderr.flush()
    os._exit(status)


def _message_limits(found: Examined) -> tuple[int, int]:
    """(plan, result) bytes of the largest legal messages; the pool is not sized yet, so its bound is
    memory.
    """
    settings: Settings = found.settings
    most_blocks = settings.num_blocks or found.device.memory().total // found.bytes_per_block
    plan = transport.plan_bytes_bound(
        settings.max_num_batched_tokens,
        settings.max_num_seqs,
        found.max_model_len,
        settings.block_size,
        most_blocks,
    )
    return plan, transport.result_bytes_bound(settings.max_num_seqs, settings.max_num_batched_tokens)


def _watch_parent() -> None:
    """Stops this process when the one that started it is gone: orderly, then by force."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5 * STOP_GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
