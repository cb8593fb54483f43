"""Partially known shapes: whether two may be equal, and their text in messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

    KnownShape: TypeAlias = tuple[int | str | None, ...]
    """Sizes, the names of symbolic dimensions, and None for dimensions that have neither."""

_MADE_BY_ONNX = re.compile(r"unk__\d+")
"""The names that onnx's shape inference gives to dimensions without one."""


def known_shape(value: ir.Value | None) -> KnownShape | None:
    """Returns the shape of a value; None if its rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else size.value for size in value.shape)


def may_be_equal(a: KnownShape, b: KnownShape) -> bool:
    """Returns whether two shapes have the same rank and agree in all dimensions whose sizes are known in both."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(m == n for m, n in pairs if isinstance(m, int) and isinstance(n, int))


def shape_text(shape: Iterable[int | str | ir.SymbolicDimProtocol | None]) -> str:
    """Formats a shape for messages, such as ``[N, 3, ?]``."""
    return f"[{', '.join(map(size_text, shape))}]"


def size_text(size: int | str | ir.SymbolicDimProtocol | None) -> str:
    """Formats a dimension for messages: its size, its name, or a question mark."""
    extent = size if size is None or isinstance(size, int | str) else size.value
    return "?" if extent is None or _MADE_BY_ONNX.fullmatch(str(extent)) else str(extent)


def type_text(value: ir.Value) -> str:
    """Formats the type of a value for messages, such as ``float[N, 3]``."""
    dtype = "of unknown type" if value.dtype is None else value.dtype.name.lower()
    shape = known_shape(value)
    return dtype if shape is None else f"{dtype}{shape_text(shape)}"
