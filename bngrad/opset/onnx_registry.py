"""Schemas of our own in onnx's registry, for as long as Python runs."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

import onnx.defs

if TYPE_CHECKING:
    from collections.abc import Iterable


def register(schemas: Iterable[onnx.defs.OpSchema]) -> None:
    """Registers those that onnx does not have yet, so that a second call changes nothing."""
    for schema in schemas:
        if not onnx.defs.has(schema.name, domain=schema.domain):
            onnx.defs.register_schema(schema)
            # onnx 1.19 frees its registry when Python has ended, and for an inference rule that is a Python
            # function it then waits for the interpreter for ever: no process of ours would end.
            atexit.register(onnx.defs.deregister_schema, schema.name, schema.since_version, schema.domain)
