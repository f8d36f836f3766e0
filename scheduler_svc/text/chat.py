"""Chat prompts: messages through the model's own template, in a process of its own.

Owns the rendering process and the bounds on it; does not know tokens. Invariant: a template can cost at most
CPU_SECONDS, MEMORY_BYTES and OUTPUT_BYTES, whatever it does, and never runs in this process.

Why a process: a template can loop, nest `range`, double a string or print a list that holds itself a million
times, and one such operation inside the interpreter can neither be counted nor interrupted by a thread or a
signal handler. A process can be killed, and it leaves the scheduler's interpreter lock free while a large
chat is rendered.
"""

import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.errors import FailedPrecondition, InvalidArgument, OctavoError

CPU_SECONDS = 1.0
WALL_SECONDS = 20.0
MEMORY_BYTES = 1 << 29
OUTPUT_BYTES = 4 << 20
_CHILD = Path(__file__).with_name("render_child.py")


class ChatRenderer:
    """One template and its process, started by the first `render`. Thread-safe; one render at a time."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = dict(special_tokens)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def render(self, messages: Sequence[tuple[str, str]], add_generation_prompt: bool) -> str:
        """The prompt text. Errors as in `TextModel.encode_chat`."""
        call = {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        with self._lock:
            answer = self._ask(call)
        if "text" in answer:
            return answer["text"]
        raise _refusal(answer)

    def close(self) -> None:
        """Ends the process; the next `render` starts another."""
        with self._lock:
            self._end()

    def _ask(self, call: object) -> dict[str, str]:
        child = self._child if self._child is not None and self._child.poll() is None else self._start()
        answer = _exchange(child, call)
        if answer is None:
            self._end()
            return {
                "kind": "limit",
                "message": f"the chat template did not end within {CPU_SECONDS:g} s of computing time",
            }
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        command = [sys.executable, "-P", str(_CHILD)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._child = child
        bounds = {"cpu_seconds": CPU_SECONDS, "memory_bytes": MEMORY_BYTES, "output_bytes": OUTPUT_BYTES}
        _send(child, {"template": self._template, **bounds})
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.communicate()

    def __del__(self) -> None:
        self._end()


def _exchange(child: subprocess.Popen[bytes], call: object) -> dict[str, str] | None:
    """The child's answer to a call, or None when it died or fell silent."""
    assert child.stdout is not None
    try:
        _send(child, call)
    except BrokenPipeError:
        return None
    ready, _, _ = select.select([child.stdout], [], [], WALL_SECONDS)
    line = child.stdout.readline() if ready else b""
    if not line.endswith(b"\n"):
        return None
    answer: dict[str, str] = json.loads(line)
    return answer


def _send(child: subprocess.Popen[bytes], value: object) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(value).encode() + b"\n")
    child.stdin.flush()


def _refusal(answer: Mapping[str, str]) -> OctavoError:
    message = f"chat: {answer['message']}"
    if answer["kind"] == "broken":
        return FailedPrecondition(message, reason="BAD_CHAT_TEMPLATE", field="chat")
    reason = "CHAT_TEMPLATE_LIMIT" if answer["kind"] == "limit" else "CHAT_TEMPLATE_REFUSED"
    return InvalidArgument(message, reason=reason, field="chat")
