"""The recorded log: a header, then one record an input, each with its length and checksum.

Owns the bytes and their version; knows neither the core's calls nor files. Invariant: a record is read whole
and as it was written, or named as damaged; a log that was cut off is read up to its last whole record.

    file   = MAGIC, version (u16 LE), record ...
    record = length (u32 LE), crc32 of the payload (u32 LE), payload (msgpack)

The payload of the first record is a map of `Header`'s fields, that of each other one a list that begins with
a `Kind`.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO

import msgpack

from scheduler_svc.core.plan import Capacity, NewRequest, SchedulerConfig, StepPlan, StepResult
from scheduler_svc.recorder.digest import DIGEST_FIELDS
from scheduler_svc.recorder.values import Rebuilder, Schema, plain, schema_of

MAGIC = b"octavo-log\n"
VERSION = 1
MAX_RECORD = 1 << 28
_FRAME = struct.Struct("<II")
_VERSION = struct.Struct("<H")


class Kind(IntEnum):
    """What a record says; the fields after it are in the comment. now: seconds of the engine's clock."""

    WORKER_READY = 1  # Capacity
    WORKER_LOST = 2
    ADD = 3  # now, NewRequest
    ABORT = 4  # seq_id, now
    STOP = 5  # seq_id, output_len, reason, now
    APPLY = 6  # now, StepResult
    SCHEDULE = 7  # now; with a plan: step_id, digests, and the plan where plans are recorded
    SETTLE = 8  # somebody looked at the pool, which brings the prefix index up to date
    FLUSH = 9  # namespace or None
    END = 10  # the recording was closed in order


class DamagedLog(ValueError):
    """The file is no log, or one that cannot be read; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a log begins with.

    schema: fields of the values in it. digest_fields: of each plan's digest. started_at: seconds since 1970.
    plans: whether whole plans are in it.
    """

    config: SchedulerConfig
    schema: Schema
    digest_fields: tuple[str, ...]
    started_at: float
    plans: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One input. number: counts from 1, the header being 0; at: the byte at which it begins."""

    number: int
    at: int
    kind: Kind
    fields: tuple[Any, ...]


def pack(entry: tuple[Any, ...]) -> bytes:
    """One record's bytes, frame and all. Raises TypeError for a value that is no input of the core."""
    return _framed(msgpack.packb(entry, default=plain))


def pack_header(config: SchedulerConfig, started_at: float, plans: bool) -> bytes:
    """The bytes that a log begins with."""
    schema = schema_of(SchedulerConfig, Capacity, NewRequest, StepResult, StepPlan)
    head = {
        "config": config,
        "schema": schema,
        "digest_fields": DIGEST_FIELDS,
        "started_at": started_at,
        "plans": plans,
    }
    return MAGIC + _VERSION.pack(VERSION) + _framed(msgpack.packb(head, default=plain))


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class LogReader:
    """Reads a log from a file open for reading. Raises DamagedLog, UnknownField.

    torn: after the last record, what is wrong with the bytes that follow it, or an empty string.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self.torn = ""
        magic = self._read(len(MAGIC))
        if magic != MAGIC:
            raise DamagedLog("not a log of the flight recorder")
        version = self._read(_VERSION.size)
        if len(version) < _VERSION.size:
            raise DamagedLog("the log ends inside its header")
        if _VERSION.unpack(version)[0] != VERSION:
            raise DamagedLog(
                f"the log has version {_VERSION.unpack(version)[0]}, this program reads {VERSION}"
            )
        payload = self._payload()
        if payload is None:
            raise DamagedLog(f"the log ends inside its header: {self.torn}")
        head = _unpacked(payload, "the header")
        schema = {name: tuple(names) for name, names in head["schema"].items()}
        self.rebuilder = Rebuilder(schema)
        config = self.rebuilder.build(SchedulerConfig, head["config"])
        self.header = Header(config, schema, tuple(head["digest_fields"]), head["started_at"], head["plans"])

    def __iter__(self) -> Iterator[Record]:
        number = 0
        while True:
            number, at = number + 1, self._at
            payload = self._payload()
            if payload is None:
                return
            fields = _unpacked(payload, f"record {number} at byte {at}")
            try:
                yield Record(number, at, Kind(fields[0]), tuple(fields[1:]))
            except ValueError as error:
                raise DamagedLog(f"record {number} at byte {at}: unknown kind {fields[0]}") from error

    def _payload(self) -> bytes | None:
        """The next record's payload; None at the end. Without its checksum the last record is a torn tail."""
        at, frame = self._at, self._read(_FRAME.size)
        if not frame:
            return None
        if len(frame) < _FRAME.size:
            self.torn = f"{len(frame)} bytes of a record at byte {at}"
            return None
        length, checksum = _FRAME.unpack(frame)
        if length > MAX_RECORD:
            raise DamagedLog(
                f"the record at byte {at} says it has {length} bytes, at most {MAX_RECORD} are read"
            )
        payload = self._read(length)
        if len(payload) < length:
            self.torn = (
                f"{_FRAME.size + len(payload)} of {_FRAME.size + length} bytes of a record at byte {at}"
            )
            return None
        if zlib.crc32(payload) == checksum:
            return payload
        if self._read(1):
            raise DamagedLog(f"the record at byte {at} does not have its checksum")
        self.torn = f"a last record at byte {at} that does not have its checksum"
        return None

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        self._at += len(data)
        return data


def _unpacked(payload: bytes, what: str) -> Any:
    try:
        return msgpack.unpackb(payload, strict_map_key=False)
    except ValueError as error:
        raise DamagedLog(f"{what}: {error}") from error
