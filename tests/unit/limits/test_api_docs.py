"""docs/api.md names every field of a request, and tests that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor

from octavo.v1 import inference_pb2 as pb

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
NESTED = ("chat", "sampling", "stopping", "output", "response_format")


def fields(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        if field.name in NESTED:
            yield from (f"{field.name}.{inner.name}" for inner in field.message_type.fields)
        else:
            yield field.name


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_field_of_a_request_has_its_row() -> None:
    named = [row[0].strip("`") for row in rows()]
    assert sorted(named) == sorted(fields(pb.GenerateRequest.DESCRIPTOR))


def test_every_row_names_a_test_that_exists() -> None:
    for row in rows():
        assert len(row) == 6, row
        (path,) = re.findall(r"\]\((\.\./tests/[^)]+)\)", row[5])
        assert (PAGE.parent / path).is_file(), path


def test_a_row_s_test_speaks_of_its_field() -> None:
    for row in rows():
        (path,) = re.findall(r"\]\((\.\./tests/[^)]+)\)", row[5])
        name = row[0].strip("`").rpartition(".")[2].removesuffix("_json")
        assert re.search(rf"\b{name}", (PAGE.parent / path).read_text(encoding="utf-8")), (row[0], path)
