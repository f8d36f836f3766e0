"""octavo top, octavo doctor, and the command's own help and errors."""

import socket

import pytest

from octavo_client import Client
from tests.e2e.cli.run import Terminal, octavo


def test_top_prints_one_frame(server: str) -> None:
    with Client(server) as client, client.stream("hello", max_tokens=200, ignore_eos=True) as stream:
        next(stream)
        next(stream)
        done = octavo("top", "--server", server, "--once")
    assert done.code == 0, done.err
    assert "worker ready" in done.out
    assert "of 128 blocks of 4 tokens" in done.out
    assert "\x1b" not in done.out


def test_top_lives_in_a_terminal_until_ctrl_c(server: str) -> None:
    terminal = Terminal("top", "--server", server, "--interval", "0.1")
    terminal.wait_for("block map")
    terminal.wait_for("block map")
    terminal.interrupt()
    assert terminal.end() == 0


def test_top_without_a_server_is_one_line() -> None:
    done = octavo("top", "--server", "127.0.0.1:1", "--once")
    assert (done.code, len(done.err.splitlines())) == (1, 1)


def test_doctor_finds_a_running_service(server: str) -> None:
    done = octavo("doctor", "--server", server)
    assert done.code == 0, done.out + done.err
    assert f"{server}: ready, 128 blocks of 4 tokens" in done.out
    for word in ("torch", "grpcio", "paged_attention", "OCTAVO_* names", "port 7450"):
        assert word in done.out


def test_doctor_fails_for_a_misspelt_name() -> None:
    done = octavo("doctor", "--no-device", "--server", "127.0.0.1:1", env={"OCTAVO_NUM_BLOKS": "3"})
    assert done.code == 1
    failed = [line.split()[1] for line in done.out.splitlines() if line.startswith("  FAIL")]
    assert failed == ["OCTAVO_NUM_BLOKS", "scheduler"]


def test_doctor_says_who_does_not_answer_where_nobody_was_named() -> None:
    """All that is here may be well; that nobody answers is said with what was asked."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 7450)) == 0:
            pytest.skip("a scheduler runs at the default address")
    done = octavo("doctor", "--no-device", env={"OCTAVO_MODEL": ""})
    assert done.code == 0, done.out
    last = done.out.splitlines()[-1]
    assert last.startswith("nothing is wrong with what is here, but nobody answers: ")
    assert "scheduler at 127.0.0.1:7450" in last
    assert "all is well" not in done.out


def test_doctor_fails_for_a_worker_that_is_named_and_not_there() -> None:
    done = octavo("doctor", "--no-device", "--server", "127.0.0.1:1", "--worker", "127.0.0.1:1")
    assert done.code == 1
    assert "FAIL worker" in done.out


@pytest.mark.parametrize(
    "name", ["serve", "chat", "generate", "top", "doctor", "demo", "scheduler", "worker", "replay"]
)
def test_every_command_has_help(name: str) -> None:
    done = octavo(name, "--help")
    assert done.code == 0, done.err
    assert done.out.startswith("usage: ")
    assert name in octavo("--help").out


@pytest.mark.parametrize("arguments", [[], ["sing"], ["chat", "--loud"]], ids=["none", "unknown", "flag"])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    done = octavo(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err
