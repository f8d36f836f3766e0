"""The fake worker as a process: `python -m tests.fakes.fake_worker --listen ADDR`.

Owns its command line and the commands on its standard input, one JSON object a line, each answered with one
line; knows no scheduler. Invariant: the first line out is the same serving line that the real worker
prints.
"""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import fields, replace
from typing import Any

from tests.fakes.fake_worker import FakeSettings, FakeWorker
from tests.fakes.faults import FaultKind

KILLED = 137


def main() -> None:
    asyncio.run(_serve(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--listen", default="127.0.0.1:0")
    for option in fields(FakeSettings):
        flag = "--" + option.name.replace("_", "-")
        if option.name == "eos_token_ids":
            parser.add_argument(flag, type=int, nargs="*", default=[])
        else:
            parser.add_argument(flag, type=type(option.default), default=option.default)
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    chosen = {option.name: getattr(arguments, option.name) for option in fields(FakeSettings)}
    worker = FakeWorker(FakeSettings(**chosen | {"eos_token_ids": tuple(arguments.eos_token_ids)}))
    _say(event="serving", service="worker", listen=await worker.start(arguments.listen), metrics_port=0)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await _obey(worker, json.loads(line))
    await worker.die()


async def _obey(worker: FakeWorker, command: dict[str, Any]) -> None:
    """Commands: hold, release, inject, script, delay, restart, report, die."""
    match command.pop("do"):
        case "hold":
            worker.hold()
        case "release":
            await worker.release(command.get("answers"))
        case "inject":
            worker.inject(FaultKind(command["kind"]), command.get("at_step"))
        case "script":
            worker.script(command["prompt"], command["tokens"])
        case "delay":
            worker.step_delay = command["seconds"]
        case "restart":
            await worker.restart(replace(worker.settings, **command))
        case "die":
            os._exit(KILLED)
        case "report":
            _say(event="report", **_report(worker))
            return
    _say(event="done")


def _report(worker: FakeWorker) -> dict[str, object]:
    return {
        "plans": len(worker.plans),
        "tokens": sum(len(plan.input_ids) for plan in worker.plans),
        "violations": worker.violations,
        "sessions": len(worker.sessions),
        "live_rows": worker.kv.live_rows,
    }


def _say(**line: object) -> None:
    print(json.dumps(line), flush=True)
