"""Bodies, paths and a scheduler that is not there: the right status, and OpenAI's error body."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from scheduler_svc.text import TextModel
from tests.e2e.gateway.answers import COMPLETIONS, GOOD, error_of, works
from tests.e2e.gateway.door import Door, door_at, rest, url_of
from tests.e2e.processes import Processes
from tests.e2e.rig import SMALL, prompt_of, rig_at, seat_scheduler
from tests.e2e.service import PATIENCE

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'"text"', "the body must be a JSON object"),
        (b"\xff\xfe{}", "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b'{"prompt": ' + b"[" * 150 + b"]" * 150 + b"}", "prompt: must be a string"),
        (b'{"prompt": "\\ud800"}', "the body is not valid JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature: nan is out of [0, 100]"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature: inf is out of [0, 100]"),
        (b'{"prompt": "a", "n": 1' + b"0" * 5000 + b"}", "the body is not valid JSON"),
        (b'{"prompt": "a", "n": 1' + b"0" * 100 + b"}", "n: 1000"),
        (b'{"prompt": "a", "n": 1.5}', "n: 1.5 is no whole number, must be at least 1"),
        (b'{"prompt": "a", "n": true}', "n: True is no whole number, must be at least 1"),
        (b'{"prompt": "a", "n": "1"}', "n: '1' is no whole number, must be at least 1"),
        (b'{"prompt": "a", "top_p": "1"}', "top_p: '1' is no number, must be in (0, 1]"),
        (b'{"prompt": "a", "stop_token_ids": [1.5]}', "stop_token_ids[0]: 1.5 is no whole number"),
        (b'{"prompt": "a", "logit_bias": {"5": "x"}}', "logit_bias[5]: 'x' is no number, must be in [-100, "),
        (b'{"prompt": "a", "seed": "x"}', "seed: 'x' is no whole number, must be in [-922337203685477580"),
        (b'{"prompt": "a", "seed": 18446744073709551616}', "seed: 18446744073709551616 is out of [-92233720"),
        (b'{"prompt": "a", "top_k": 1.5}', "top_k: 1.5 is no whole number, must be in [-1, 1048576]"),
        (b'{"prompt": "a", "top_k": -2}', "top_k: -2 is out of [-1, 1048576]"),
        (b'{"prompt": "a", "top_k": 1048577}', "top_k: 1048577 is out of [-1, 1048576]"),
        (b'{"prompt": "a", "best_of": true}', "best_of: should be 1"),
        (b'{"prompt": "a", "best_of": 1.0}', "best_of: should be 1"),
        (b'{"prompt": "a", "echo": 0}', "echo: should be a valid boolean"),
        (b'{"prompt": "a", "echo": true}', "echo: should be false"),
        (b'{"prompt": "a", "store": 0}', "store: should be a valid boolean"),
        (b'{"prompt": "a", "min_tokens": 3, "max_tokens": 2}', "min_tokens: 3 is above max_tokens, 2"),
        (b'{"prompt": "a", "queue_timeout": 86401}', "queue_timeout: 86401.0 s is out of (0, 86400]"),
        (b'{"prompt": "a", "queue_timeout": 0}', "queue_timeout: 0.0 s is out of (0, 86400]"),
        (b'{"prompt": []}', "prompt: 0 prompts, must be 1 to 128"),
        (b'{"prompt": [[]]}', "prompt: is empty"),
        (b'{"prompt": [-1]}', "prompt[0]: -1 is out of [0, 2147483647]"),
        (b'{"prompt": [1, "a"]}', "prompt: must be a string"),
        (b'{"prompt": "a", "stream_options": {}}', "stream_options: is only for stream: true"),
        (b'{"prompt": "a", "functions": []}', "functions: is no parameter that is served here"),
        (b'{"prompt": "a", "tools": []}', "tools: is no parameter that is served here"),
    ],
)  # fmt: skip
async def test_a20_a_bad_body_is_400_and_the_next_request_works(
    door: Door, content: bytes, words: str
) -> None:
    answer = await door.http.post(COMPLETIONS, content=content, headers=JSON)
    assert answer.status_code == 400
    assert error_of(answer)["message"].startswith(words)
    await works(door)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {"json": {"minItems": 10**9}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "("}}, "structured_outputs.grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"minItems": 10**9}}}},
            "response_format.json_schema",
        ),
    ],
)
async def test_a_grammar_is_refused_under_the_name_that_it_came_by(
    door: Door, body: dict[str, Any], param: str
) -> None:
    answer = await door.post(COMPLETIONS, {**GOOD, **body})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert error_of(answer)["message"].startswith(f"{param}: ")


async def test_129_prompts_are_too_many(door: Door) -> None:
    answer = await door.post(COMPLETIONS, {**GOOD, "prompt": ["a"] * 129})
    assert answer.status_code == 400
    assert error_of(answer)["message"] == "prompt: 129 prompts, must be 1 to 128"


async def test_a_refused_prompt_among_others_refuses_the_call_and_leaves_nothing(door: Door) -> None:
    for stream in (False, True):
        answer = await door.post(COMPLETIONS, {**GOOD, "prompt": ["good", "", "good"], "stream": stream})
        assert answer.status_code == 400
        assert error_of(answer)["message"] == "prompt: is empty"
        await door.idle()


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_a_body_that_is_not_said_to_be_json_is_415(door: Door, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = await door.http.post(COMPLETIONS, content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert "application/json" in error_of(answer)["message"]


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip", "x" * 500])
async def test_a_compressed_body_is_415_and_names_the_header(door: Door, coding: str) -> None:
    body = gzip.compress(json.dumps(GOOD).encode())
    answer = await door.http.post(COMPLETIONS, content=body, headers=JSON | {"content-encoding": coding})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    assert error_of(answer)["message"] == (
        f"content-encoding is {coding[:64]!r}, must be identity: bodies are not decompressed"
    )
    plain = json.dumps(GOOD).encode()
    answer = await door.http.post(COMPLETIONS, content=plain, headers=JSON | {"content-encoding": "identity"})
    assert answer.status_code == 200


async def test_a20_a_body_past_the_limit_is_413_whether_it_says_its_length_or_not(door: Door) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * (1 << 19)

    declared = await door.http.post(COMPLETIONS, content=b" " * (17 << 20), headers=JSON)
    sent = await door.http.post(COMPLETIONS, content=chunks(), headers=JSON)
    assert declared.status_code == sent.status_code == 413
    assert error_of(sent)["message"] == f"the body has more than {16 << 20} bytes"
    await works(door)


async def test_a_large_prompt_within_the_body_limit_is_refused_by_the_scheduler(door: Door) -> None:
    answer = await door.post(COMPLETIONS, {**GOOD, "prompt": "x " * 3_000_000})
    assert answer.status_code == 400
    assert error_of(answer)["message"] == "prompt: 6000000 bytes, the limit is 4194304"
    long = await door.post(COMPLETIONS, {**GOOD, "prompt": [5] * SMALL.max_model_len})
    assert error_of(long)["code"] == "context_length_exceeded"
    pool = await door.post(COMPLETIONS, {**GOOD, "max_tokens": SMALL.num_blocks * SMALL.block_size})
    assert (pool.status_code, error_of(pool)["code"]) == (400, "exceeds_kv_pool")
    await works(door)


async def test_a_body_that_never_ends_is_408(door: Door, processes: Processes, text: TextModel) -> None:
    own = processes.gateway(door.rig.seat.process.address, "--body-seconds", "2")
    host, _, port = own.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: 9\r\n\r\n{")
    answer = await rest(reader)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body was not complete after 2 s" in answer
    writer.close()


async def test_unknown_paths_and_methods_have_an_error_body_too(door: Door) -> None:
    assert (await door.http.get("/v1/embeddings")).status_code == 404
    error_of(await door.http.get("/"))
    wrong = await door.http.get(COMPLETIONS)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    error_of(wrong)


async def test_another_model_is_404_by_name(door: Door) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await door.openai.completions.create(model="gpt-4", prompt="a")
    assert refused.value.code == "model_not_found"
    assert refused.value.param == "model"


async def test_the_client_s_id_is_part_of_the_answer_s(door: Door) -> None:
    headers = {"x-request-id": "mine-1"}
    answer = await door.post(COMPLETIONS, GOOD, headers=headers)
    assert answer.json()["id"] == answer.headers["x-request-id"] == "cmpl-mine-1"
    long = await door.post(COMPLETIONS, GOOD, headers={"x-request-id": "x" * 65})
    assert "x" * 65 not in long.json()["id"]
    door.rig.fake.hold()
    first = asyncio.create_task(door.post(COMPLETIONS, GOOD, headers=headers))
    async with asyncio.timeout(PATIENCE):
        while not (await door.rig.service.stats()).requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    twice = await door.post(COMPLETIONS, GOOD, headers=headers)
    assert (twice.status_code, error_of(twice)["code"]) == (409, "request_id_live")
    assert error_of(twice)["message"] == "X-Request-Id: 'cmpl-mine-1' is live"
    assert error_of(twice)["param"] == "X-Request-Id"
    await door.rig.fake.release()
    assert (await first).status_code == 200


async def test_a_full_queue_is_429_with_retry_after(
    processes: Processes, tiny_llama: Path, text: TextModel
) -> None:
    seat = seat_scheduler(processes, tiny_llama, "--max-queue-requests", "1")
    gateway = processes.gateway(seat.process.address)
    async with rig_at(seat) as rig, door_at(gateway, rig, text) as door:
        rig.fake.hold()
        calls = [
            asyncio.create_task(
                door.post(COMPLETIONS, {**GOOD, "prompt": prompt_of(5, n), "stream": n % 2 == 0})
            )
            for n in range(30)
        ]
        async with asyncio.timeout(PATIENCE):
            while True:
                stats = await rig.service.stats()
                done = [call for call in calls if call.done()]
                if len(done) + stats.running_requests + stats.waiting_requests == len(calls):
                    break
                await asyncio.sleep(0.01)
        waiting = [call for call in calls if call not in done]
        assert done
        await rig.fake.release()
        for call in done:
            answer = call.result()
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            assert error_of(answer)["type"] == "rate_limit_error"
            assert error_of(answer)["code"] == "queue_full"
        assert {(await call).status_code for call in waiting} == {200}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_which_one_prompt_finds_the_queue_full_is_429_and_leaves_nothing(
    processes: Processes, tiny_llama: Path, text: TextModel, stream: bool
) -> None:
    seat = seat_scheduler(processes, tiny_llama, "--max-queue-requests", "8")
    gateway = processes.gateway(seat.process.address)
    async with rig_at(seat) as rig, door_at(gateway, rig, text) as door:
        rig.fake.hold()
        prompts = [prompt_of(5, seed) for seed in range(128)]
        answer = await door.post(COMPLETIONS, {**GOOD, "prompt": prompts, "stream": stream})
        assert (answer.status_code, error_of(answer)["code"]) == (429, "queue_full")
        assert answer.headers["retry-after"] == "1"
        await rig.fake.release()
        await door.idle()
        await works(door)


async def test_a23_a_queue_timeout_is_504(door: Door) -> None:
    door.rig.fake.hold()
    first = asyncio.create_task(door.post(COMPLETIONS, {**GOOD, "max_tokens": 40, "ignore_eos": True}))
    await door.rig.fake.wait_for_plans(2)  # both steps in flight are out now: the next request has to wait
    for stream in (False, True):
        late = await door.post(
            COMPLETIONS, {**GOOD, "prompt": "other", "queue_timeout": 0.2, "stream": stream}
        )
        assert (late.status_code, error_of(late)["code"]) == (504, "queue_timeout")
    await door.rig.fake.release()
    assert (await first).status_code == 200


async def test_without_a_scheduler_everything_is_503_and_health_says_so(
    processes: Processes, text: TextModel
) -> None:
    gateway = processes.gateway("127.0.0.1:1")
    async with httpx2.AsyncClient(base_url=url_of(gateway), timeout=PATIENCE) as http:
        for answer in (
            await http.get("/health"),
            await http.get("/v1/models"),
            await http.post(COMPLETIONS, json=GOOD),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert error_of(answer)["type"] == "server_error"
        assert (await http.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"no http at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /v1/models HTTP/9.9\r\nhost:\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_in_the_same_shape(door: Door, sent: bytes) -> None:
    host, _, port = door.process.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    head, _, content = (await rest(reader)).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode().split("\r\n")
    assert status == "HTTP/1.1 400 Bad Request"
    assert "content-type: application/json" in headers
    assert f"content-length: {len(content)}" in headers
    message = "the request is not valid HTTP/1.1"
    told = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    assert json.loads(content) == {"error": told}
    await works(door)


async def test_health_follows_the_worker(door: Door) -> None:
    assert (await door.http.get("/health")).json() == {"status": "ok"}
    await door.rig.fake.die()
    await door.rig.service.wait_ready(False)
    gone = await door.http.get("/health")
    assert gone.status_code == 503
    assert error_of(gone)["message"] == "the scheduler is up, but no worker is ready"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens: 0 is out of [1, 1048576]"),
        ({"max_completion_tokens": -1}, "max_completion_tokens: -1 is out of [1, 1048576]"),
        (
            {"max_completion_tokens": "5"},
            "max_completion_tokens: '5' is no whole number, must be in [1, 1048576]",
        ),
        ({"max_tokens": 0}, "max_tokens: 0 is out of [1, 1048576]"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: 21 is out of [0, 20]"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs: -1 is out of [0, 20]"),
    ],
)
async def test_a20_a_chat_is_refused_under_the_name_that_was_given(
    door: Door, given: dict[str, Any], said: str
) -> None:
    messages = [{"role": "user", "content": "a"}]
    answer = await door.post("/v1/chat/completions", {"messages": messages, **given})
    assert answer.status_code == 400
    assert error_of(answer)["message"] == said
    assert error_of(answer)["param"] == said.partition(": ")[0]


async def test_a20_ids_to_detokenize_are_refused_with_their_limit(door: Door) -> None:
    for ids, said in (
        ([-1], "tokens[0]: -1 is out of ["),
        ([5, 1.5], "tokens[1]: 1.5 is no whole number, must be in ["),
    ):
        answer = await door.post("/detokenize", {"tokens": ids})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "tokens")
        assert error_of(answer)["message"].startswith(said)
