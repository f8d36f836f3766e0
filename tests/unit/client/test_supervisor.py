"""The supervisor: restarts, giving up, ends, and no process left behind."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo_client.supervisor.child import LAUNCH, LISTEN, ChildSpec
from octavo_client.supervisor.events import Died, Line, News, Serving, Started, Stopped
from octavo_client.supervisor.supervisor import RestartPolicy, Supervisor
from tests.unit.client.children import SERVING, WAIT, alive, counted, gone, program

QUICK = RestartPolicy(first_delay=0.01, max_delay=0.05, stable_after=600.0, max_quick_deaths=3)


class Run:
    """A supervisor, its news, and a way to wait for one."""

    def __init__(self, *specs: ChildSpec, policy: RestartPolicy = QUICK, grace: float = 10.0) -> None:
        self.news: list[News] = []
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(specs, self._take, policy, grace)
        self.task = asyncio.create_task(self.supervisor.run())

    def _take(self, news: News) -> None:
        self.news.append(news)
        self._changed.set()

    async def until(self, holds: Callable[[list[News]], object]) -> None:
        while not holds(self.news):
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> bool:
        self.supervisor.stop()
        return await self.task

    def of(self, kind: type) -> list[News]:
        return [news for news in self.news if isinstance(news, kind)]

    def pids(self) -> list[int]:
        return [news.pid for news in self.news if isinstance(news, Started)]

    def lines(self) -> list[str]:
        return [news.text for news in self.news if isinstance(news, Line)]


def count(kind: type, number: int) -> Callable[[list[News]], bool]:
    return lambda news: sum(isinstance(one, kind) for one in news) >= number


async def test_a_child_serves_and_ends_when_asked() -> None:
    run = Run(program(SERVING, "print('hello', flush=True)", WAIT))
    await run.until(lambda news: "hello" in run.lines())
    assert await run.stop()
    assert [news.listen for news in run.of(Serving) if isinstance(news, Serving)] == ["here"]
    assert isinstance(run.news[-1], Stopped)
    assert run.news[-1].how == "was killed by SIGTERM"
    assert gone(run.pids())


async def test_a_dead_child_is_started_again() -> None:
    """A25: the worker's process dies and comes back without anybody's help."""
    run = Run(program(SERVING, WAIT))
    await run.until(count(Serving, 1))
    os.kill(run.pids()[0], signal.SIGKILL)
    await run.until(count(Serving, 2))
    assert [news.how for news in run.of(Died) if isinstance(news, Died)] == ["was killed by SIGKILL"]
    assert await run.stop()
    assert len(set(run.pids())) == 2
    assert gone(run.pids())


async def test_the_other_child_is_left_alone() -> None:
    run = Run(program(SERVING, WAIT, name="worker"), program(SERVING, WAIT, name="scheduler"))
    await run.until(count(Serving, 2))
    worker = next(news.pid for news in run.news if isinstance(news, Started) and news.name == "worker")
    os.kill(worker, signal.SIGKILL)
    await run.until(count(Serving, 3))
    assert await run.stop()
    assert sorted(news.name for news in run.of(Started)) == ["scheduler", "worker", "worker"]


async def test_a_child_that_fails_at_its_start_is_not_tried_again() -> None:
    run = Run(program("sys.exit('no such model: /nowhere')"))
    assert not await run.task
    assert run.supervisor.failure == "the worker ended with exit code 1 at its start: no such model: /nowhere"
    assert len(run.pids()) == 1


async def test_the_reason_is_read_out_of_a_log_line() -> None:
    line = json.dumps({"time": "2026-01-01T10:00:00", "level": "error", "message": "no room for a KV pool"})
    run = Run(program(f"print({line!r}, file=sys.stderr, flush=True)", "sys.exit(1)"))
    assert not await run.task
    assert run.supervisor.failure == "the worker ended with exit code 1 at its start: no room for a KV pool"
    assert not run.supervisor.refused


@pytest.mark.parametrize(
    "said",
    [
        "python -m gpu_worker: --block-size 0: must be 1",
        json.dumps({"level": "error", "message": "cannot start: --block-size 0: must be 1"}),
        json.dumps({"level": "critical", "message": "cannot serve: --block-size 0: must be 1"}),
    ],
)
async def test_refused_settings_are_the_failure_itself(said: str) -> None:
    run = Run(program(f"print({said!r}, file=sys.stderr, flush=True)", "sys.exit(2)"))
    assert not await run.task
    assert run.supervisor.refused
    assert run.supervisor.failure == "--block-size 0: must be 1"


async def test_a_child_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    only_first_serves = f"if run == 1: {SERVING}"
    run = Run(program(counted(tmp_path / "runs"), only_first_serves, "sys.exit('out of memory')"))
    assert not await run.task
    assert run.supervisor.failure is not None
    assert run.supervisor.failure.endswith("4 times in a row: out of memory")
    assert len(run.pids()) == 4
    assert gone(run.pids())


async def test_giving_one_up_ends_the_other() -> None:
    run = Run(program("sys.exit(3)"), program(SERVING, WAIT, name="scheduler"))
    assert not await run.task
    assert gone(run.pids())


async def test_a_command_that_is_not_there_is_said() -> None:
    run = Run(ChildSpec("worker", ["/nowhere/python"]))
    assert not await run.task
    assert "the worker ended with exit code 1 at its start" in str(run.supervisor.failure)
    assert "No such file" in str(run.supervisor.failure)


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    run = Run(program(deaf, SERVING, WAIT), grace=0.1)
    await run.until(count(Serving, 1))
    assert await run.stop()
    assert isinstance(run.news[-1], Stopped)
    assert run.news[-1].how == "was killed by SIGKILL"


async def test_a_second_stop_does_not_wait_for_the_grace() -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    run = Run(program(deaf, SERVING, WAIT), grace=50.0)
    await run.until(count(Serving, 1))
    run.supervisor.stop()
    assert await run.stop()
    assert gone(run.pids())


async def test_the_children_of_a_child_end_with_it() -> None:
    grandchild = f"g = subprocess.Popen([sys.executable, '-c', 'import time; {WAIT}'])"
    run = Run(program(grandchild, "print(g.pid, flush=True)", SERVING, WAIT))
    await run.until(lambda news: run.lines() and count(Serving, 1)(news))
    pid = int(run.lines()[0])
    assert alive(pid)
    assert await run.stop()
    assert gone([pid])


async def test_lines_of_any_length_and_any_bytes_arrive() -> None:
    run = Run(
        program(
            "sys.stdout.write('a' * 300000 + '\\n')", "sys.stdout.buffer.write(b'\\xff\\xfe\\nlast')", SERVING
        )
    )
    await run.until(count(Died, 1))
    await run.stop()
    long, odd, last = run.lines()[:3]
    assert len(long) == 300000
    assert odd == "\ufffd\ufffd"
    assert last.startswith("last") or last == "last"


@pytest.mark.parametrize("tie", [[], ["--watch"]], ids=["prctl", "watch"])
def test_kill_9_of_the_parent_leaves_no_child(tie: list[str]) -> None:
    """A25: whoever kills the supervisor kills what it runs."""
    child_code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent_code = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {LAUNCH!r}, str(os.getpid()), *{tie!r},"
        f" sys.executable, '-c', {child_code!r}], start_new_session=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ended = gone([pid])
    parent.stdout.close()
    assert ended


def test_the_watching_launcher_passes_the_exit_code_on() -> None:
    command = [sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), "--watch", sys.executable, "-c"]
    assert subprocess.run([*command, "raise SystemExit(5)"], check=False).returncode == 5


async def test_a_child_that_comes_after_another_starts_with_its_address() -> None:
    serves = "print(json.dumps({'event': 'serving', 'listen': 'here:1', 'metrics_port': 0}), flush=True)"
    first = dataclasses.replace(program("import json, time; time.sleep(0.3)", serves, WAIT), name="first")
    words = "import sys; print(sys.argv[1:], flush=True)"
    second = program(words, WAIT)
    second = ChildSpec("second", [*second.command, "--server", LISTEN], after="first")
    run = Run(second, first)
    await run.until(lambda news: "['--server', 'here:1']" in run.lines())
    started = [news.name for news in run.news if isinstance(news, Started | Serving)]
    assert started == ["first", "first", "second"]
    assert await run.stop()


async def test_a_child_that_comes_after_one_that_never_serves_never_starts() -> None:
    first = dataclasses.replace(program("raise SystemExit(3)"), name="first")
    second = dataclasses.replace(program(WAIT), name="second", after="first")
    run = Run(second, first)
    assert not await run.task
    assert {news.name for news in run.news} == {"first"}
