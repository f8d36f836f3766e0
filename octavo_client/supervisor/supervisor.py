"""Keeps a set of children running: starts them, starts the dead again, ends them all.

Owns the policy of restarts and the order of the end; knows no service. Invariant: when `run` returns, no
child is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octavo_client.supervisor.child import LISTEN, Child, ChildSpec
from octavo_client.supervisor.events import Died, News, Serving, Stopped
from octavo_client.supervisor.lines import REFUSED, describe_exit, readable, refusal
from octavo_client.supervisor.preflight import refusal_before_start


@dataclass(frozen=True)
class RestartPolicy:
    """When to start a dead child again: seconds of delay, doubled at each quick death.

    A death is quick when the child had not served for `stable_after` seconds. A child that never served at
    its first start is not started again: what is wrong then does not go away by itself.
    """

    first_delay: float = 0.2
    max_delay: float = 10.0
    stable_after: float = 10.0
    max_quick_deaths: int = 8
    first_start_may_fail: bool = False

    def delay(self, quick_deaths: int) -> float:
        """Seconds to wait after so many quick deaths in a row."""
        return float(min(self.max_delay, self.first_delay * 2 ** min(16, max(0, quick_deaths - 1))))


class Supervisor:
    """Runs children until stop() is called or one is given up.

    failure: why one was, in one line. refused: because it refused its command line, and `failure` says what.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        notify: Callable[[News], None],
        policy: RestartPolicy | None = None,
        grace: float = 15.0,
    ) -> None:
        """specs in the order of start, ended in the reverse one; grace: seconds each has to end by itself."""
        self._specs = list(specs)
        self._tell = notify
        self._served = {spec.name: asyncio.Event() for spec in specs}
        self._listens: dict[str, str] = {}
        self._policy = policy or RestartPolicy()
        self._grace = grace
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._live: dict[str, Child] = {}
        self.failure: str | None = None
        self.refused = False

    def stop(self) -> None:
        """Ends all children; the second call ends them at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self) -> bool:
        """Runs until stopped; False when a child was given up, and then `failure` says why in one line. None
        starts while one of them refuses its command line.
        """
        refused = await refusal_before_start(self._specs)
        if refused:
            self.refused, self.failure = True, refused
            return False
        if self.stopping:
            return True
        tasks = {spec.name: asyncio.create_task(self._keep(spec)) for spec in self._specs}
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stop, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an error of ours must not leave the others running
            for spec in reversed(self._specs):
                await self._end(spec.name, tasks[spec.name])
        finally:
            for child in self._live.values():
                child.kill()
            for task in (stop, *tasks.values()):
                task.cancel()
            await asyncio.gather(stop, *tasks.values(), return_exceptions=True)
        return self.failure is None

    def _notify(self, news: News) -> None:
        if isinstance(news, Serving):
            self._listens[news.name] = news.listen
            self._served[news.name].set()
        self._tell(news)

    async def _keep(self, given: ChildSpec) -> None:
        """Runs one spec again and again until the stop."""
        if given.after and await self._stopped_before(self._served[given.after]):
            return
        quick = 0
        served_before = self._policy.first_start_may_fail
        for attempt in range(1, 1 << 62):
            spec = self._addressed(given)
            child = Child(spec, attempt, self._notify)
            self._live[spec.name] = child
            try:
                code = await child.run()
            except OSError as error:
                self._give_up(f"the {spec.name} cannot be started: {error}")
                return
            finally:
                del self._live[spec.name]
            if self.stopping:
                self._notify(Stopped(spec.name, describe_exit(code)))
                return
            quick = 0 if child.served_seconds >= self._policy.stable_after else quick + 1
            served_before = served_before or child.serving_since is not None
            hopeless = not served_before or quick > self._policy.max_quick_deaths
            delay = None if hopeless else self._policy.delay(quick)
            self._notify(Died(spec.name, describe_exit(code), delay, child.last_line))
            if delay is None and code == REFUSED and not served_before:
                self.refused = not self.failure
                self._give_up(refusal(child.last_line))
                return
            if delay is None:
                often = f" {quick} times in a row" if quick > 1 else " at its start"
                why = f"{describe_exit(code)}{often}: {readable(child.last_line)}"
                self._give_up(f"the {spec.name} {why}")
                return
            if await self._stopped_within(delay):
                return

    def _addressed(self, spec: ChildSpec) -> ChildSpec:
        """The spec with the address of the child it comes after."""
        if not spec.after:
            return spec
        listen = self._listens[spec.after]
        return replace(spec, command=[word.replace(LISTEN, listen) for word in spec.command])

    async def _stopped_before(self, event: asyncio.Event) -> bool:
        """Waits for the event; True when the stop came first."""
        waits = [asyncio.create_task(event.wait()), asyncio.create_task(self._stop.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return self.stopping

    def _give_up(self, why: str) -> None:
        self.failure = self.failure or why
        self._stop.set()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _end(self, name: str, task: asyncio.Task[None]) -> None:
        """SIGTERM, then SIGKILL when the grace is over or somebody is in a hurry."""
        child = self._live.get(name)
        if child is None:
            await task
            return
        child.terminate()
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([task, hurry], timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not task.done():
            child.kill()
        await task
