"""Runs a service with a clock at the borders of its stages: `python -m benchmarks.first_token_marks MODULE`.

Owns where the clocks are and their file; knows no process but its own. Invariant: a service runs the same
code with the clocks as without them, and a border that this version of the service lacks is left out.

A service is started with `python -m MODULE ...`; this starts the same module, and at its end writes
[[border, nanoseconds of the monotonic clock], ...] into $FIRST_TOKEN_MARKS/MODULE.json.
"""

import atexit
import functools
import importlib
import inspect
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = "FIRST_TOKEN_MARKS"
BORDERS: dict[str, list[tuple[str, str, str, str]]] = {
    "scheduler_svc": [  # border, module, attribute, start or end of the call
        ("request here", "scheduler_svc.intake", "Intake.take", "start"),
        ("request checked", "scheduler_svc.engine", "Engine.submit", "start"),
        ("turn begins", "scheduler_svc.engine", "Engine._take_inputs", "start"),
        ("request queued", "scheduler_svc.engine", "Engine._take_inputs", "end"),
        ("plan made", "scheduler_svc.inputs", "Inputs.plan", "end"),
        ("plan encoded", "scheduler_svc.session", "Session.send", "end"),
        ("plan to gRPC", "scheduler_svc.plan_sender", "write", "start"),
        ("answer here", "scheduler_svc.session", "Session.take", "start"),
        ("answer decoded", "scheduler_svc.session", "Session.take", "end"),
        ("answer applied", "scheduler_svc.inputs", "Inputs.answered", "end"),
        ("token handed out", "scheduler_svc.streams", "Outbox.flush", "end"),
        ("token taken", "scheduler_svc.streams", "Outbox.take", "end"),
    ],
    "gpu_worker": [
        ("plan here", "gpu_worker.step_loop", "StepLoop.submit", "start"),
        ("launch begins", "gpu_worker.step_loop", "StepLoop._launch", "start"),
        ("plan decoded", "gpu_worker.step_loop", "decode_plan", "end"),
        ("numbers checked", "gpu_worker.rows", "RowTable.enter", "end"),
        ("plan packed", "gpu_worker.step_layout", "StepLayout.write", "end"),
        ("plan copied", "gpu_worker.staging", "StagingBuffer.send", "end"),
        ("graph started", "gpu_worker.graph_runner", "GraphRunner.start", "end"),
        ("plan verified", "gpu_worker.rows", "RowTable.verify", "end"),
        ("launched", "gpu_worker.step_loop", "StepLoop._launch", "end"),
        ("wait begins", "gpu_worker.model_runner", "PendingStep.wait", "start"),
        ("device done", "gpu_worker.model_runner", "PendingStep.wait", "end"),
        ("answer encoded", "gpu_worker.step_loop", "encode_result", "end"),
        ("answer to gRPC", "gpu_worker.server", "_send", "start"),
    ],
}
Marks = list[tuple[str, int]]


def wrap(marks: Marks, border: str, module: str, attribute: str, place: str) -> None:
    """Puts a clock in front of or behind a function or method."""
    owner: Any = importlib.import_module(module)
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    call = getattr(owner, name, None)
    if call is None:
        return
    at_start = place == "start"

    def mark(wanted: bool) -> None:
        if wanted:
            marks.append((border, time.monotonic_ns()))

    @functools.wraps(call)
    async def awaited(*given: Any, **named: Any) -> Any:
        mark(at_start)
        try:
            return await call(*given, **named)
        finally:
            mark(not at_start)

    @functools.wraps(call)
    def called(*given: Any, **named: Any) -> Any:
        mark(at_start)
        try:
            return call(*given, **named)
        finally:
            mark(not at_start)

    setattr(owner, name, awaited if inspect.iscoroutinefunction(call) else called)


def main() -> None:
    name = sys.argv[1]
    del sys.argv[0]
    marks: Marks = []
    for border, module, attribute, place in BORDERS[name]:
        wrap(marks, border, module, attribute, place)
    path = Path(os.environ[FOLDER]) / f"{name}.json"
    atexit.register(lambda: path.write_text(json.dumps(marks)))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
