"""Registration of schemas with onnx, until Python exits."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

import onnx.defs

if TYPE_CHECKING:
    from collections.abc import Iterable


def register(schemas: Iterable[onnx.defs.OpSchema]) -> None:
    """Registers the schemas that onnx does not have yet; a second call has no effect."""
    for schema in schemas:
        if not onnx.defs.has(schema.name, domain=schema.domain):
            onnx.defs.register_schema(schema)
            # onnx 1.19 frees its registry after Python has exited, and then waits for the interpreter for ever if
            # an inference function is written in Python; the process would never end.
            atexit.register(onnx.defs.deregister_schema, schema.name, schema.since_version, schema.domain)
