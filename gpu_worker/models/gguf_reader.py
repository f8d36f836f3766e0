"""GGUF metadata without taking apart what nobody asks for: a vocabulary costs a small model half its start.

Owns one shortcut in gguf's reader, and the reading of a field either way; knows no model. Invariant: a
field's contents are those that gguf's own reader gives.
"""

import struct
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

_LENGTH_BYTES = 8
Parts = tuple[int, list[Any], list[int], list[GGUFValueType]]
"""(bytes, parts, which parts are the value, types), as gguf's reader passes them on."""


class _Whole(np.ndarray[Any, Any]):
    """An array in one part: numbers, or with length_format the bytes of strings, each behind its length."""

    length_format: str = ""


class QuickReader(GGUFReader):
    """gguf's reader, but an array stays in one part. Raises ValueError or IndexError for a file that ends
    too early.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Parts:
        if raw_type == GGUFValueType.ARRAY:
            kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            begin, count = orig_offs + 4 + _LENGTH_BYTES, int(head[1][0])
            if kind == GGUFValueType.STRING or kind in self.gguf_scalar_to_np:
                strings = kind == GGUFValueType.STRING
                whole = self._strings(begin, count) if strings else self._numbers(begin, count, kind)
                return begin - orig_offs + whole.nbytes, [*head, whole], [2], [GGUFValueType(raw_type), kind]
        parts: Parts = super()._get_field_parts(orig_offs, raw_type)
        return parts

    def _numbers(self, begin: int, count: int, kind: GGUFValueType) -> _Whole:
        numbers = self._get(begin, self.gguf_scalar_to_np[kind], count)
        if len(numbers) < count:
            raise ValueError(f"an array of {count} numbers passes the end of the file")
        return np.asarray(numbers).view(_Whole)

    def _strings(self, begin: int, count: int) -> _Whole:
        order, end = ">Q" if self.byte_order == "S" else "<Q", begin
        view = np.asarray(self.data).data
        try:
            for _ in range(count):
                end += _LENGTH_BYTES + struct.unpack_from(order, view, end)[0]
        except (struct.error, OverflowError) as error:
            raise ValueError(f"an array of {count} strings passes the end of the file") from error
        run = np.asarray(self.data[begin:end]).view(_Whole)
        run.length_format = order
        return run


def contents(field: Any) -> Any:
    """A field's value as plain Python."""
    whole = field.parts[-1]
    if not isinstance(whole, _Whole):
        return field.contents()
    if not whole.length_format:
        return whole.tolist()
    strings, view, at = [], memoryview(whole.tobytes()), 0
    while at < len(view):
        (length,) = struct.unpack_from(whole.length_format, view, at)
        at += _LENGTH_BYTES + length
        strings.append(str(view[at - length : at], encoding="utf-8"))
    return strings
