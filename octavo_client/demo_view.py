"""How the demo looks: alive in a terminal, plain lines in a pipe.

Owns the words and the drawing; measures nothing. Invariant: piped output has no control codes, and the same
facts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from octavo_client import pool_view
from octavo_client.console import news_text, safe, write_model_text
from octavo_client.demo_account import Account, Answer
from octavo_client.supervisor.events import Died, News, Serving, Started, Stopped
from octavo_client.types import ModelInfo
from octavo_client.views import PoolStats


class DemoView:
    """Prints the demo as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._worker_said = ""
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def close(self) -> None:
        """Takes the spinner off; safe to call again."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def process_news(self, news: News) -> None:
        if isinstance(news, Started | Serving | Died | Stopped):
            self._console.print(news_text(news))

    def trouble(self, name: str, message: str) -> None:
        self._console.print(Text(f"{name:<9} {safe(message)}", style="yellow"))

    def worker_says(self, message: str) -> None:
        self._worker_said = safe(message)

    def waiting(self, missing: str) -> None:
        if self._status is not None:
            self._status.update(Text(f"waiting: {missing}  {self._worker_said}"))

    def ready(self, info: ModelInfo, stats: PoolStats, seconds: float) -> None:
        self.close()
        size = stats.num_blocks * stats.bytes_per_block / 2**20
        self._print(
            f"ready after {seconds:.1f} s: {info.model_id}, KV pool of {stats.num_blocks} blocks of "
            f"{stats.block_size} tokens ({size:,.0f} MiB, {info.kv_dtype})",
            "bold green",
        )

    def asking(self, question: str) -> None:
        self._print(f"\n> {question}", "bold")

    def piece(self, text: str) -> None:
        write_model_text(text)

    def answered(self, answer: Answer) -> None:
        write_model_text("\n")
        self._print(_speed(answer), "dim")

    def asking_together(self, system_prompt: str, questions: Sequence[str]) -> None:
        words = " ".join(system_prompt.split())
        self._print(f"\n{len(questions)} questions at the same time, with one system prompt:", "bold")
        self._print(f"system: {words[:96]} ...", "dim")

    @contextlib.contextmanager
    def side_by_side(self, answers: Sequence[Answer]) -> Iterator[Callable[[], None]]:
        """Shows answers growing beside each other; yields the function that redraws them."""
        if not self._console.is_terminal:
            yield lambda: None
            return
        with Live(
            _panels(answers, self._console.width), console=self._console, refresh_per_second=12
        ) as live:
            yield lambda: live.update(_panels(answers, self._console.width))
            live.update(_panels(answers, self._console.width))

    def answered_together(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if not self._console.is_terminal:
                self._print(f"\n> {answer.question}", "bold")
                self._console.print(Text(safe(answer.text)))
            self._print(
                f"{answer.question} {_speed(answer)}" if self._console.is_terminal else _speed(answer), "dim"
            )

    def stopping(self) -> None:
        self.close()

    def account(self, account: Account) -> None:
        """The table at the end, and the pool at its moment of most sharing."""
        self._print("\nWhat happened in the KV pool", "bold")
        if account.peaks.at_most_shared is not None:
            self._console.print(
                pool_view.block_map(account.peaks.at_most_shared, min(64, self._console.width), 8), end=""
            )
            self._console.print(pool_view.legend())
        table = Table.grid(padding=(0, 2))
        for name, value in _facts(account):
            table.add_row(Text(name, style="cyan"), Text(value))
        self._console.print(table)

    def ended(self) -> None:
        self._print(
            "\nBoth processes have ended. `make serve` keeps them running; `octavo --help` says more.",
            "bold green",
        )

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(safe(text), style=style))


def _speed(answer: Answer) -> str:
    cached = answer.accepted.cached_prompt_tokens if answer.accepted else 0
    prompt = answer.accepted.prompt_tokens if answer.accepted else 0
    return (
        f"[{prompt} prompt tokens, {cached} of them from the prefix cache; first token after "
        f"{answer.first_token or 0:.2f} s, then {answer.decode_rate:.1f} tokens/s]"
    )


def _panels(answers: Sequence[Answer], width: int) -> RenderableType:
    each = max(24, width // max(1, len(answers)) - 1)
    return Columns(
        [
            Panel(Text(safe(answer.text)), title=Text(answer.question), width=each, border_style="cyan")
            for answer in answers
        ],
        expand=False,
    )


def _facts(account: Account) -> list[tuple[str, str]]:
    before, after, peaks = account.before, account.after, account.peaks
    looked = after.prefix_lookup_tokens - before.prefix_lookup_tokens
    hits = after.prefix_hit_tokens - before.prefix_hit_tokens
    tokens = sum(answer.tokens for answer in account.crowd)
    rate = tokens / account.crowd_seconds if account.crowd_seconds > 0 else 0.0
    computed = after.computed_prompt_tokens - before.computed_prompt_tokens
    return [
        ("blocks used", f"{peaks.active} of {after.num_blocks} at the peak ({after.block_size} tokens each)"),
        (
            "blocks shared",
            f"{peaks.shared} at the peak, each held by 2 or 3 requests; {peaks.saved} blocks saved",
        ),
        ("prefix-hit tokens", f"{hits} of {looked} prompt tokens looked up; {computed} computed"),
        (
            "kept for later",
            f"{after.evictable_blocks} evictable blocks hold text for prompts to come",
        ),
        ("one stream", f"{account.first.decode_rate:.1f} tokens per second"),
        (
            "three streams",
            f"{rate:.1f} tokens per second together ({tokens} tokens in {account.crowd_seconds:.1f} s)",
        ),
    ]
