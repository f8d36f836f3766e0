"""What a refused request of a batch is told."""

from octavo.errors import InvalidArgument
from scheduler_svc.answers import error_event


def test_a_refusal_in_a_batch_names_status_reason_field_and_message() -> None:
    event = error_event("r1", InvalidArgument("n: 0 is less than 1", field="n"))
    told = event.error
    assert event.request_id == "r1"
    assert (told.code, told.reason, told.field, told.message) == (
        3,
        "INVALID_FIELD",
        "n",
        "n: 0 is less than 1",
    )
