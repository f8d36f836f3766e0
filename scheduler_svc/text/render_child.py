"""The process that renders a chat template; run as a file, never imported by the service.

Owns the sandboxed Jinja environment and the limits of its own process; knows only JSON lines on stdin and
stdout. Invariant: it ends when its input ends, and each line in gets one line out or the end of the process.

First line in: {template, cpu_seconds, memory_bytes, output_chars}. Then one line of template variables for
each rendering; out goes {"text"} or {"kind": refused | broken | limit, "message"}. The environment is the one
that chat templates are written for (Hugging Face transformers, utils/chat_template_utils.py, Apache-2.0).
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own tojson escapes HTML characters, which is no use in a prompt."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment() -> ImmutableSandboxedEnvironment:
    """The sandbox with the helpers that chat templates use."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


def takes_parts(tree: nodes.Template) -> bool:
    """Whether a template loops over the parts of a message's content, or only knows a string."""
    for loop in tree.find_all(nodes.For):
        for node in (loop.iter, *loop.iter.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))):
            key = getattr(node, "attr", getattr(node, "name", getattr(node, "arg", None)))
            if key == "content" or getattr(key, "value", None) == "content":
                return True
    return False


def join_parts(call: dict[str, Any]) -> None:
    """Content in parts becomes one string, in place."""
    for message in call["messages"]:
        if isinstance(message.get("content"), list):
            message["content"] = "\n".join(part["text"] for part in message["content"])


def bounded(pieces: Iterator[str], output_chars: int) -> str:
    """Joins a rendering; raises MemoryError when it has more characters than the bound."""
    out: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > output_chars:
            raise MemoryError
        out.append(piece)
    return "".join(out)


def answer(template: jinja2.Template, call: dict[str, Any], output_chars: int) -> dict[str, str]:
    try:
        return {"text": bounded(template.generate(call), output_chars)}
    except SecurityError as error:
        return {"kind": "broken", "message": f"the chat template is not allowed to do this: {error}"}
    except TemplateError as error:
        return {"kind": "refused", "message": error.message or type(error).__name__}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {
            "kind": "limit",
            "message": f"the chat template went over its bounds ({type(error).__name__})",
        }
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        return {"kind": "refused", "message": f"the chat template failed: {type(error).__name__}: {error}"}


def serve(lines: Iterator[bytes], write: Callable[[dict[str, str]], None]) -> None:
    first = json.loads(next(lines))
    resource.setrlimit(resource.RLIMIT_AS, (first["memory_bytes"], first["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # SIGPROF's default action ends the process: nothing that a template does can outlast or catch it.
    signal.setitimer(signal.ITIMER_PROF, first["cpu_seconds"])
    try:
        made = environment()
        template = made.from_string(first["template"])
        parts = takes_parts(made.parse(first["template"]))
    except (TemplateSyntaxError, MemoryError, RecursionError, OverflowError) as error:
        broken = {"kind": "broken", "message": f"the model folder's chat template cannot be read: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        for _ in lines:
            write(broken)
        return
    for line in lines:
        call = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, first["cpu_seconds"])
        if not parts:
            join_parts(call)
        result = answer(template, call, first["output_chars"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        write(result)


def main() -> None:
    def write(result: dict[str, str]) -> None:
        sys.stdout.buffer.write(json.dumps(result).encode() + b"\n")
        sys.stdout.buffer.flush()

    serve(iter(sys.stdin.buffer.readline, b""), write)


if __name__ == "__main__":
    main()
