"""Chat prompts: messages through the model's own template, in a process of its own.

Owns the rendering process and the bounds on it; does not know tokens. Invariant: a template can cost at most
CPU_SECONDS, MEMORY_BYTES and OUTPUT_CHARS, whatever it does, and never runs in this process.

Why a process: a template can loop, nest `range`, double a string or print a list that holds itself a million
times, and one such operation inside the interpreter can neither be counted nor interrupted by a thread or a
signal handler. A process can be killed, and it leaves the scheduler's interpreter lock free while a large
chat is rendered.
"""

import json
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import FailedPrecondition, Internal, InvalidArgument, OctavoError
from octavo.roles import roles_of

CPU_SECONDS = 1.0
WALL_SECONDS = 20.0
MEMORY_BYTES = 1 << 29
OUTPUT_CHARS = 8 << 20
_CHILD = Path(__file__).with_name("render_child.py")


class Chat(Protocol):
    """What a template is given. messages: plain JSON objects; variables: the client's own, beside ours."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def add_generation_prompt(self) -> bool: ...

    @property
    def tools(self) -> list[Any] | None: ...

    @property
    def variables(self) -> Mapping[str, Any]: ...


class ChatRenderer:
    """One template and its process, started by the first `render`. Thread-safe; one render at a time."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = dict(special_tokens)
        self._roles = roles_of(template)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def render(self, chat: Chat, *, with_tools: bool = True) -> str:
        """The prompt text. Errors as in `TextModel.encode_chat`."""
        self._check_roles(chat)
        call = {
            "documents": None,
            **self._special_tokens,
            **chat.variables,
            "messages": [_with_reasoning(message) for message in chat.messages],
            "tools": chat.tools if with_tools else None,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        with self._lock:
            answer = self._ask(call)
        if "text" in answer:
            return answer["text"]
        raise _refusal(answer)

    def _check_roles(self, chat: Chat) -> None:
        """A role that nobody knows would only be words in the prompt."""
        for place, message in enumerate(chat.messages):
            if message["role"] not in self._roles:
                field = f"chat.messages[{place}].role"
                words = f"{message['role']!r} is no role, must be one of {', '.join(self._roles)}"
                raise InvalidArgument(f"{field}: {words}", field=field)

    def close(self) -> None:
        """Ends the process; the next `render` starts another."""
        with self._lock:
            self._end()

    def _ask(self, call: object) -> dict[str, str]:
        child = self._child
        if child is None or child.poll() is not None:
            child = self._start()
        answer = _exchange(child, call)
        if answer is None:
            return _cause(self._end())
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        self._child = child = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _kill, child)
        bounds = {"cpu_seconds": CPU_SECONDS, "memory_bytes": MEMORY_BYTES, "output_chars": OUTPUT_CHARS}
        _send(child, {"template": self._template, **bounds})
        return child

    def _end(self) -> int:
        """Ends the process and returns its exit code (0 when there was none)."""
        child, self._child = self._child, None
        if child is None:
            return 0
        self._finalizer()
        return child.returncode


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some templates read an assistant's reasoning as `thinking`; transformers fills that name in too."""
    if "reasoning_content" not in message:
        return message
    return {"thinking": message["reasoning_content"], **message}


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.communicate()


def _exchange(child: subprocess.Popen[bytes], call: object) -> dict[str, str] | None:
    """The child's answer to a call, or None when it died (it is awaited then) or fell silent."""
    assert child.stdout is not None
    try:
        _send(child, call)
    except BrokenPipeError:
        child.wait()
        return None
    answers = select.poll()  # select() takes no file of a number above 1023, and a stream's connection is one
    answers.register(child.stdout, select.POLLIN)
    ready = answers.poll(WALL_SECONDS * 1000)
    line = child.stdout.readline() if ready else b""
    if line.endswith(b"\n"):
        answer: dict[str, str] = json.loads(line)
        return answer
    if ready:
        child.wait()
    return None


def _send(child: subprocess.Popen[bytes], value: object) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(value).encode() + b"\n")
    child.stdin.flush()


def _cause(exit_code: int) -> dict[str, str]:
    """Why a process gave no answer: one of its bounds (it was ended by a signal), or a fault of its own."""
    if exit_code == -signal.SIGPROF:
        return {
            "kind": "limit",
            "message": f"the chat template took more than {CPU_SECONDS:g} s of computing",
        }
    if exit_code < 0:
        return {"kind": "limit", "message": "the chat template took too much memory or time"}
    return {"kind": "fault", "message": "the process that renders chat templates does not run"}


def _refusal(answer: Mapping[str, str]) -> OctavoError:
    message = f"chat: {answer['message']}"
    kind = answer["kind"]
    if kind == "fault":
        return Internal(message)
    if kind == "broken":
        return FailedPrecondition(message, reason="BAD_CHAT_TEMPLATE", field="chat")
    if kind == "limit":
        return InvalidArgument(message, reason="CHAT_TEMPLATE_LIMIT", field="chat")
    return InvalidArgument(message, reason="CHAT_TEMPLATE_REFUSED", field="chat")
