"""Flatbuffers read and written by a schema that is Python data.

A table of the schema is a `Schema`: its fields in the order of their slots. In Python a table is a dict of the
fields that are present.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from flatbuffers import Builder
from flatbuffers import number_types as types
from flatbuffers.builder import BuilderSizeError
from flatbuffers.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCALARS = {
    "bool": types.BoolFlags,
    "int32": types.Int32Flags,
    "int64": types.Int64Flags,
    "float": types.Float32Flags,
}

Kind: TypeAlias = "str | Schema | list[Schema]"
"""The type of a field: a key of `_SCALARS`, ``string``, ``bytes``, ``int64s``, a table or a vector of tables."""

_OFFSET = types.UOffsetTFlags.bytewidth


@dataclass(frozen=True)
class Schema:
    """A table: the kind of each field, by its name, in the order of the schema file."""

    fields: Mapping[str, Kind]


class MalformedError(Exception):
    """The bytes are not a flatbuffer of the schema."""


def read(content: bytes, root: Schema, identifier: bytes) -> dict[str, Any]:
    """Reads a flatbuffer; ``bytes`` fields become memory views of it.

    Raises:
        MalformedError: It lacks the identifier, or an offset or a length points outside of it.
    """
    if content[4:8] != identifier:
        raise MalformedError(f"it lacks the identifier {identifier.decode()} of the format")
    try:
        return _Reader(content).table(0, root)
    except (struct.error, ValueError, TypeError, IndexError, OverflowError) as error:
        # The runtime checks no offset: a wrong one fails in struct, NumPy or its own check of ranges.
        raise MalformedError("an offset or a length in it points outside of it") from error


def write(values: Mapping[str, Any], root: Schema, identifier: bytes) -> memoryview:
    """Writes a table of the schema as a flatbuffer.

    Raises:
        MalformedError: It does not fit in a flatbuffer, which holds 2 GB.
    """
    builder = Builder(_size_of(values) + 1024)
    try:
        builder.Finish(_write_table(builder, values, root), file_identifier=identifier)
    except (struct.error, TypeError, ValueError, OverflowError, BuilderSizeError) as error:
        raise MalformedError(f"its values do not fit in a flatbuffer: {error}") from error
    return memoryview(builder.Bytes)[builder.Head() :]


class _Reader:
    """Reads tables; an offset in the buffer is where a reference to a table, string or vector is."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        # Tables that share others could multiply without end.
        self._left = len(content) // _OFFSET

    def table(self, reference: int, schema: Schema) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise IndexError(reference)
        table = Table(self._content, 0)
        table.Pos = table.Indirect(reference)
        present = {}
        for slot, (name, kind) in enumerate(schema.fields.items()):
            if offset := table.Offset(4 + 2 * slot):
                present[name] = self._field(table, table.Pos + offset, kind)
        return present

    def _field(self, table: Table, at: int, kind: Kind) -> Any:  # noqa: ANN401
        if isinstance(kind, Schema):
            return self.table(at, kind)
        if isinstance(kind, list):
            start, length = self._vector(table, at, _OFFSET)
            return [self.table(start + _OFFSET * index, kind[0]) for index in range(length)]
        if kind in _SCALARS:
            return table.Get(_SCALARS[kind], at)
        start, length = self._vector(table, at, 8 if kind == "int64s" else 1)
        if kind == "int64s":
            return np.frombuffer(self._content, "<i8", length, start).tolist()
        content = memoryview(self._content)[start : start + length]
        return str(content, "utf-8") if kind == "string" else content

    def _vector(self, table: Table, reference: int, size: int) -> tuple[int, int]:
        """The beginning of a vector, and its length."""
        start = table.Indirect(reference) + _OFFSET
        length = table.Get(types.UOffsetTFlags, start - _OFFSET)
        if start + length * size > len(self._content):
            raise IndexError(length)
        return start, length


def _size_of(values: Any) -> int:  # noqa: ANN401
    """The approximate size of a table in bytes, so that the builder does not grow, which copies its content."""
    if isinstance(values, dict):
        return 64 + sum(map(_size_of, values.values()))
    if isinstance(values, list):
        return 8 + sum(map(_size_of, values))
    return len(values) if isinstance(values, bytes | str | memoryview) else 8


def _write_table(builder: Builder, values: Mapping[str, Any], schema: Schema) -> int:
    slots = dict(zip(schema.fields, range(len(schema.fields)), strict=True))
    # The objects that a table refers to stand before it.
    written = {name: _write_reference(builder, value, schema.fields[name]) for name, value in values.items()}
    builder.StartObject(len(slots))
    for name, value in written.items():
        kind = schema.fields[name]
        if isinstance(kind, str) and kind in _SCALARS:
            builder.Prepend(_SCALARS[kind], value)
        else:
            builder.PrependUOffsetTRelative(value)
        builder.Slot(slots[name])
    return int(builder.EndObject())


def _write_reference(builder: Builder, value: Any, kind: Kind) -> Any:  # noqa: ANN401
    """Writes what a field refers to, and returns its offset; the value of a scalar itself."""
    if isinstance(kind, Schema):
        return _write_table(builder, value, kind)
    if isinstance(kind, list):
        return _write_references(builder, [_write_table(builder, item, kind[0]) for item in value])
    if kind == "string":
        return builder.CreateString(value)
    if kind == "bytes":
        return builder.CreateNumpyVector(np.frombuffer(value, np.uint8))
    if kind == "int64s":
        return builder.CreateNumpyVector(np.asarray(value, "<i8"))
    return value


def _write_references(builder: Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(_OFFSET, len(offsets), _OFFSET)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
