"""octavo chat and octavo generate against a served tiny model."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from octavo_client import Client
from tests.e2e.cli.run import SECONDS, Background, Done, Terminal, octavo
from tests.e2e.processes import Processes

GREEDY = ("--temperature", "0", "--max-tokens", "8")


def answers(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def one_line(done: Done, code: int = 1) -> str:
    """The one line of an error."""
    assert done.code == code
    assert "Traceback" not in done.err
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done.err
    return lines[0]


def until_nothing_runs(client: Client) -> None:
    while client.stats().running_requests:
        time.sleep(0.02)


def test_chat_answers_one_question(server: str) -> None:
    first = octavo("chat", "--server", server, *GREEDY, "--stats", "hello there")
    assert first.code == 0, first.err
    assert first.out.endswith("\n")
    assert "8 tokens" in first.err
    again = octavo("chat", "--server", server, *GREEDY, stdin="hello there")
    assert again.out == first.out


def test_chat_holds_a_conversation(server: str) -> None:
    terminal = Terminal("chat", "--server", server, *GREEDY, "--ignore-eos")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("> ")
    terminal.type("/stats\n")
    assert "of 128 blocks" in terminal.wait_for("looked up")
    terminal.type("/history\n")
    assert "user: hello" in terminal.wait_for("assistant:")
    terminal.type("/nonsense\n")
    terminal.wait_for("/quit")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_ctrl_c_ends_the_answer_and_not_the_conversation(processes: Processes, tiny_llama: Path) -> None:
    """A02: the request leaves the server too, in the middle of an answer that does not go on."""
    worker = processes.fake_worker("127.0.0.1:0")
    server = processes.scheduler(tiny_llama, worker.address).address
    worker.ask(do="hold")
    worker.ask(do="release", answers=3)
    terminal = Terminal("chat", "--server", server, "--ignore-eos", "--max-tokens", "200")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    with Client(server) as client:
        while sum(row.output_tokens for row in client.stats(requests=True).requests) < 3:
            time.sleep(0.02)
        terminal.interrupt()
        terminal.wait_for("[stopped]")
        until_nothing_runs(client)
        terminal.wait_for("> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0


def test_chat_without_a_server_is_one_line() -> None:
    done = octavo("chat", "--server", "127.0.0.1:1", "hello")
    assert one_line(done).startswith("octavo: no answer from 127.0.0.1:1 (Connection refused)")


def test_a_refusal_of_the_server_is_one_line(server: str) -> None:
    """A20."""
    line = one_line(octavo("chat", "--server", server, "--max-tokens", "1000000", "hello"))
    assert "max_tokens" in line
    assert "1000000" in line


def test_generate_takes_texts(server: str) -> None:
    done = octavo("generate", "--server", server, *GREEDY, "--ignore-eos", "--token-ids", "one", "two")
    assert done.code == 0, done.err
    found = sorted(answers(done), key=lambda answer: answer["line"])
    assert [answer["line"] for answer in found] == [1, 2]
    for answer in found:
        assert answer["finish_reason"] == "length"
        assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"] == 8


def test_generate_gives_a_line_a_sequence_with_log_probabilities(server: str) -> None:
    asked = ("--n", "3", "--logprobs", "2", "--seed", "7", "--max-tokens", "5", "--ignore-eos")
    done = octavo("generate", "--server", server, *asked, "--token-ids", "one")
    assert done.code == 0, done.err
    lines = answers(done)
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    assert len({tuple(line["token_ids"]) for line in lines}) == 3
    for line in lines:
        assert [one["sampled"]["token_id"] for one in line["logprobs"]] == line["token_ids"]
        assert all(len(one["top"]) == 2 for one in line["logprobs"])


def test_generate_gives_each_line_an_answer_or_an_error(server: str, tmp_path: Path) -> None:
    """A20: bad lines fail by themselves and name their field."""
    lines = [
        '"a string"',
        '{"prompt": "hello", "request_id": "mine", "max_tokens": 3, "ignore_eos": true}',
        "",
        "{not json",
        "[1]",
        '{"prompt": "a", "temprature": 0}',
        '{"prompt": 5}',
        '{"token_ids": [5, 6, 7], "max_tokens": 2}',
        '{"token_ids": [99999]}',
        '{"messages": [{"role": "user", "content": "hi"}], "stop": ["zzz"]}',
        '{"prompt": "a", "max_tokens": -1}',
        '{"prompt": "a", "temperature": -1}',
        '{"prompt": "a", "logit_bias": {"x": 1}}',
        "{}",
        '"\udcff\udcfe"',
        "[" * 100_000,
        '{"prompt": "a", "use_prefix_cache": 0}',
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    done = octavo("generate", "--server", server, *GREEDY, "-i", str(source), "-o", str(target))
    assert done.code == 1
    assert (done.out, "Traceback" in done.err) == ("", False)
    by_line = {answer["line"]: answer for answer in map(json.loads, target.read_text().splitlines())}
    assert sorted(by_line) == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
    good = {number for number, answer in by_line.items() if "text" in answer}
    assert good == {1, 2, 8, 10}
    assert by_line[2]["request_id"] == "mine"
    assert by_line[2]["usage"]["completion_tokens"] == 3
    fields = {number: by_line[number]["error"].get("field") for number in set(by_line) - good}
    assert fields[6] == "temprature"
    assert fields[7] == "prompt"
    assert fields[11] == "max_tokens"
    assert fields[13] == "logit_bias"
    assert fields[17] == "use_prefix_cache"
    assert by_line[15]["error"]["message"] == "not UTF-8"
    assert by_line[16]["error"]["message"] == "nested too deep"
    assert "temperature" in by_line[12]["error"]["message"]
    assert {by_line[number]["error"]["status"] for number in fields} == {"INVALID_ARGUMENT"}


def test_generate_runs_many_with_few_in_flight(server: str) -> None:
    given = "\n".join(json.dumps({"prompt": f"number {i % 10}", "request_id": f"n{i}"}) for i in range(100))
    done = octavo("generate", "--server", server, *GREEDY, "--concurrency", "8", stdin=given)
    assert done.code == 0, done.err
    found = {answer["request_id"]: answer["text"] for answer in answers(done)}
    assert len(found) == 100
    assert all(found[f"n{i}"] == found[f"n{i % 10}"] for i in range(100))


def test_generate_shows_progress_in_a_terminal(server: str) -> None:
    terminal = Terminal("generate", "--server", server, *GREEDY, "one", "two")
    terminal.wait_for("2/2")
    assert terminal.end() == 0


def test_generate_interrupted_leaves_nothing_running(server: str, tmp_path: Path) -> None:
    given = "\n".join(json.dumps({"prompt": "x", "max_tokens": 200, "ignore_eos": True}) for _ in range(200))
    job = Background(tmp_path, "generate", "--server", server, "--concurrency", "4", stdin=given)
    try:
        job.wait_for("finish_reason")
        assert job.end(signal.SIGINT) == 130
    finally:
        job.close()
    assert "Traceback" not in job.err.read_text()
    last = json.loads(job.out.read_text().splitlines()[-1])
    assert last["error"]["status"] == "CANCELLED"
    with Client(server) as client:
        until_nothing_runs(client)


@pytest.mark.parametrize("way", ["killed", "drained"])
def test_generate_writes_what_had_come_when_the_service_ends(
    processes: Processes, tiny_llama: Path, tmp_path: Path, way: str
) -> None:
    """The tokens that a slow worker gave before the end, which here comes in the middle of both streams, long
    after the first of them.
    """
    worker = processes.fake_worker("127.0.0.1:0", "--step-delay", "0.05", "--num-blocks", "256")
    scheduler = processes.scheduler(tiny_llama, worker.address, "--drain-seconds", "0.1")
    job = Background(
        tmp_path, "generate", "--server", scheduler.address, "--max-tokens", "900", "--ignore-eos",
        "--token-ids", "one", "two",
    )  # fmt: skip
    try:
        with Client(scheduler.address) as client:
            while len([row for row in client.stats(requests=True).requests if row.output_tokens >= 40]) < 2:
                time.sleep(0.02)
        if way == "killed":
            scheduler.kill()
        else:
            scheduler.ask_to_stop()
        assert job.process.wait(SECONDS) == 1
    finally:
        job.close()
    said = [json.loads(line) for line in job.out.read_text().splitlines()]
    assert {line["line"] for line in said} == {1, 2}
    for line in said:
        assert line["error"]["status"] == "UNAVAILABLE"
        assert len(line["token_ids"]) > 5
        assert line["text"]
    assert len(job.err.read_text().splitlines()) <= 1


def test_generate_without_a_server_fails_each_line() -> None:
    done = octavo("generate", "--server", "127.0.0.1:1", "one", "two")
    assert done.code == 1
    assert {answer["error"]["reason"] for answer in answers(done)} <= {"CONNECTION_FAILED"}
    assert done.err.startswith("octavo: no answer from 127.0.0.1:1")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [["generate", "-i", "/nowhere"], ["generate", "--concurrency", "0", "x"]],
    ids=["file", "number"],
)
def test_what_cannot_be_done_is_one_line(arguments: list[str]) -> None:
    one_line(octavo(*arguments), 2)
