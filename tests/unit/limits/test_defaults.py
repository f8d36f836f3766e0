"""A35: sampling values of the model folder are defaults, never more, and bad ones stop the start."""

import pytest

from octavo.errors import FailedPrecondition
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits import Limits, fill_in, sampling_defaults


def test_a35_what_a_client_sent_is_never_replaced() -> None:
    defaults = sampling_defaults({"temperature": 0.5, "top_k": 7}, Limits())
    request = pb.GenerateRequest(sampling=pb.SamplingOptions(temperature=1.0, top_p=0.25))
    fill_in(request, defaults)
    assert request.sampling == pb.SamplingOptions(temperature=1.0, top_p=0.25, top_k=7)


def test_a35_without_values_a_request_stays_as_it_is() -> None:
    request = pb.GenerateRequest(text="a")
    fill_in(request, sampling_defaults({}, Limits()))
    assert request == pb.GenerateRequest(text="a")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "generation_config.json: temperature: -1.0 is out of [0, 100]"),
        ({"top_k": -1}, "generation_config.json: top_k: -1 is out of [0, 1048576]"),
        ({"top_k": 0.5}, "generation_config.json: top_k: 0.5 is no whole number, must be in [0, 1048576]"),
        ({"top_p": 0.0}, "generation_config.json: top_p: 0.0 is out of (0, 1]"),
    ],
)
def test_a35_a_value_that_no_request_may_have_is_named(values: dict[str, float], message: str) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        sampling_defaults(values, Limits())
    assert (refused.value.message, refused.value.reason) == (message, "BAD_MODEL_FOLDER")
