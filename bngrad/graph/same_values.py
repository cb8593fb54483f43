"""Ops that only move elements; where a value comes from and who reads it, through such nodes."""

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
"""Ops whose output has the elements of input 0 alone, and what they change besides the shape."""


def moves(*changes: Change) -> frozenset[str]:
    """The ops that only move elements of input 0, and change nothing else but what is named, and the shape."""
    return frozenset(op for op, change in _MOVES.items() if change is None or change in changes)


COPIES = ("Identity",)
SAME_ORDER = moves("type")
"""Ops whose output has the elements of input 0 in their order, in another type or shape."""
SAME_VALUES = moves("type", "order", "size")
"""Ops whose output has the elements of input 0, in another type or shape."""


def origin(value: ir.Value, through: Collection[str] = COPIES) -> ir.Value:
    """The value that another one is made of by ops of some types alone."""
    while (maker := value.producer()) is not None and _is_one(maker, through) and maker.inputs[0] is not None:
        value = maker.inputs[0]
    return value


def readers(value: ir.Value, through: Collection[str] = COPIES) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that read a value, and by which input: itself, or what ops of some types make of it.

    Such an op counts as a reader where it is in the body of another node than the value.
    """
    waiting = [value]
    while waiting:
        read = waiting.pop()
        for node, index in read.uses():
            if _is_one(node, through) and index == 0 and node.graph is (read.graph or node.graph):
                waiting.append(node.outputs[0])
            else:
                yield node, index


def _is_one(node: ir.Node, through: Collection[str]) -> bool:
    return node.domain == "" and node.op_type in through and bool(node.inputs) and bool(node.outputs)
