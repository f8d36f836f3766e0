"""Settings: precedence, unknown names, contradictions."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from octavo.environment import PREFIX, SCHEDULER_NAMES, unknown_names
from scheduler_svc.app import core_config, link_settings
from scheduler_svc.config import Settings, load

MODEL = ["--model", "folder"]


def refusal(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(SystemExit) as ended:
        load(arguments, environ or {})
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_flag_over_variable_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_DEPTH", "1")
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "7")
    settings = load([*MODEL, "--max-num-seqs", "9"])
    assert (settings.depth, settings.max_num_seqs, settings.max_num_batched_tokens) == (1, 9, 2048)


def test_switches_have_a_yes_and_a_no() -> None:
    assert load(MODEL, {}).prefix_cache
    assert not load([*MODEL, "--no-prefix-cache"], {}).prefix_cache


def test_an_unknown_variable_is_refused_and_kubernetes_is_let_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "OCTAVO_DEPHT" in refusal(capsys, MODEL, {"OCTAVO_DEPHT": "1"})
    injected = {
        "OCTAVO_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_SERVICE_PORT": "80",
        "OCTAVO_SERVICE_PORT_GRPC": "7450",
        "OCTAVO_PORT": "tcp://10.0.0.1:80",
        "OCTAVO_PORT_7450_TCP_ADDR": "10.0.0.1",
        "OCTAVO_GATEWAY_SERVICE_HOST": "10.0.0.2",
    }
    assert load(MODEL, injected).model == Path("folder")


def test_every_setting_is_a_known_variable() -> None:
    assert set(SCHEDULER_NAMES) == {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert unknown_names(dict.fromkeys(SCHEDULER_NAMES, "")) == []


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(load(MODEL, {}), "depth", 1)  # noqa: B010


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--model", "required"]),
        ([*MODEL, "--depth", "5"], ["--depth", "5", "from 1 to 4"]),
        ([*MODEL, "--max-num-seqs", "x"], ["--max-num-seqs x: must be a whole number from 1 to 65536"]),
        ([*MODEL, "--no-such-flag"], ["--no-such-flag"]),
        ([*MODEL, "--hash-seed", "abcd"], ["--hash-seed", "32"]),
        ([*MODEL, "--hash-seed", "xyz"], ["--hash-seed xyz: must be 32 hex digits"]),
        (
            [*MODEL, "--max-num-seqs", "64", "--max-num-batched-tokens", "32"],
            ["--max-num-seqs 64", "--max-num-batched-tokens 32"],
        ),
        (
            [*MODEL, "--max-prefill-chunk", "64", "--max-num-batched-tokens", "32", "--max-num-seqs", "4"],
            ["--max-prefill-chunk 64", "--max-num-batched-tokens 32"],
        ),
        (
            [*MODEL, "--step-timeout-seconds", "1"],
            ["--worker-liveness-seconds 4", "--step-timeout-seconds 1"],
        ),
        ([*MODEL, "--listen", "0.0.0.0:1"], ["0.0.0.0:1", "--allow-insecure-bind"]),
        ([*MODEL, "--listen", "[::]:1"], ["[::]:1", "--allow-insecure-bind"]),
        ([*MODEL, "--listen", "example.com:1"], ["--allow-insecure-bind"]),
        ([*MODEL, "--metrics-host", "0.0.0.0"], ["--metrics-host 0.0.0.0", "--allow-insecure-bind"]),
        ([*MODEL, "--metrics-host", ".."], ["--metrics-host ..: must be a host's name or address"]),
        (
            [*MODEL, "--metrics-host", "0.0.0.0", "--allow-insecure-bind"],
            ["--pool-page", "--pool-page-token-file", "--no-pool-page"],
        ),
    ],
)
def test_a12_a_bad_setting_is_named_with_its_value(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    message = refusal(capsys, arguments)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "[::1]:0", "localhost:0", "unix:/tmp/octavo.sock", "127.9.9.9:5"]
)
def test_private_addresses_need_no_leave(address: str) -> None:
    assert load([*MODEL, "--listen", address], {}).listen == address


def test_an_insecure_bind_is_possible_by_name() -> None:
    assert load([*MODEL, "--listen", "0.0.0.0:1", "--allow-insecure-bind"], {}).listen == "0.0.0.0:1"


def test_help_names_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert field.description
    assert "(default: 2048)" in shown


def test_the_hash_seed_is_random_unless_given() -> None:
    first, second = (core_config(load(MODEL, {})).hash_seed for _ in range(2))
    assert first != second
    assert len(first) == 16
    assert core_config(load([*MODEL, "--hash-seed", "ab" * 16], {})).hash_seed == b"\xab" * 16


def test_the_link_knows_the_scheduler_s_own_limits() -> None:
    settings = load([*MODEL, "--max-num-seqs", "5", "--max-num-batched-tokens", "50"], {})
    assert (link_settings(settings).max_batch_seqs, link_settings(settings).max_batch_tokens) == (5, 50)
