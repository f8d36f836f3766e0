"""What is taken from a caller's trace context, and what is refused as an endpoint."""

import pytest

from octavo import trace_context
from octavo.trace_context import accepted, checked_endpoint, current_traceparent, outgoing

GOOD = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.mark.parametrize(
    "value",
    [None, b"x", "", GOOD[:-1], GOOD.upper(), GOOD.replace("0123456789abcdef-", f"{0:016x}-"), f"{GOOD}\n"],
)
def test_what_is_not_well_formed_is_dropped(value: object) -> None:
    assert accepted(value) == ""


def test_a_well_formed_one_goes_on() -> None:
    token = current_traceparent.set(accepted(GOOD))
    assert outgoing() == (("traceparent", GOOD),)
    current_traceparent.reset(token)
    assert outgoing() is None


@pytest.mark.parametrize("value", ["collector:4317", "http://collector", "ftp://a:4317", "http:// :1"])
def test_an_endpoint_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        checked_endpoint(value)


def test_without_the_library_an_endpoint_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_endpoint("http://collector:4317") == "http://collector:4317"
    monkeypatch.setattr(trace_context, "_PACKAGES", ("no_such_package.at_all",))
    assert checked_endpoint("") == ""
    with pytest.raises(ValueError, match=r"octavo\[tracing\]"):
        checked_endpoint("http://collector:4317")
