"""Shapes as far as a model says them: whether two may be one, and how a message writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx_ir as ir

    Extents: TypeAlias = tuple[int | str | None, ...]
    """Numbers, names of those that only a run tells, and None where there is not even a name."""


def extents_of(value: ir.Value | None) -> Extents | None:
    """The shape of a value; None if it is not known."""
    if value is None or value.shape is None:
        return None
    return tuple(extent if isinstance(extent, int) else extent.value for extent in value.shape)


def may_be_equal(a: Extents, b: Extents) -> bool:
    """Whether two shapes agree wherever both have a number."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(m == n for m, n in pairs if isinstance(m, int) and isinstance(n, int))


def text(shape: Extents) -> str:
    """A shape in a message."""
    return f"[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"
