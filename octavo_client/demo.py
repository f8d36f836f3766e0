"""The demo: both processes, one question, three at once with a shared system prompt, the KV pool's account.

Owns the script of the demo and what is measured; the supervisor owns the processes, demo_view the look.
Invariant: when `run_demo` returns, both processes are gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from octavo_client.aio import AsyncClient
from octavo_client.demo_account import Account, Answer, PoolPeaks
from octavo_client.demo_view import DemoView
from octavo_client.errors import BadArgument, FailedPrecondition, OctavoError, Unavailable
from octavo_client.supervisor import stack
from octavo_client.supervisor.events import Line, News, Serving
from octavo_client.supervisor.lines import parse, readable
from octavo_client.supervisor.run_dir import RunDir
from octavo_client.supervisor.supervisor import Supervisor
from octavo_client.types import Accepted, ChatMessage, Delta

QUESTION = "What is the capital of France, and what is it known for?"
SYSTEM_PROMPT = (
    "You are the guide of a small natural history museum. Visitors of every age come to you with "
    "questions about animals, plants, rocks and the sky. Answer in two or three short sentences. Use "
    "plain words, name one fact that surprises people, and never use lists. If you are not sure of "
    "something, say so honestly and tell the visitor which hall of the museum could help: the hall of "
    "animals, the hall of plants, the hall of stones or the hall of stars. Be warm and friendly, as if "
    "the visitor stood right in front of you, and do not repeat the question in your answer."
)
SHARED_QUESTIONS = (
    "Why is the sky blue?",
    "How do bees find their way home?",
    "Why do leaves turn red in autumn?",
)
_SAMPLE_SECONDS = 0.02
_POLL_SECONDS = 0.1
_GRAVE = ("error", "critical")


async def run_demo(options: stack.StackOptions, view: DemoView, max_tokens: int, patience: float) -> Account:
    """Starts everything, asks, measures, stops. Raises an OctavoError with one line when something is
    missing. patience: seconds for the model to load.
    """
    with RunDir() as run_dir:
        serving = asyncio.get_running_loop().create_future()
        supervisor = Supervisor(stack.child_specs(options, run_dir.socket), _listener(view, serving))
        running = asyncio.create_task(supervisor.run())
        script = asyncio.create_task(_script(serving, view, max_tokens, patience))
        try:
            await asyncio.wait([running, script], return_when=asyncio.FIRST_COMPLETED)
            if not script.done():
                why = supervisor.failure or "the processes ended too early"
                raise BadArgument(why) if supervisor.refused else FailedPrecondition(why)
            return await script
        finally:
            script.cancel()
            view.stopping()
            supervisor.stop()
            await asyncio.gather(running, script, return_exceptions=True)


def _listener(view: DemoView, serving: asyncio.Future[str]) -> Callable[[News], None]:
    def listen(news: News) -> None:
        if isinstance(news, Serving) and news.name == "scheduler" and not serving.done():
            serving.set_result(news.listen)
        if isinstance(news, Line) and parse(news.text).level in _GRAVE:
            view.trouble(news.name, readable(news.text))
        elif isinstance(news, Line) and news.name == "worker":
            view.worker_says(readable(news.text))
        view.process_news(news)

    return listen


async def _script(serving: asyncio.Future[str], view: DemoView, max_tokens: int, patience: float) -> Account:
    start = time.monotonic()
    async with AsyncClient(await serving) as client:
        await _wait_ready(client, view, start + patience)
        load_seconds = time.monotonic() - start
        info, before = await client.model_info(), await client.stats()
        view.ready(info, before, load_seconds)
        view.asking(QUESTION)
        first = await _ask(client, Answer(QUESTION), [], max_tokens, view.piece)
        view.answered(first)
        peaks = PoolPeaks()
        middle = await client.stats()
        view.asking_together(SYSTEM_PROMPT, SHARED_QUESTIONS)
        watcher = asyncio.create_task(_watch(client, peaks))
        crowd = [Answer(question) for question in SHARED_QUESTIONS]
        began = time.monotonic()
        try:
            await _ask_together(client, crowd, max_tokens, view)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        seconds = time.monotonic() - began
        view.answered_together(crowd)
        return Account(first, crowd, seconds, middle, await client.stats(), peaks)


async def _wait_ready(client: AsyncClient, view: DemoView, end: float) -> None:
    while missing := await client.readiness():
        if time.monotonic() > end:
            raise Unavailable(f"not ready in time: {missing}; --timeout gives it longer")
        view.waiting(missing)
        await asyncio.sleep(_POLL_SECONDS)


async def _ask(
    client: AsyncClient,
    answer: Answer,
    system: Sequence[ChatMessage],
    max_tokens: int,
    piece: Callable[[str], None],
) -> Answer:
    """Streams one greedy answer into `answer`."""
    start = time.monotonic()
    messages = [*system, ChatMessage("user", answer.question)]
    async with client.stream(messages=messages, temperature=0.0, max_tokens=max_tokens) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                if answer.first_token is None:
                    answer.first_token = time.monotonic() - start
                answer.text += event.text
                piece(event.text)
            elif isinstance(event, Accepted):
                answer.accepted = event
            else:
                answer.finished = event
    answer.seconds = time.monotonic() - start
    return answer


async def _ask_together(client: AsyncClient, answers: list[Answer], max_tokens: int, view: DemoView) -> None:
    system = [ChatMessage("system", SYSTEM_PROMPT)]
    with view.side_by_side(answers) as redraw:
        async with asyncio.TaskGroup() as group:
            for answer in answers:
                group.create_task(_ask(client, answer, system, max_tokens, lambda _: redraw()))


async def _watch(client: AsyncClient, peaks: PoolPeaks) -> None:
    """Reads the pool while others generate; never disturbs them by an error of its own."""
    while True:
        try:
            if peaks.see(await client.stats()):
                peaks.at_most_shared = await client.pool_map()
        except OctavoError:
            return
        await asyncio.sleep(_SAMPLE_SECONDS)
