"""Where a value comes from and who reads it, through nodes that change nothing but its type or shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

COPIES = ("Identity",)
SAME_VALUES = (
    *("Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
)
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
