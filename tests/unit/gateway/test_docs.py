"""docs/api.md against the schema, the HTTP parameters, and the tests that it names."""

import re

from google.protobuf.descriptor import Descriptor

from gateway.bodies import ChatBody, CompletionBody
from octavo.v1 import inference_pb2 as pb
from tests.architecture.sources import REPOSITORY, text_of

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text_of("docs/api.md").splitlines()
    if line.startswith("| `")
]
GROUPS = ("chat", "sampling", "stopping", "output", "response_format")


def fields(descriptor: Descriptor, prefix: str = "") -> set[str]:
    found = set()
    for field in descriptor.fields:
        nested = prefix == "" and field.name in GROUPS
        found |= fields(field.message_type, f"{field.name}.") if nested else {prefix + field.name}
    return found


def test_every_field_of_a_request_has_a_row_and_no_other() -> None:
    assert [row[0] for row in ROWS] == sorted({row[0] for row in ROWS}, key=[row[0] for row in ROWS].index)
    assert {row[0].strip("`") for row in ROWS} == fields(pb.GenerateRequest.DESCRIPTOR)


def test_every_parameter_over_http_is_on_the_page_and_no_other() -> None:
    named = set(CompletionBody.model_fields) | set(ChatBody.model_fields)
    below = text_of("docs/api.md").split("Over HTTP alone:")[1].split("\n\n")[0]
    on_page = {name for row in ROWS for name in re.findall(r"`([a-z_]+)", row[1])}
    on_page |= set(re.findall(r"`([a-z_]+)", below)) - {"auto", "default"}
    assert named <= on_page
    assert on_page - named <= {"json_schema", "json_object", "v"}


def test_the_tests_that_the_page_names_exist() -> None:
    for row in ROWS:
        assert (REPOSITORY / row[5]).is_file(), row[5]
