"""docs/limits.md and docs/errors.md say what the code does."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from octavo import errors
from scheduler_svc.config import Settings
from scheduler_svc.core.plan import RefusalReason
from scheduler_svc.limits import Limits
from scheduler_svc.requests import QueueLimits
from scheduler_svc.streams import BacklogLimits
from scheduler_svc.text import chat

ROOT = Path(__file__).parents[3]
SERVICES = ("scheduler_svc", "gpu_worker", "protos/octavo")
LEAVES = {
    leaf.__name__: leaf for leaf in errors.OctavoError.__subclasses__() if leaf.__module__ == errors.__name__
}


def table(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its two head lines."""
    text = (
        (ROOT / "docs" / document).read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    )
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def defaults(kind: type) -> list[tuple[str, float]]:
    return [(field.name, field.default) for field in dataclasses.fields(kind)]


def documented(document: str, heading: str) -> list[tuple[str, float]]:
    return [(row[0].strip("`"), float(row[1])) for row in table(document, heading)]


def test_the_limits_of_a_request_are_documented() -> None:
    assert documented("limits.md", "Fields of a request") == defaults(Limits)


def test_the_limits_of_queue_and_streams_are_documented() -> None:
    streams = ("max_concurrent_streams", Settings.model_fields["max_concurrent_streams"].default)
    expected = [*defaults(QueueLimits), *defaults(BacklogLimits), streams]
    assert documented("limits.md", "Queue and streams") == expected


def test_the_limits_of_chat_templates_are_documented() -> None:
    constants = [(name, value) for name, value in vars(chat).items() if re.fullmatch(r"[A-Z]+_[A-Z]+", name)]
    assert documented("limits.md", "Chat templates") == constants


def test_the_flags_of_limits_have_the_limits_defaults() -> None:
    fields = Settings.model_fields
    assert fields["max_prompt_bytes"].default == Limits().prompt_bytes
    assert fields["max_prompt_tokens"].default == Limits().prompt_tokens
    assert fields["max_n"].default == Limits().n
    assert fields["max_queue_requests"].default == QueueLimits().requests
    assert fields["max_queue_tokens"].default == QueueLimits().tokens


def test_the_statuses_are_documented() -> None:
    expected = [[name, leaf.status.name, leaf.default_reason] for name, leaf in LEAVES.items()]
    assert table("errors.md", "Statuses") == expected


def test_the_reasons_are_documented() -> None:
    listed = [(row[0], row[1]) for row in table("errors.md", "Reasons")]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(raised())


def raised() -> Iterator[tuple[str, str]]:
    """(reason, leaf) of every place in the services that makes an error."""
    for service in SERVICES:
        for path in sorted((ROOT / service).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield from reasons_of(node, node.func.id)


def reasons_of(call: ast.Call, name: str) -> Iterator[tuple[str, str]]:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if name == "refuse":
        name, given = "InvalidArgument", given + call.args[2:]
    if name not in LEAVES:
        return
    if not given:
        yield LEAVES[name].default_reason, name
    for value in given:
        if isinstance(value, ast.Constant):
            yield value.value, name
        elif ast.unparse(value) == "refusal.reason.value":
            yield from ((reason.value, name) for reason in core_refusals(name))


def core_refusals(leaf: str) -> list[RefusalReason]:
    """What the core refuses, by the leaf that the delivery makes of it."""
    pool = [RefusalReason.EXCEEDS_KV_POOL]
    return pool if leaf == "FailedPrecondition" else [each for each in RefusalReason if each not in pool]
