"""The generated code and the recorded hashes belong to the .proto files as they are."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from octavo.v1 import inference_pb2, kv_cache_pb2
from octavo.worker.v1 import worker_pb2
from tests.architecture.sources import REPOSITORY

PROTOS = REPOSITORY / "protos"
RECORD = PROTOS / "octavo" / "schema.sha256"
GENERATED = (inference_pb2, kv_cache_pb2, worker_pb2)
STALE = "the generated code is stale: run `make protos`"


def schema_files() -> list[str]:
    return sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "octavo").rglob("*.proto"))


def buf(*arguments: str) -> bytes:
    """What buf prints for the schemas, whatever a user's own buf is told. It is installed beside the Python
    that runs the tests.
    """
    command = [str(Path(sys.executable).with_name("buf")), *arguments]
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath)}
        done = subprocess.run(command, cwd=PROTOS, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout


def without_json_names(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor less what one compiler writes and the other leaves out."""

    def clear(message: descriptor_pb2.DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            clear(nested)

    for message in file.message_type:
        clear(message)
    return file


def test_the_recorded_hashes_are_those_of_the_files() -> None:
    recorded = dict(reversed(line.split()) for line in RECORD.read_text(encoding="utf-8").splitlines())
    found = {name: hashlib.sha256((PROTOS / name).read_bytes()).hexdigest() for name in schema_files()}
    assert recorded == found, STALE


def test_every_schema_has_generated_code() -> None:
    assert sorted(module.DESCRIPTOR.name for module in GENERATED) == schema_files()


@pytest.mark.parametrize("module", GENERATED, ids=lambda module: str(module.DESCRIPTOR.name))
def test_the_generated_code_describes_what_the_schemas_say(module: object) -> None:
    built = descriptor_pb2.FileDescriptorSet.FromString(
        buf("build", "--as-file-descriptor-set", "--exclude-imports", "--exclude-source-info", "-o", "-")
    )
    compiled = {file.name: without_json_names(file) for file in built.file}
    generated = descriptor_pb2.FileDescriptorProto()
    descriptor = module.DESCRIPTOR  # type: ignore[attr-defined]
    descriptor.CopyToProto(generated)
    assert without_json_names(generated) == compiled[descriptor.name], STALE


def test_the_schemas_pass_the_linter() -> None:
    buf("lint")
