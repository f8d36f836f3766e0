"""Server-sent events to the byte, texts of every language, and clients that go away."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.e2e.gateway.door import PROMPT, Door
from tests.e2e.metrics import parsed
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, prompt_of, wanted
from tests.e2e.service import PATIENCE
from tests.fakes.faults import FaultKind

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXTS = {
    "joined emoji": "a 👩‍👩‍👧‍👦 b 🏳️‍🌈",
    "many scripts": "東京 עברית ไทย ಕನ್ನಡ Ω",
    "control characters": 'line\r\n\x00\x1b[0m tab\t " \\ data: [DONE]\n\nevent: x\n\n',
    "separators": "a\u2028b\u2029c\u0085d",
}


def body(max_tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


def chat(max_tokens: int = 8, **more: Any) -> dict[str, Any]:
    turn = {"role": "user", "content": "hi"}
    return {"messages": [turn], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


async def test_the_stream_of_a_completion_to_the_byte(door: Door) -> None:
    ids = door.script("ab")
    *chunks, last, done = await door.events(COMPLETIONS, body(len(ids), model="fake"))
    assert done == "[DONE]"
    head = {key: last[key] for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["object"] == "text_completion"
    assert head["id"].startswith("cmpl-")
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert chunk == {**head, "choices": [choice]}
        assert choice == {"index": 0, "text": choice["text"], "logprobs": None, "finish_reason": None}
        assert choice["text"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert last == {**head, "choices": [end]}


async def test_the_stream_of_a_chat_to_the_byte(door: Door) -> None:
    first, *chunks, last, usage, done = await door.events(
        CHAT, chat(3, stream_options={"include_usage": True})
    )
    assert done == "[DONE]"
    head = {key: last[key] for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["object"] == "chat.completion.chunk"
    plain = {"index": 0, "logprobs": None, "finish_reason": None}
    role = {**plain, "delta": {"role": "assistant", "content": ""}}
    assert first == {**head, "choices": [role], "usage": None}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert chunk == {**head, "choices": [choice], "usage": None}
        assert choice == {**plain, "delta": {"content": choice["delta"]["content"]}}
    end = {**plain, "delta": {}, "finish_reason": "length", "stop_reason": None}
    assert last == {**head, "choices": [end], "usage": None}
    prompt_tokens = usage["usage"]["prompt_tokens"]
    assert usage == {
        **head,
        "choices": [],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("name", TEXTS)
async def test_a17_any_text_arrives_whole_in_a_stream_and_at_once(door: Door, name: str) -> None:
    text = TEXTS[name]
    ids = door.script(text)
    whole = (await door.post(COMPLETIONS, body(len(ids)))).json()
    assert whole["choices"][0]["text"] == text
    events = await door.events(COMPLETIONS, body(len(ids)))
    pieces = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


async def test_a17_a_text_cut_inside_a_character_ends_with_a_replacement(door: Door) -> None:
    ids = door.script("x👩‍👩‍👧")
    texts = []
    for stream in (False, True):
        if stream:
            events = await door.events(COMPLETIONS, body(len(ids) - 1))
            texts.append("".join(event["choices"][0]["text"] for event in events[:-1]))
        else:
            answer = await door.post(COMPLETIONS, body(len(ids) - 1))
            texts.append(answer.json()["choices"][0]["text"])
    assert texts[0] == texts[1] == door.text.decode(ids[:-1])
    assert texts[0].endswith("\ufffd")


async def test_prompts_of_any_script_reach_the_tokenizer_as_they_are(door: Door) -> None:
    for text in TEXTS.values():
        answer = (await door.post("/tokenize", {"prompt": text})).json()
        assert answer["tokens"] == door.text.encode(text).tolist()
        back = await door.post("/detokenize", {"tokens": answer["tokens"]})
        assert back.json() == {"prompt": text}


async def plans_after(door: Door, leave: Any) -> int:
    """Steps that the worker still got after a client left. The rest of the text would be 900 steps."""
    await door.rig.fake.wait_for_plans(len(door.rig.fake.plans) + 5)
    await door.rig.hold()
    await leave()
    seen = len(door.rig.fake.plans)
    await door.idle()
    await door.rig.fake.release()
    return len(door.rig.fake.plans) - seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a02_a_client_that_disconnects_leaves_within_a_step(
    door: Door, path: str, stream: bool
) -> None:
    counted = f'octavo_gateway_requests_total{{code="disconnected",route="{path}"}}'
    before = parsed((await door.http.get("/metrics")).text)[counted]
    given = chat(150, stream=stream) if path == CHAT else body(150, stream=stream)
    call = asyncio.create_task(door.post(path, given))

    async def leave() -> None:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    # It leaves while steps are in flight, of which some may be on their way; nothing is planned after them.
    assert await plans_after(door, leave) <= 4
    assert (await door.post(COMPLETIONS, body(2))).status_code == 200
    async with asyncio.timeout(PATIENCE):
        while parsed((await door.http.get("/metrics")).text)[counted] <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a02_all_prompts_of_a_call_leave_with_their_client(door: Door) -> None:
    prompts = [prompt_of(5, seed) for seed in range(4)]
    call = asyncio.create_task(door.post(COMPLETIONS, body(40, stream=True) | {"prompt": prompts}))

    async def leave() -> None:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    assert await plans_after(door, leave) <= 4


async def test_a02_a_client_that_leaves_while_it_waits_is_forgotten(door: Door) -> None:
    door.rig.fake.hold()
    calls = [
        asyncio.create_task(door.post(COMPLETIONS, body(4) | {"prompt": prompt_of(5, n)})) for n in range(20)
    ]
    async with asyncio.timeout(PATIENCE):
        while (stats := await door.rig.service.stats()).running_requests + stats.waiting_requests < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await door.rig.fake.release()
    await door.idle()


async def test_a22_a_reader_that_stops_holds_nobody_up_and_costs_no_memory(door: Door) -> None:
    """A client that takes nothing: the gateway stops reading too, and the scheduler merges what waits."""
    gateway = psutil.Process(door.process.pid)
    before = gateway.memory_info().rss
    writers = []
    request = json.dumps(body(200, stream=True, return_token_ids=True)).encode()
    host, _, port = door.process.address.rpartition(":")
    for _ in range(20):
        _reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + f"content-length: {len(request)}\r\n\r\n".encode() + request)
        writers.append(writer)
    prompt = prompt_of(9)
    answer = (await door.post(COMPLETIONS, body(20, return_token_ids=True) | {"prompt": prompt})).json()
    assert answer["choices"][0]["token_ids"] == wanted(prompt, 20)
    assert gateway.memory_info().rss - before < 32 << 20
    for writer in writers:
        writer.transport.abort()
    await door.idle()


async def test_a22_a_reader_that_pauses_misses_nothing(door: Door) -> None:
    """What comes meanwhile waits in its connection, then merged at the scheduler."""
    prompt = prompt_of(9)
    content = json.dumps(body(200, stream=True, return_token_ids=True) | {"prompt": prompt}).encode()
    host, _, port = door.process.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 8)
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    )
    writer.write(head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content)
    await door.rig.fake.wait_for_plans(1)
    await door.idle()
    answer = await reader.read()
    writer.close()
    events = [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]
    tokens = [token for event in events for token in event["choices"][0]["token_ids"]]
    assert tokens == wanted(prompt, 200)
    assert b"data: [DONE]" in answer


async def test_a02_all_sequences_of_a_choice_leave_with_their_client(door: Door) -> None:
    call = asyncio.create_task(door.post(CHAT, chat(50, n=3)))

    async def leave() -> None:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    assert await plans_after(door, leave) <= 4


async def test_a_client_that_leaves_inside_its_body_or_pipelines_costs_nothing(door: Door) -> None:
    host, _, port = door.process.address.rpartition(":")
    content = json.dumps(body(2)).encode()
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    ).encode()
    for sent in (head, head + content[:5], head[:30]):
        _reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await writer.drain()
        writer.transport.abort()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(3 * (head + content) + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answers = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.count(b'"finish_reason":"length"') == 3
    await door.idle()


async def test_a_row_that_fails_ends_its_stream_with_an_error_event(door: Door) -> None:
    door.rig.fake.step_delay = 0.02
    call = asyncio.create_task(door.events(COMPLETIONS, body(150)))
    await door.rig.fake.wait_for_plans(len(door.rig.fake.plans) + 8)
    door.rig.fake.inject(FaultKind.FAIL_ROW)
    first, *_, last = await call
    assert first["choices"][0]["text"]
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == "sequence_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_row_that_fails_before_its_first_token_is_an_http_error(door: Door, stream: bool) -> None:
    door.rig.fake.inject(FaultKind.FAIL_ROW)
    answer = await door.post(COMPLETIONS, body(8, stream=stream))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "sequence_failed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "param"),
    [({"regex": "[0-9]+"}, "structured_outputs.regex"), ({"json": {"type": "object"}}, "response_format")],
)
async def test_a_grammar_that_fails_in_a_step_is_the_requests_own_fault(
    door: Door, stream: bool, given: dict[str, Any], param: str
) -> None:
    await door.rig.fake.restart(replace(SMALL, eos_token_ids=(2,)))
    await door.rig.service.wait_ready(False)
    await door.rig.service.wait_ready()
    door.rig.fake.inject(FaultKind.FAIL_GRAMMAR)
    answer = await door.post(COMPLETIONS, body(8, stream=stream, structured_outputs=given))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "grammar_failed")
    assert error["param"].startswith(param)
    assert error["message"].startswith(f"{error['param']}: the grammar takes more work")


async def test_an_aborted_answer_keeps_its_text(door: Door) -> None:
    call = asyncio.create_task(door.events(COMPLETIONS, body(150)))
    await door.rig.fake.wait_for_plans(len(door.rig.fake.plans) + 5)
    await door.rig.hold()
    summaries = (await door.rig.service.stats()).requests
    (request_id,) = [summary.request_id for summary in summaries]
    assert request_id.startswith("cmpl-")
    assert await door.rig.abort(request_id) == [request_id]
    *_, end, done = await call
    assert end["choices"][0]["finish_reason"] == "abort"
    assert done == "[DONE]"
    await door.rig.fake.release()


async def test_a25_a_killed_worker_delays_a_stream_and_changes_nothing(door: Door) -> None:
    door.rig.fake.step_delay = 0.01
    prompt = prompt_of(11)
    call = asyncio.create_task(door.events(COMPLETIONS, body(60, return_token_ids=True) | {"prompt": prompt}))
    await door.rig.fake.wait_for_plans(len(door.rig.fake.plans) + 5)
    await door.rig.fake.restart()
    events = await call
    tokens = [token for event in events[:-1] for token in event["choices"][0]["token_ids"]]
    assert tokens == wanted(prompt, 60)


async def test_sigterm_lets_a_stream_finish(door: Door, processes: Processes, tiny_llama: Path) -> None:
    own = processes.gateway(door.rig.seat.process.address)
    door.rig.fake.step_delay = 0.01
    stream = await door.http.send(
        door.http.build_request("POST", f"http://{own.address}{COMPLETIONS}", json=body(60, stream=True)),
        stream=True,
    )
    own.popen.terminate()
    received = await stream.aread()
    assert received.endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(own.popen.wait, PATIENCE) == 0
