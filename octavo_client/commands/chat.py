"""`octavo chat`: one question, or a conversation.

Owns the conversation's history and the words typed by a person; the model's template is the scheduler's.
Invariant: Ctrl-C ends the answer, not the conversation.
"""

from __future__ import annotations

import argparse
import sys
import time

from octavo_client.client import Client
from octavo_client.commands.options import add_sampling, add_server, sampling_options
from octavo_client.console import stderr_console, write_model_text
from octavo_client.errors import OctavoError
from octavo_client.types import Accepted, ChatMessage, Delta, Finished, FinishReason, GenerateOptions, Request

_COMMANDS = """  /stats          the KV pool now
  /history        what was said
  /clear          forget it
  /system TEXT    a new system message; clears the history
  /quit           end (or Ctrl-D)"""

_DEFAULTS = {"temperature": 0.2, "max-tokens": 1024}
"""Of a conversation: a small model at the scheduler's 1.0 soon wanders, and until the context limit."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", nargs="?", help="ask this and end; without it: a conversation")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--stats", action="store_true", help="say tokens and speed after each answer (stderr)"
    )
    add_sampling(parser, _DEFAULTS)
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    options = sampling_options(arguments)
    with Client(arguments.server) as client:
        conversation = Conversation(client, options, arguments.system, arguments.stats)
        if arguments.question is not None:
            conversation.ask(arguments.question)
            return 0
        if not sys.stdin.isatty():
            conversation.ask(sys.stdin.read())
            return 0
        return _converse(conversation)


class Conversation:
    """The turns so far and the client to go on with."""

    def __init__(
        self, client: Client, options: GenerateOptions, system: str | None, show_stats: bool
    ) -> None:
        self._client = client
        self._options = options
        self._show_stats = show_stats
        self._system = system
        self.turns: list[ChatMessage] = []

    def ask(self, question: str) -> None:
        """Streams the answer to stdout. An interrupted answer stays in the history as far as it came."""
        head = [ChatMessage("system", self._system)] if self._system else []
        turns = [*self.turns, ChatMessage("user", question)]
        request = Request(messages=[*head, *turns], options=self._options)
        parts: list[str] = []
        start = time.monotonic()
        accepted: Accepted | None = None
        finished: Finished | None = None
        try:
            with self._client.send(request) as stream:
                for event in stream:
                    if isinstance(event, Delta):
                        write_model_text(event.text)
                        parts.append(event.text)
                    elif isinstance(event, Accepted):
                        accepted = event
                    else:
                        finished = event
        finally:
            if parts:
                write_model_text("\n")
                self.turns = [*turns, ChatMessage("assistant", "".join(parts))]
        self._report(accepted, finished, time.monotonic() - start)

    def _report(self, accepted: Accepted | None, finished: Finished | None, seconds: float) -> None:
        if finished is not None and finished.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            note = finished.error_reason or finished.reason.value
            stderr_console().print(f"[the answer ended early: {note}]", style="yellow", markup=False)
        if self._show_stats and accepted is not None and finished is not None:
            usage = finished.usage
            stderr_console().print(
                f"[{usage.prompt_tokens} prompt tokens, {usage.cached_prompt_tokens} from the prefix cache; "
                f"{usage.completion_tokens} tokens in {seconds:.1f} s; {finished.reason.value}]",
                style="dim",
                markup=False,
            )

    def command(self, line: str) -> bool:
        """Runs a /command; False at /quit."""
        word, _, rest = line.partition(" ")
        if word in ("/quit", "/exit"):
            return False
        if word == "/stats":
            s = self._client.stats()
            states = f"{s.active_blocks} active, {s.evictable_blocks} evictable, {s.free_blocks} free"
            print(f"  {states} of {s.num_blocks} blocks; {s.shared_blocks} shared")
            print(f"  {s.prefix_hit_tokens} prefix-hit tokens of {s.prefix_lookup_tokens} looked up")
        elif word == "/history":
            for turn in self.turns:
                write_model_text(f"  {turn.role}: {turn.content}\n")
        elif word == "/clear":
            self.turns = []
        elif word == "/system":
            self._system, self.turns = rest or None, []
        else:
            print(_COMMANDS)
        return True


def _converse(conversation: Conversation) -> int:
    import readline  # noqa: F401 - gives input() editing and history

    print("Type a message; /help lists commands, Ctrl-D ends.")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        try:
            if line.startswith("/"):
                if not conversation.command(line):
                    return 0
            elif line:
                conversation.ask(line)
        except KeyboardInterrupt:
            stderr_console().print("[stopped]", style="dim", markup=False)
        except OctavoError as error:
            stderr_console().print(f"octavo: {error.message}", style="red", markup=False)
