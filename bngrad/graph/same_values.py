"""Ops that only move elements; the origin and the readers of a value, through such nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

Change: TypeAlias = Literal["type", "order", "size", "repetition", "selection"]

_MOVES: dict[str, Change | None] = {
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")),
    **dict.fromkeys(("Cast", "CastLike"), "type"),
    "Transpose": "order",
    "Expand": "size",
    "Tile": "repetition",
    **dict.fromkeys(("Gather", "Slice"), "selection"),
}
"""Ops whose output has only the elements of input 0, and what they change besides the shape."""


def moves(*changes: Change) -> frozenset[str]:
    """Returns the ops that only move elements of input 0, and change only the shape and the named properties."""
    return frozenset(op for op, change in _MOVES.items() if change is None or change in changes)


COPIES = ("Identity",)
SAME_ORDER = moves("type")
"""Ops whose output has the elements of input 0 in their order, in another type or shape."""
SAME_VALUES = moves("type", "order", "size")
"""Ops whose output has the elements of input 0, in another type or shape."""


def origin(value: ir.Value, through: Collection[str] = COPIES) -> ir.Value:
    """Returns the value that another one is computed from only by ops of some types."""
    while (maker := value.producer()) is not None and _is_move(maker, through) and maker.inputs[0] is not None:
        value = maker.inputs[0]
    return value


def source_of(value: ir.Value | None) -> ir.Value | None:
    """Returns the value whose elements another one has, in any type or shape; None for None."""
    return None if value is None else origin(value, SAME_VALUES)


def readers(value: ir.Value, through: Collection[str] = COPIES) -> Iterator[tuple[ir.Node, int]]:
    """Yields the nodes that read a value, or its copies by ops of some types, and the index of the input.

    Such an op counts as a reader where it is in the body of another node than the value.
    """
    waiting = [value]
    while waiting:
        current = waiting.pop()
        for node, index in current.uses():
            if _is_move(node, through) and index == 0 and node.graph is (current.graph or node.graph):
                waiting.append(node.outputs[0])
            else:
                yield node, index


def _is_move(node: ir.Node, through: Collection[str]) -> bool:
    return node.domain == "" and node.op_type in through and bool(node.inputs) and bool(node.outputs)
