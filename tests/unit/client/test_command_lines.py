"""Every flag of the `octavo` command refuses a bad value in one line with exit code 2: flag, value, limit."""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.errors import OctavoError as Refusal
from octavo.v1 import inference_pb2 as pb
from octavo_client import cli
from octavo_client.commands.options import sampling_options
from octavo_client.convert import to_request
from octavo_client.types import Request
from scheduler_svc.limits import Limits, ModelFacts, check_generate

PARSED = ("serve", "chat", "generate", "top", "doctor", "demo")
TEXT_FLAGS = {
    "--model", "--system", "--stop", "--cache-salt", "--worker-arg", "--scheduler-arg", "--gateway-arg",
    "--input", "--output",
}  # fmt: skip
"""Flags that take any text or path."""


def parsers() -> Iterator[tuple[str, argparse.Action]]:
    for name in PARSED:
        parser = cli.build_parser(name)
        commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        for action in commands.choices[name]._actions:
            yield name, action


CASES = [
    (name, action.option_strings[-1])
    for name, action in parsers()
    if action.option_strings
    and action.nargs is None
    and not action.dest.startswith("flag_")
    and action.option_strings[-1] not in TEXT_FLAGS
]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code: Any = cli.main(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1), said
    return said.err.strip()


@pytest.mark.parametrize(("name", "flag"), CASES)
@pytest.mark.parametrize("value", ["nonsense", "-77777777777777777777777"])
def test_a12_a_bad_flag_is_one_line_with_value_and_limit(
    capsys: pytest.CaptureFixture[str], name: str, flag: str, value: str
) -> None:
    said = refusal(capsys, name, f"{flag}={value}")
    assert said.startswith(f"octavo {name}: {flag} {value}: must be "), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sing"], "octavo: COMMAND sing: must be one of serve, chat, "),
        ([], "octavo: COMMAND: is required"),
        (["chat", "--loud"], "octavo: --loud: no such flag or argument; --help lists those there are"),
        (["top", "--interval", "0.01"], "octavo top: --interval 0.01: must be a number of at least 0.05"),
        (["top", "--inter", "1"], "octavo: --inter 1: no such flag or argument"),
        (
            ["serve", "--http", "abc"],
            "octavo serve: --http abc: must be a port from 0 to 65535, or host:port",
        ),
        (["serve", "--http", "unix:/x"], "octavo serve: --http unix:/x: must be a port from 0 to 65535, or"),
        (["serve", "--port", "70000"], "octavo serve: --port 70000: must be a whole number from 0 to 65535"),
        (["generate", "-i", "/nowhere"], "octavo: --input /nowhere: No such file or directory"),
        (["generate", "x", "-o", "/no/x"], "octavo: --output /no/x: No such file or directory"),
        (["serve", "--model", "/no"], "octavo: --model /no: does not exist; "),
        (["chat", "--server"], "octavo chat: --server: needs a value"),
    ],
)
def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert refusal(capsys, *words).startswith(said)


@pytest.mark.parametrize(
    ("name", "command"), [("OCTAVO_SERVER", "top"), ("OCTAVO_LISTEN", "serve"), ("OCTAVO_MODEL", "serve")]
)
def test_a_bad_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.setenv("OCTAVO_MODEL", __file__)
    monkeypatch.setenv(name, "nonsense")
    assert refusal(capsys, command).startswith(f"octavo: {name} nonsense: ")


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("temperature", ["0", "100"], ["-0.1", "100.5"]),
        ("top-p", ["0.1", "1"], ["0", "1.1"]),
        ("top-k", ["0", "1048576"], ["1048577"]),
        ("min-p", ["0", "1"], ["-0.1", "1.1"]),
        ("presence-penalty", ["-2", "2"], ["-2.1", "2.1"]),
        ("frequency-penalty", ["-2", "2"], ["-2.1", "2.1"]),
        ("repetition-penalty", ["0.1", "10"], ["0", "10.1"]),
        ("max-tokens", ["1", "1048576"], ["0", "1048577"]),
        ("min-tokens", ["0", "1048576"], ["1048577"]),
        ("queue-timeout", ["0.1", "86400"], ["0", "86401"]),
        ("seed", ["0", "18446744073709551615"], []),
        ("priority", ["-2147483648", "2147483647"], []),
    ],
)
def test_the_flags_have_the_scheduler_s_own_bounds(
    capsys: pytest.CaptureFixture[str], flag: str, good: list[str], bad: list[str]
) -> None:
    for value in good:
        check_generate(
            request_of("--max-tokens=1048576", f"--{flag}={value}"), Limits(), ModelFacts(1 << 30, 1 << 30)
        )
    for value in bad:
        assert f"--{flag} {value}: must be " in refusal(capsys, "chat", f"--{flag}={value}", "hello")
        request = request_of("--max-tokens=1048576", f"--{flag}={good[-1]}")
        field = flag.replace("-", "_")
        if field == "queue_timeout":
            request.queue_timeout.FromNanoseconds(int(float(value) * 1e9))
        else:
            part = request.stopping if field.endswith("tokens") else request.sampling
            setattr(part, field, type(getattr(part, field))(float(value)))
        with pytest.raises(Refusal):
            check_generate(request, Limits(), ModelFacts(1 << 30, 1 << 30))


def request_of(*flags: str) -> pb.GenerateRequest:
    given = cli.build_parser("chat").parse_args(["chat", *flags, "hello"])
    return to_request(Request(prompt="hello", options=sampling_options(given)))
