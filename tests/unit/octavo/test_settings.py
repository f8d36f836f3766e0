"""Every setting of every program refuses a bad value in one line: the name as given, the value, the limit."""

import re
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, get_args

import pytest

import gateway.config
import gpu_worker.config
import scheduler_svc.config
from octavo.settings import ProgramSettings, flag_of, variable_of

Load = Callable[[list[str], dict[str, str]], ProgramSettings]
PROGRAMS: dict[str, tuple[type[ProgramSettings], Load, list[str]]] = {
    "scheduler_svc": (scheduler_svc.config.Settings, scheduler_svc.config.load, ["--model", "m"]),
    "gpu_worker": (gpu_worker.config.Settings, gpu_worker.config.read_settings, ["--model", "m"]),
    "gateway": (gateway.config.Settings, gateway.config.load, []),
}
TEXTS = {
    "server": "there",
    "worker": "there",
    "listen": "here:70000",
    "hash_seed": "abc",
    "otlp_traces_endpoint": "collector",
}
"""Texts with a form; any other text or path may be one."""


def bad_values(kind: type[ProgramSettings]) -> Iterator[tuple[str, str]]:
    for name, field in kind.model_fields.items():
        kinds = [one for one in get_args(field.annotation) or (field.annotation,) if one is not NoneType]
        if name in TEXTS:
            yield name, TEXTS[name]
        elif isinstance(kinds[0], str):
            yield name, "other"
        elif kinds[0] is int:
            yield from ((name, "many"), (name, "-1"), (name, "1.5"))
        elif kinds[0] is float:
            yield from ((name, "many"), (name, "-1"), (name, "nan"), (name, "inf"))


CASES = [(program, *case) for program, (kind, _, _) in PROGRAMS.items() for case in bad_values(kind)]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, _, _ in PROGRAMS.values():
        for name in kind.model_fields:
            monkeypatch.delenv(variable_of(name), raising=False)


def refusal(capsys: pytest.CaptureFixture[str], program: str, arguments: list[str], **environ: str) -> str:
    """What follows the program's name in the one line."""
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program][1](arguments, environ)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1), said
    begin = f"python -m {program}: "
    assert said.err.startswith(begin)
    return said.err.removeprefix(begin).strip()


@pytest.mark.parametrize(("program", "name", "value"), CASES)
def test_a12_a_bad_flag_is_one_line_with_value_and_limit(
    capsys: pytest.CaptureFixture[str], program: str, name: str, value: str
) -> None:
    said = refusal(capsys, program, [*PROGRAMS[program][2], f"{flag_of(name)}={value}"])
    assert re.fullmatch(rf"{flag_of(name)} {re.escape(value)}: must be .+", said), said
    assert not re.search(r"Input should|Value error|\b\w+_\w+\b(?<!fp8_e4m3)", said), said


@pytest.mark.parametrize(("program", "name", "value"), CASES)
def test_a12_a_bad_variable_is_named_as_a_variable(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable_of(name), value)
    said = refusal(capsys, program, PROGRAMS[program][2], **{variable_of(name): value})
    assert re.fullmatch(rf"{variable_of(name)} {re.escape(value)}: must be .+", said), said


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        ("gpu_worker", [], "--model: is required, or OCTAVO_MODEL"),
        ("gateway", ["--listen"], "--listen: needs a value"),
        ("gateway", ["--lis", "x"], "--lis x: no such flag or argument; --help lists those there are"),
        ("gateway", ["--salt-by-api-key"], "--salt-by-api-key: needs --api-key-file"),
        ("gateway", ["--salt-by-api-key=yes"], "--salt-by-api-key/--no-salt-by-api-key: takes no value"),
        (
            "gateway",
            ["--max-prompts", "0", "--body-seconds", "0"],
            "--max-prompts 0: must be a whole number of at least 1; "
            "--body-seconds 0: must be a number above 0",
        ),
        (
            "scheduler_svc",
            ["--model", "m", "--record-plans"],
            "--record-plans: needs --record, a log to put them into",
        ),
        (
            "gpu_worker",
            ["--model", "m", "--num-layers", "1"],
            "--num-layers 1: needs --load-format dummy, not --load-format auto",
        ),
        (
            "gpu_worker",
            ["--model", "m", "--quantize", "int8", "--kernel-backend", "torch"],
            "--quantize int8: goes with --kernel-backend auto or cpu, not with --kernel-backend torch",
        ),
        (
            "gpu_worker",
            ["--model", "m", "--kernel-backend", "cpu", "--kv-cache-dtype", "fp8_e4m3"],
            "--kernel-backend cpu: goes with --kv-cache-dtype auto, not with --kv-cache-dtype fp8_e4m3",
        ),
        (
            "gpu_worker",
            ["--model", "m", "--kernel-backend", "cpu", "--device", "cuda"],
            "--kernel-backend cpu: goes with --device auto or cpu, not with --device cuda",
        ),
        (
            "gpu_worker",
            ["--model", "m", "--listen", "0.0.0.0:1"],
            "--listen 0.0.0.0:1: is not a loopback address or Unix socket, and there is no TLS; "
            "pass --allow-insecure-bind to serve it all the same",
        ),
    ],
)
def test_what_else_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], program: str, arguments: list[str], words: str
) -> None:
    assert refusal(capsys, program, arguments) == words


def test_a_contradiction_names_each_side_as_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_QUANTIZE", "int4")
    arguments = ["--model", "m", "--kernel-backend", "triton"]
    said = refusal(capsys, "gpu_worker", arguments, OCTAVO_QUANTIZE="int4")
    assert said == (
        "OCTAVO_QUANTIZE int4: goes with --kernel-backend auto or cpu, not with --kernel-backend triton"
    )


def test_an_unknown_variable_is_named_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    for program, (_, _, needed) in PROGRAMS.items():
        said = refusal(capsys, program, needed, OCTAVO_DEPHT="1")
        assert said == "OCTAVO_DEPHT 1: no program of this repository reads this variable"


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, load, needed in PROGRAMS.values():
        for name in kind.model_fields:
            monkeypatch.setenv(variable_of(name), "")
        environ: dict[str, Any] = {variable_of(name): "" for name in kind.model_fields}
        settings = load(needed, environ)
        defaults = {name: field.default for name, field in kind.model_fields.items() if name != "model"}
        assert settings.model_dump(exclude={"model"}) == defaults
