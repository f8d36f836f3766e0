"""The synchronous client against a stub scheduler."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from octavo_client import Client, types
from octavo_client import errors as e
from octavo_client.types import (
    Accepted,
    Delta,
    Finished,
    FinishReason,
    GenerateOptions,
    Request,
    RequestFailed,
)
from tests.unit.client.stub import REFUSALS, StubScheduler


@pytest.fixture
def client(stub: StubScheduler) -> Iterator[Client]:
    with Client(stub.address) as one:
        yield one


def requests(*prompts: str) -> list[Request]:
    return [Request(prompt=prompt, request_id=f"r{number}") for number, prompt in enumerate(prompts)]


def test_a_stream_is_accepted_deltas_and_finished(client: Client) -> None:
    events = list(client.stream("to be or", request_id="x"))
    assert events[0] == Accepted("x", 3, 0)
    assert [event.text for event in events if isinstance(event, Delta)] == ["to ", "be ", "or "]
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.stop, end.stop_token_id) == (FinishReason.STOP, "END", None)
    assert end.usage.completion_tokens == 3


def test_generate_answers_at_once(client: Client) -> None:
    completion = client.generate(messages=[{"role": "user", "content": "to be"}])
    assert completion.text == "to be"
    assert completion.token_ids == (0, 1)
    assert completion.finish_reason is FinishReason.STOP


def test_options_arrive_in_their_fields(client: Client, stub: StubScheduler) -> None:
    client.generate(
        token_ids=[5, 6], temperature=0.0, top_k=7, seed=0, max_tokens=9, stop=["a", "b"], stop_token_ids=[3],
        logit_bias={4: -1.5}, ignore_eos=True, use_prefix_cache=False, cache_salt="me", queue_timeout=1.5,
        priority=-3, skip_special_tokens=False, n=2,
    )  # fmt: skip
    sent = stub.seen[0]
    assert list(sent.token_ids.ids) == [5, 6]
    assert sent.sampling.HasField("temperature")
    assert sent.sampling.HasField("seed")
    assert not sent.sampling.HasField("top_p")
    assert (sent.sampling.top_k, dict(sent.sampling.logit_bias)) == (7, {4: -1.5})
    assert (list(sent.stopping.stop), list(sent.stopping.stop_token_ids)) == (["a", "b"], [3])
    assert (sent.stopping.max_tokens, sent.stopping.ignore_eos) == (9, True)
    assert sent.output.HasField("skip_special_tokens")
    assert sent.HasField("use_prefix_cache")
    assert not sent.use_prefix_cache
    assert (sent.cache_salt, sent.priority, sent.n) == ("me", -3, 2)
    assert sent.queue_timeout.ToNanoseconds() == 1_500_000_000


EVERY: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 1.0,
    "frequency_penalty": 1.0, "repetition_penalty": 1.1, "seed": 0, "logit_bias": {4: 1.0}, "max_tokens": 9,
    "min_tokens": 1, "stop": ["a"], "stop_token_ids": [3], "ignore_eos": True,
    "include_stop_str_in_output": True, "logprobs": 0, "prompt_logprobs": 0,
    "skip_special_tokens": False, "token_ids_only": True, "json_schema": "{}", "n": 2,
    "priority": 1, "cache_salt": "me", "use_prefix_cache": False, "queue_timeout": 1.5, "tools": [{}],
    "chat_template_kwargs": {}, "add_generation_prompt": False,
}  # fmt: skip
INSTEAD = {"text", "token_ids", "response_format.regex", "response_format.ebnf"}
"""Of a oneof whose other field is given."""


def test_every_field_of_a_request_can_be_given(client: Client, stub: StubScheduler) -> None:
    assert set(EVERY) | {"regex", "ebnf"} == set(GenerateOptions.__dataclass_fields__)
    client.generate(messages=[{"role": "user", "content": "a"}], request_id="r", **EVERY)
    sent, missing = stub.seen[0], set()
    for field in sent.DESCRIPTOR.fields:
        nested = field.message_type is not None and field.name not in ("queue_timeout", "token_ids")
        inner = getattr(sent, field.name)
        set_here = {found.name for found, _ in (inner if nested else sent).ListFields()}
        if nested:
            names = [leaf.name for leaf in field.message_type.fields]
            missing |= {f"{field.name}.{name}" for name in names if name not in set_here}
        elif field.name not in set_here:
            missing.add(field.name)
    assert missing == INSTEAD


def test_what_is_not_given_is_not_sent(client: Client, stub: StubScheduler) -> None:
    client.generate("hello")
    assert [field.name for field, _ in stub.seen[0].ListFields()] == ["text"]


@pytest.mark.parametrize("word", sorted(REFUSALS))
def test_a_refusal_keeps_its_class_reason_field_and_delay(client: Client, word: str) -> None:
    """A20: the client can tell what was wrong from the error itself."""
    told = REFUSALS[word]
    for call in (lambda: list(client.stream(word)), lambda: [client.generate(word)]):
        with pytest.raises(type(told)) as caught:
            call()
        got = caught.value
        assert (got.message, got.reason, got.field) == (told.message, told.reason, told.field)
        assert got.retry_after == told.retry_after


def test_a_stream_that_breaks_says_where(client: Client, stub: StubScheduler) -> None:
    with pytest.raises(e.ConnectionFailed, match=stub.address):
        list(client.stream("a break"))


@pytest.mark.parametrize(
    "told",
    [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
        "ipv4:127.0.0.1:1: Failed to connect to remote host: connect: Connection refused (111)",
    ],
)
def test_what_grpc_says_of_a_refused_connection_is_told_alike(told: str) -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), told)
    message = e.from_call(error, "127.0.0.1:1").message
    assert message == "no answer from 127.0.0.1:1 (Connection refused); is `octavo serve` running?"


def test_nobody_there_is_one_line() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(e.ConnectionFailed) as caught:
        client.generate("x")
    assert str(caught.value) == "no answer from 127.0.0.1:1 (Connection refused); is `octavo serve` running?"


def test_leaving_a_stream_cancels_it(client: Client, stub: StubScheduler) -> None:
    """A02: the server hears at once that nobody reads any more."""
    with client.stream("endless") as stream:
        next(stream)
    assert stub.cancelled.wait(10)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "token_ids": [1]}, "prompt"),
        ({"prompt": 5}, "text"),
        ({"token_ids": [1, -1]}, "token_ids"),
        ({"token_ids": ["a"]}, "token_ids"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "names": "b"}]}, "messages[0].names"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": "f()"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": 0}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": 5}, "tools"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [float("nan")]}, "tools"),
        (
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": []},
            "chat_template_kwargs",
        ),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"prompt": "a", "top_k": -5}, "top_k"),
        ({"prompt": "a", "max_tokens": 2**32}, "max_tokens"),
        ({"prompt": "a", "seed": "x"}, "seed"),
        ({"prompt": "a", "stop": "END"}, "stop"),
        ({"prompt": "a", "logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"prompt": "a", "queue_timeout": float("nan")}, "queue_timeout"),
        ({"prompt": "a", "regex": "a", "ebnf": "b"}, "ebnf"),
        ({"prompt": "a", "ignore_eos": 0}, "ignore_eos"),
        ({"prompt": "a", "use_prefix_cache": 1}, "use_prefix_cache"),
        ({"prompt": "a", "skip_special_tokens": 2}, "skip_special_tokens"),
        ({"prompt": "a", "token_ids_only": 0.0}, "token_ids_only"),
        ({"prompt": "a", "priority": False}, "priority"),
        ({"prompt": "a", "top_k": False}, "top_k"),
        ({"prompt": "a", "temperature": True}, "temperature"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "n": True}, "n"),
    ],
)
def test_what_fits_no_field_is_refused_before_it_is_sent(
    client: Client, stub: StubScheduler, given: dict[str, object], field: str
) -> None:
    """A20."""
    with pytest.raises(e.InvalidArgument) as caught:
        client.stream(**given)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert not stub.seen


def test_a_batch_gives_every_event_with_its_request(client: Client) -> None:
    texts: dict[str, str] = {}
    ended = []
    for request_id, event in client.batch(requests("a b", "c", "d e f")):
        if isinstance(event, Delta):
            texts[request_id] = texts.get(request_id, "") + event.text
        elif isinstance(event, Finished):
            ended.append(request_id)
    assert texts == {"r0": "a b ", "r1": "c ", "r2": "d e f "}
    assert sorted(ended) == ["r0", "r1", "r2"]


def test_a_refused_request_of_a_batch_fails_alone(client: Client) -> None:
    unfit = Request(prompt="x", options=GenerateOptions(top_k=-1), request_id="unfit")
    events = list(client.batch([*requests("full", "fine", "long"), unfit]))
    failed = {name: event.error for name, event in events if isinstance(event, RequestFailed)}
    assert sorted(failed) == ["r0", "r2", "unfit"]
    assert failed["r2"].field == "max_tokens"
    assert isinstance(failed["r0"], e.ResourceExhausted)
    assert failed["r0"].reason == "QUEUE_FULL"
    assert failed["unfit"].message.startswith("top_k: -1")
    assert [name for name, event in events if isinstance(event, Finished)] == ["r1"]


def test_a_batch_keeps_its_window(client: Client, stub: StubScheduler) -> None:
    done = [
        name
        for name, event in client.batch(requests(*"abcdefgh"), max_in_flight=2)
        if isinstance(event, Finished)
    ]
    assert len(done) == 8
    assert stub.most_open <= 2


def test_a_batch_raises_what_its_requests_raise(client: Client) -> None:
    def broken() -> Iterator[Request]:
        yield from requests("a", "b")
        raise ValueError("line 3 is not JSON")

    with pytest.raises(ValueError, match="line 3"):
        list(client.batch(broken()))


def test_an_id_twice_in_flight_is_refused(client: Client) -> None:
    twice = [Request(prompt="a", request_id="same"), Request(prompt="b", request_id="same")]
    with pytest.raises(e.AlreadyExists, match="same"):
        list(client.batch(twice))


def test_a_batch_that_breaks_knows_what_was_open(client: Client) -> None:
    batch = client.batch(requests("hangup"))
    with pytest.raises(e.ConnectionFailed):
        list(batch)
    assert batch.open_ids == ("r0",)


def test_the_small_calls(client: Client) -> None:
    assert client.abort(["live1", "dead"]) == ("live1",)
    assert client.tokenize("a bb ccc") == (1, 2, 3)
    assert client.detokenize([7, 8]) == "7 8"
    assert client.model_info().eos_token_ids == (2, 3)
    with pytest.raises(e.InvalidArgument):
        client.tokenize()


def test_stats_pool_map_and_block_table(client: Client) -> None:
    stats = client.stats(requests=True)
    assert (stats.num_blocks, stats.saved_blocks, stats.worker_epoch) == (8, 3, "00ff")
    assert stats.requests[0].state == "preempted"
    assert client.stats().requests == ()
    pool = client.pool_map()
    assert (pool.state.tolist(), pool.ref_count.tolist(), pool.fill.tolist()) == (
        [0, 1, 2],
        [0, 0, 2],
        [0, 4, 3],
    )
    assert client.sequence_blocks("a").blocks[0].block_id == 2
    with pytest.raises(e.NotFound):
        client.sequence_blocks("b")


def test_an_explanation_says_what_is_missing(client: Client) -> None:
    found = client.explain("a")
    assert (found.wait_reasons, found.missing_blocks, found.ahead) == (("no_blocks",), 2, 1)
    assert (found.next_evicted, found.next_victim, found.request.state) == ((7,), "b", "waiting")
    with pytest.raises(e.NotFound):
        client.explain("b")


def test_wait_ready_waits_for_a_worker(client: Client, stub: StubScheduler) -> None:
    client.wait_ready(5)
    stub.serving(False)
    assert not client.is_ready()
    with pytest.raises(e.NotReady, match="no worker is ready"):
        client.wait_ready(0.2)


def test_wait_ready_waits_for_a_scheduler() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(e.NotReady, match="nobody answers there"):
        client.wait_ready(0.2)


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_SERVER", "unix:/tmp/x")
    with Client() as client:
        assert client.target == "unix:/tmp/x"
    monkeypatch.delenv("OCTAVO_SERVER")
    with Client() as client:
        assert client.target == "127.0.0.1:7450"


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Request(prompt="a").prompt = "b"  # type: ignore[misc]
    assert types.OptionFields.__annotations__.keys() == GenerateOptions.__annotations__.keys()
