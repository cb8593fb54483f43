"""Registration of schemas with onnx, until Python exits."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

import onnx.defs

if TYPE_CHECKING:
    from collections.abc import Iterable


_LARGEST_OPSET = 2**31 - 1
"""The largest number that onnx takes; a file may have any int64."""


def schema_in(op_type: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """Returns the schema of an op in an opset; None if onnx knows none."""
    if abs(opset) > _LARGEST_OPSET or not onnx.defs.has(op_type, opset, domain):
        return None
    return onnx.defs.get_schema(op_type, opset, domain)


def register(schemas: Iterable[onnx.defs.OpSchema]) -> None:
    """Registers the schemas that onnx does not have yet; a second call has no effect."""
    for schema in schemas:
        if not onnx.defs.has(schema.name, domain=schema.domain):
            onnx.defs.register_schema(schema)
            # onnx 1.19 frees its registry after Python has exited, and then waits for the interpreter for ever if
            # an inference function is written in Python; the process would never end.
            atexit.register(onnx.defs.deregister_schema, schema.name, schema.since_version, schema.domain)
