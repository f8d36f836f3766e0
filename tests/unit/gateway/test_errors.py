"""What each error of the tree becomes over HTTP."""

import random
import re

import numpy as np
import pytest

from gateway.errors import from_octavo
from octavo import errors as e
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import Limits, ModelFacts, check_generate, check_prompt
from tests.fixtures.fuzz import fill

BAD = "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (e.InvalidArgument("a"), 400, BAD, "invalid_field"),
        (e.InvalidArgument("a", reason="EXCEEDS_MODEL_LEN"), 400, BAD, "context_length_exceeded"),
        (e.Unimplemented("a"), 400, BAD, "unimplemented_field"),
        (e.FailedPrecondition("a", reason="NO_CHAT_TEMPLATE"), 400, BAD, "no_chat_template"),
        (e.NotFound("a"), 404, BAD, "not_found"),
        (e.AlreadyExists("a"), 409, BAD, "request_id_live"),
        (e.ResourceExhausted("a"), 429, "rate_limit_error", "queue_full"),
        (e.Internal("a"), 500, "server_error", "internal"),
        (e.Unavailable("a", reason="DRAINING"), 503, "server_error", "draining"),
        (e.StaleEpoch("a"), 503, "server_error", "stale_epoch"),
        (e.DeadlineExceeded("a"), 504, "server_error", "queue_timeout"),
    ],
)  # fmt: skip
def test_every_leaf_has_a_status(error: e.OctavoError, status: int, kind: str, code: str) -> None:
    made = from_octavo(error)
    assert made.status == status
    assert ("retry-after" in made.headers) == (status in (429, 503))
    assert made.body == {"error": {"message": "a", "type": kind, "param": None, "code": code}}


def test_the_table_above_has_every_leaf() -> None:
    tested = test_every_leaf_has_a_status.pytestmark[0].args[1]  # type: ignore[attr-defined]
    leaves = {leaf for leaf in e.OctavoError.__subclasses__() if leaf.__module__ == e.__name__}
    assert {type(row[0]) for row in tested} == leaves


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("sampling.top_p", "top_p"),
        ("stopping.stop[0]", "stop[0]"),
        ("output.logprobs", "logprobs"),
        ("text", "prompt"),
        ("token_ids[3]", "prompt[3]"),
        ("chat", "messages"),
        ("chat.messages[1].tool_calls_json[0].function", "messages[1].tool_calls[0].function"),
        ("chat.tools_json[0].function", "tools[0].function"),
        ("chat.template_kwargs_json.tools", "chat_template_kwargs.tools"),
        ("response_format.json_schema", "response_format.json_schema"),
        ("response_format.regex", "structured_outputs.regex"),
        ("response_format.ebnf", "structured_outputs.grammar"),
        ("queue_timeout.seconds", "queue_timeout"),
        ("queue_timeout.nanos", "queue_timeout"),
        ("request_id", "X-Request-Id"),
        ("n", "n"),
    ],
)
def test_a_field_has_its_name_over_http(field: str, param: str) -> None:
    made = from_octavo(e.InvalidArgument(f"{field}: is wrong", field=field)).body["error"]
    assert (made["param"], made["message"]) == (param, f"{param}: is wrong")


OF_GRPC = re.compile(
    r"\b(sampling|stopping|output|chat)\.|_json\b|\brequest_id\b|(?<!stop_)\btoken_ids\b|\.(seconds|nanos)\b"
)


def test_no_refusal_of_a_request_tells_a_field_s_name_of_grpc() -> None:
    """Refusals of drawn requests, at every check there is, and those with a field's name in their middle."""
    draw, told = random.Random(5), set()
    for _ in range(4000):
        message = pb.GenerateRequest(text="a")
        fill(draw, message, 0.08)
        if not message.WhichOneof("prompt"):
            message.text = "a"
        try:
            checked = check_generate(message, Limits(), ModelFacts(100, 384))
            check_prompt(
                np.arange(draw.choice([1, 99, 100]), dtype=np.int32), checked, Limits(), ModelFacts(100, 384)
            )
        except e.InvalidArgument as error:
            made = from_octavo(error).body["error"]
            assert not OF_GRPC.search(made["message"]), made["message"]
            assert not OF_GRPC.search(made["param"] or ""), made["param"]
            told.add(made["param"])
    assert len(told) > 25, sorted(told)
    both = e.InvalidArgument(
        "stopping.min_tokens: 5 is above stopping.max_tokens, 3", field="stopping.min_tokens"
    )
    assert from_octavo(both).body["error"]["message"] == "min_tokens: 5 is above max_tokens, 3"
    beside = e.InvalidArgument(
        "stopping.min_tokens: 3 beside response_format.regex, which says when", field="stopping.min_tokens"
    )
    assert from_octavo(beside).body["error"]["message"] == (
        "min_tokens: 3 beside structured_outputs.regex, which says when"
    )


@pytest.mark.parametrize("error", [e.Unavailable("a"), e.StaleEpoch("a")])
def test_503_always_says_when_to_try_again(error: e.OctavoError) -> None:
    """Also where nobody named a delay: the scheduler itself is away."""
    assert from_octavo(error).headers == {"retry-after": "1"}


def test_an_endpoint_may_have_names_of_its_own() -> None:
    refused = e.InvalidArgument("output.logprobs: 21 is out of [0, 20]", field="output.logprobs")
    made = from_octavo(refused, {"logprobs": "top_logprobs"}).body["error"]
    assert made["message"] == "top_logprobs: 21 is out of [0, 20]"


@pytest.mark.parametrize(("delay", "header"), [(0.0, "1"), (1.2, "2"), (30.0, "30")])
def test_a_delay_is_whole_seconds_and_at_least_one(delay: float, header: str) -> None:
    assert from_octavo(e.Unavailable("a", retry_after=delay)).headers == {"retry-after": header}
