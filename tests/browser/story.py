"""A story of a small pool, told by the real scheduler to a fake worker, one step at a time.

Owns the prompts and their order; looks at nothing. Invariant: every scene ends with the worker held, so that
what is drawn stands still until the next one begins.

Sixty blocks of sixteen tokens. Three requests share a prefix of four blocks; they end and leave what can
still be found; newcomers need room, so some of it is evicted; then two that grow too much: one is preempted;
one prompt is forked into three branches; in the end the worker comes back with host memory, and who gives way
then is swapped out, and in again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from octavo.v1 import kv_cache_pb2 as kv
from tests.e2e.processes import Processes
from tests.e2e.rig import VOCAB, Rig, prompt_of, rig_at, seat_scheduler
from tests.e2e.service import Reply, request
from tests.fakes.fake_worker import FakeSettings

SETTINGS = FakeSettings(
    num_blocks=60, block_size=16, vocab_size=VOCAB, max_batch_tokens=256, max_batch_seqs=8, max_model_len=1024
)
PREFIX = prompt_of(64, seed=1)
WITH_HOST = replace(SETTINGS, num_host_blocks=96, transfer_lag=3)


class Story:
    """Scenes are to be played in the order of the methods."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.replies: dict[str, Reply] = {}
        self._tasks: dict[str, asyncio.Task[Reply]] = {}

    @property
    def address(self) -> str:
        """Of the pool page."""
        return self.rig.seat.metrics_url.removesuffix("metrics") + "pool/"

    def ask(self, name: str, prompt: list[int], tokens: int, n: int = 1, caches: bool = True) -> None:
        message = request(
            prompt, tokens, request_id=name, temperature=1.0 if n > 1 else 0.0, use_prefix_cache=caches
        )
        message.n = n
        self.replies[name] = Reply()
        self._tasks[name] = asyncio.create_task(self.rig.service.run(message, self.replies[name]))

    async def steps(self, count: int, pause: float = 0.03) -> None:
        """Lets the worker answer so many steps."""
        for _ in range(count):
            await self.rig.fake.release(1)
            await asyncio.sleep(pause)

    async def sharing(self) -> None:
        """Three requests with one prefix: the second and third find the first one's blocks."""
        self.rig.fake.hold()
        self.ask("ada", PREFIX + prompt_of(20, 2), 44)
        await self.steps(3)
        self.ask("blaise", PREFIX + prompt_of(9, 3), 60)
        await self.steps(2)
        self.ask("charles", PREFIX + prompt_of(31, 4), 70)
        await self.steps(20)

    async def ended(self) -> None:
        """They end and leave blocks that can still be found."""
        await self._until_over("ada", "blaise", "charles")

    async def eviction(self) -> None:
        """Strangers who need more blocks than are free, and one who finds the old prefix again."""
        self.ask("dorothy", PREFIX + prompt_of(40, 5), 60)
        await self.steps(4)
        self.ask("edsger", prompt_of(300, 6), 40)
        self.ask("frances", prompt_of(330, 7), 40)
        await self.steps(14)

    async def preemption(self) -> None:
        """Those that run grow until one must give way; another one waits, for blocks."""
        await self._until_over("dorothy", "edsger", "frances")
        self.ask("grace", prompt_of(380, 8), 140)
        await self.steps(4)
        self.ask("hedy", prompt_of(400, 9), 140)
        await self.steps(4)
        self.ask("ivan", prompt_of(300, 10), 20)
        await self._until(lambda stats: stats.preemptions > 0 and stats.waiting_requests > 1)

    async def forking(self) -> None:
        """One prompt, three branches: they share its blocks, the last one until each writes in it."""
        await self._until_over("grace", "hedy", "ivan")
        await asyncio.sleep(1.5)  # what was hit and evicted until now has faded
        self.ask("katherine", PREFIX + prompt_of(24, 11), 40, n=3)
        await self.steps(5)

    async def swapping_out(self) -> None:
        """A worker with host memory: one of two that grow is copied there, its blocks fenced meanwhile."""
        await self._until_over("katherine")
        await self.rig.fake.restart(WITH_HOST)
        self.rig.fake.hold()
        await self.rig.service.wait_ready()
        self.ask("lynn", prompt_of(380, 12), 120)
        await self.steps(4)
        self.ask("margaret", prompt_of(380, 13), 120, caches=False)
        await self._until(lambda stats: stats.fenced_blocks > 0)

    async def swapping_in(self) -> None:
        """The other one has ended; the copy comes back and goes on."""
        await self._until_over("lynn")
        await self._until(lambda stats: stats.running_requests == 1)
        await self.steps(1)

    async def end(self) -> None:
        """Everybody comes to an end."""
        await self.rig.fake.release()
        await asyncio.gather(*self._tasks.values())

    async def _until(self, seen: Callable[[kv.GetKvCacheStatsResponse], bool]) -> None:
        for _ in range(400):
            if seen(await self.rig.service.stats()):
                await asyncio.sleep(0.3)
                return
            await self.steps(1, pause=0.01)
        raise AssertionError("it did not come to that")

    async def _until_over(self, *names: str) -> None:
        while not all(self._tasks[name].done() for name in names):
            await self.steps(1, pause=0.012)


@asynccontextmanager
async def story(processes: Processes, model: Path, *flags: str) -> AsyncIterator[Story]:
    """A scheduler with the settings of the story, and nothing asked yet."""
    seat = await asyncio.to_thread(seat_scheduler, processes, model, *flags)
    async with rig_at(seat, replace(SETTINGS)) as rig:
        told = Story(rig)
        yield told
        await told.end()
