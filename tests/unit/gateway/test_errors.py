"""What each error of the tree becomes over HTTP."""

import pytest

from gateway.errors import from_octavo
from octavo import errors as e

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
        ("n", "n"),
    ],
)
def test_a_field_has_its_name_over_http(field: str, param: str) -> None:
    made = from_octavo(e.InvalidArgument(f"{field}: is wrong", field=field)).body["error"]
    assert (made["param"], made["message"]) == (param, f"{param}: is wrong")


def test_an_endpoint_may_have_names_of_its_own() -> None:
    refused = e.InvalidArgument("output.logprobs: 21 is out of [0, 20]", field="output.logprobs")
    made = from_octavo(refused, {"logprobs": "top_logprobs"}).body["error"]
    assert made["message"] == "top_logprobs: 21 is out of [0, 20]"


@pytest.mark.parametrize(("delay", "header"), [(0.0, "1"), (1.2, "2"), (30.0, "30")])
def test_a_delay_is_whole_seconds_and_at_least_one(delay: float, header: str) -> None:
    assert from_octavo(e.Unavailable("a", retry_after=delay)).headers == {"retry-after": header}
