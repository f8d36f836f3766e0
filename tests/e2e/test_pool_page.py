"""The pool page over HTTP: files, the stream against GetPoolMap, answers to clicks, and who may look."""

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo import arrays
from octavo.v1 import kv_cache_pb2 as kv
from scheduler_svc.pool_page.watch import INTERVAL_SECONDS, MAX_VIEWERS
from tests.e2e.processes import Processes, ProcessFailed
from tests.e2e.rig import Rig, SchedulerSeat, prompt_of, rig_at, seat_scheduler
from tests.e2e.service import PATIENCE, request
from tests.fakes.pool_reader import PoolReader

TOKEN = "a-token-of-the-tests-0123456789"


def port_of(seat: SchedulerSeat) -> int:
    return int(seat.process.serving["metrics_port"])


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@contextmanager
def stream(port: int, **headers: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/pool/stream", headers=headers)
    answer = connection.getresponse()
    try:
        yield answer
    finally:
        answer.close()
        connection.close()


def read_update(answer: http.client.HTTPResponse, reader: PoolReader) -> int:
    """Takes in one update; its characters on the wire."""
    line = answer.readline()
    assert line.startswith(b"data: "), line
    assert answer.readline() == b"\n"
    assert len(line) <= 64 * 1024
    reader.apply(line[6:].decode())
    return len(line)


def read_whole(port: int) -> PoolReader:
    """A stream's reader after its first whole update."""
    reader = PoolReader()
    with stream(port) as answer:
        assert (answer.status, answer.getheader("Content-Type")) == (200, "text/event-stream")
        while not reader.whole:
            read_update(answer, reader)
    return reader


async def assert_same_as_the_pool_map(rig: Rig, reader: PoolReader) -> None:
    pool: kv.GetPoolMapResponse = await rig.service.kv.GetPoolMap(kv.GetPoolMapRequest())
    fill, refs = arrays.decode(pool.fill, "fill"), arrays.decode(pool.ref_count, "ref_count")
    told = [(flags & 3, flags >> 2 & 1, flags >> 3, fill) for flags, fill, _ in reader.cells]
    assert told == list(zip(pool.state, pool.cached, refs.tolist(), fill.tolist(), strict=True))


@pytest.fixture(scope="module")
def seat(shared_processes: Processes, tiny_llama: Path) -> SchedulerSeat:
    return seat_scheduler(shared_processes, tiny_llama)


async def test_the_stream_shows_the_pool_that_grpc_shows(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        shared = prompt_of(9)
        runs = await rig.together(
            rig.service.run(request([*shared, i], 40, request_id=f"r{i}")) for i in range(3, 6)
        )
        for _ in range(4):
            await rig.hold(after=2)
            await asyncio.sleep(2 * INTERVAL_SECONDS)  # a sample may be as old as one
            reader = await asyncio.to_thread(read_whole, port_of(seat))
            await assert_same_as_the_pool_map(rig, reader)
        assert sorted(reader.ids.values()) == ["r3", "r4", "r5"]
        blocks = {name: await rig.service.kv.GetSequenceBlocks(kv.GetSequenceBlocksRequest(request_id=name))
                  for name in ("r3", "r4", "r5")}  # fmt: skip
        for seq, name in reader.ids.items():
            assert reader.tables[seq] == [block.block_id for block in blocks[name].blocks]
        assert max(flags >> 3 for flags, _, _ in reader.cells) == 3
        await rig.fake.release()
        await asyncio.gather(*runs)


async def test_what_happens_is_told_while_it_happens(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        port, reader = port_of(seat), PoolReader()
        with stream(port) as answer:
            await asyncio.to_thread(read_update, answer, reader)
            await rig.service.generate(prompt_of(40), 2, request_id="first")
            await asyncio.to_thread(read_update, answer, reader)
            await rig.service.generate(prompt_of(40), 2, request_id="second")
            for seed in range(1, 8):
                await rig.service.generate(prompt_of(40, seed), 2)

            def told(kind: str) -> int:
                return sum(event["kind"] == kind for event in reader.events)

            while told("ended") < 9 or not told("evicted"):  # which the next sample may show later
                await asyncio.to_thread(read_update, answer, reader)
        kinds = {event["kind"] for event in reader.events}
        assert {"admitted", "ended", "evicted", "copy"} <= kinds
        hits = [event for event in reader.events if event["kind"] == "admitted" and event["cached"]]
        assert [(event["id"], event["cached"]) for event in hits] == [("second", 39)]
        ends = [event for event in reader.events if event["kind"] == "ended"]
        assert (len(ends), ends[0]["reason"], ends[0]["output"], reader.missed) == (9, "length", 2, 0)


async def test_a_click_is_answered_and_nothing_tells_a_prompt(seat: SchedulerSeat) -> None:
    async with rig_at(seat) as rig:
        secret = prompt_of(13, seed=77)
        (task,) = await rig.together(
            [rig.service.run(request(secret, 40, request_id="a", cache_salt="of-a-tenant"))]
        )
        await rig.hold(after=3)
        await asyncio.sleep(1.5 * INTERVAL_SECONDS)  # a sample may be as old as this
        port = port_of(seat)
        reader = await asyncio.to_thread(read_whole, port)
        (seq,) = reader.ids
        status, _, body = await asyncio.to_thread(ask, port, f"/pool/sequence/{seq}")
        told: dict[str, Any] = json.loads(body)
        assert (status, told["explanation"]["request"]["request_id"]) == (200, "a")
        assert told["explanation"]["text"].startswith("Runs: ")
        assert [entry[0] for entry in told["blocks"]] == reader.tables[seq]
        block = reader.tables[seq][1]
        status, _, text = await asyncio.to_thread(ask, port, f"/pool/block/{block}")
        found = json.loads(text)
        assert found["holders"] == [{"seq": seq, "id": "a", "logical": 1}]
        assert (found["parents"], found["rooted"], len(found["key"])) == ([reader.tables[seq][0]], True, 32)
        for tokens in (secret[:4], secret[4:8]):
            assert ", ".join(map(str, tokens)) not in (body + text).decode()
        assert "of-a-tenant" not in (body + text).decode()
        gone = [
            f"/pool/{path}" for path in ("block/64", "sequence/9999", "block/x", "block/-1", "../x", "none")
        ]
        assert [(await asyncio.to_thread(ask, port, path))[0] for path in gone] == [404] * 6
        assert (await asyncio.to_thread(ask, port, f"/pool/block/{block}", "POST"))[0] == 405
        await rig.fake.release()
        await task


def test_its_files_come_from_here_alone_and_may_run_nothing_else(seat: SchedulerSeat) -> None:
    port = port_of(seat)
    status, headers, _ = ask(port, "/pool")
    assert (status, headers["location"]) == (302, "pool/")
    status, headers, body = ask(port, "/pool/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert (rules["default-src"], rules["script-src"], rules["connect-src"]) == ("'none'", "'self'", "'self'")
    assert headers["x-content-type-options"] == "nosniff"
    wanted, seen = set(re.findall(r'(?:src|href)="([^"]+)"', body.decode())), set[str]()
    while wanted - seen:
        name = (wanted - seen).pop()
        seen.add(name)
        status, headers, data = ask(port, f"/pool/{name}")
        assert status == 200, name
        text = data.decode()
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        wanted |= {path.removeprefix("./") for path in re.findall(r'from "([^"]+)"', text)}
        assert "javascript" in headers["content-type"] or not name.endswith(".js")
    assert len(seen) > 12


def test_only_so_many_may_watch_and_who_leaves_makes_room(seat: SchedulerSeat) -> None:
    """Those of the tests before, and these, are noticed to have gone at the latest when something is sent."""
    port = port_of(seat)
    with ExitStack() as watching:
        for _ in range(MAX_VIEWERS):
            watching.enter_context(admitted(port))
        assert ask(port, "/pool/stream")[0] == 503
    with admitted(port):
        pass


@contextmanager
def admitted(port: int) -> Iterator[http.client.HTTPResponse]:
    """A stream that is let in, after a while perhaps."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with stream(port) as answer:
            if answer.status == 200:
                yield answer
                return
        time.sleep(0.02)
    raise AssertionError("nobody is let in")


def test_another_name_for_this_machine_is_not_let_in(seat: SchedulerSeat) -> None:
    """A foreign site whose name points to 127.0.0.1 must not read the pool through its visitor's browser."""
    port = port_of(seat)
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("", 403), ("127.0.0.1.evil", 403),
                         ("localhost:1", 404), ("[::1]:9450", 404), ("127.0.0.1", 404)):  # fmt: skip
        assert ask(port, "/pool/nothing", Host=host)[0] == status, host
    assert ask(port, "/metrics", Host="evil.example")[0] == 200


def test_with_a_token_only_who_brings_it_may_look(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    flags = ("--metrics-host", "0.0.0.0", "--allow-insecure-bind", "--pool-page-token-file", str(file))
    seat = seat_scheduler(processes, tiny_llama, *flags)
    port = port_of(seat)
    for given in ("", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \u00e9"):
        headers = {"Authorization": given.encode().decode("latin-1")} if given else {}
        for path in ("stream", "block/0", "sequence/0", "nothing"):
            assert ask(port, f"/pool/{path}", **headers)[0] == 401, (given, path)
    assert ask(port, "/pool/")[0] == 200  # holds nothing of the pool
    assert ask(port, "/pool/block/0", Authorization=f"Bearer {TOKEN}", Host="node-7")[0] == 404
    with stream(port, Authorization=f"Bearer {TOKEN}") as answer:
        assert answer.status == 200
    assert TOKEN not in seat.process.log_end(100_000)


def test_it_can_be_off_and_must_be_off_beyond_this_machine_without_a_token(
    processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    off = seat_scheduler(processes, tiny_llama, "--no-pool-page")
    assert [ask(port_of(off), path)[0] for path in ("/pool", "/pool/", "/pool/stream")] == [404] * 3
    assert ask(port_of(off), "/metrics")[0] == 200
    short = tmp_path / "short"
    short.write_text("secret")
    for flags, words in (
        (("--metrics-host", "0.0.0.0", "--allow-insecure-bind"), "--no-pool-page"),
        (("--pool-page-token-file", str(short)), "16 printable"),
        (("--pool-page-token-file", str(tmp_path / "none")), "No such file"),
    ):
        with pytest.raises(ProcessFailed, match=words):
            seat_scheduler(processes, tiny_llama, *flags)
