"""Where class labels and other indices come from: a data input as it is, or what is computed of data inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.constant_value import RANDOM_OPS
from bngrad.graph.node_reader import constant_of
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import subgraphs
from bngrad.training.loss_functions import NO_CLASS

if TYPE_CHECKING:
    from collections.abc import Collection

_MOVES = ("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose output has the elements of input 0."""

_WIDE = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold the number of each class."""

_IN_RANGE = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK")
"""Ops whose integers do not depend on what a label is, or are indices of their input."""

_MOST_NODES = 100
"""The most nodes that labels are computed by for a check of a batch."""


class Followed(NamedTuple):
    """An input, of which labels are the elements minus a number."""

    input: ir.Value
    offset: int = 0
    ignored: tuple[int, ...] = ()
    """The elements that the model replaces by a class."""


def follow(value: ir.Value | None) -> Followed | None:
    """Returns the input that labels are, but for their type, shape and first number; None if they are computed."""
    node = None if value is None else value.producer()
    if node is None:
        return Followed(value) if value is not None and value.is_graph_input() else None
    first = node.inputs[0] if node.inputs and node.domain == "" else None
    if first is None:
        return None
    is_wide_cast = node.op_type == "Cast" and node.attributes["to"].value in _WIDE
    if node.op_type in _MOVES or (is_wide_cast and first.dtype != ir.DataType.BOOL):
        return follow(first)
    if node.op_type in ("Add", "Sub"):
        return _shifted(node)
    return _selected(node) if node.op_type == "Where" else None


def _shifted(node: ir.Node) -> Followed | None:
    """Labels plus or minus a number."""
    first, second = (constant_of(value) for value in node.inputs)
    if second is not None:
        number, found = second, follow(node.inputs[0])
        sign = 1 if node.op_type == "Sub" else -1
    elif first is not None and node.op_type == "Add":
        number, found, sign = first, follow(node.inputs[1]), -1
    else:
        return None
    if found is None or number.size != 1 or number.item() != int(number.item()):
        return None
    return found._replace(offset=found.offset + sign * int(number.item()))


def _selected(node: ir.Node) -> Followed | None:
    """Labels of which one is replaced by a class, or negative ones by numbers of no class."""
    condition, yes, no = node.inputs
    labels, moved = follow(no), None if yes is None else yes.producer()
    if labels is not None and moved is not None and moved.op_type == "Sub" and moved.inputs[0] is no:
        by = constant_of(moved.inputs[1])
        return labels if by is not None and by.size == 1 and by.item() == NO_CLASS else None
    equal = None if condition is None else condition.producer()
    negated = equal is not None and equal.op_type == "Not"
    if equal is not None and negated and equal.inputs[0] is not None:
        equal = equal.inputs[0].producer()
    if negated:
        yes, labels = no, follow(yes)
    if equal is None or equal.op_type != "Equal" or labels is None:
        return None
    replaced, label = constant_of(yes), constant_of(equal.inputs[1])
    compared = follow(equal.inputs[0])
    if replaced is None or replaced.size != 1 or label is None or label.size != 1 or compared is None:
        return None
    if compared.input is not labels.input or replaced.item() < 0:
        return None
    return labels._replace(ignored=(*labels.ignored, int(label.item()) + compared.offset))


class Sources(NamedTuple):
    """What a value is computed of."""

    data: list[ir.Value]
    obstacle: str | None
    """Why it cannot be computed of the data alone; None if it can."""


def sources(value: ir.Value, data: Collection[ir.Value]) -> Sources:
    """Returns the data inputs that a value depends on, and whether it can be computed of them alone."""
    found: dict[ir.Value, None] = {}
    known, waiting, nodes = {value}, [value], set[ir.Node]()
    obstacle = None
    while waiting:
        one = waiting.pop()
        node = one.producer()
        if node is None:
            if one in data:
                found[one] = None
            elif one.is_graph_input():
                obstacle = f"it depends on the weights ({one.name!r})"
            continue
        if node.op_type in _IN_RANGE and node.domain == "":
            if _needs_weights(node, data):
                obstacle = f"it depends on the shape of what {describe(node)} reads"
            continue
        nodes.add(node)
        if node.domain != "" or node.op_type in RANDOM_OPS or any(subgraphs(node)):
            obstacle = f"it is computed by {describe(node)}"
        new = [one for one in node.inputs if one is not None and one not in known]
        known.update(new)
        waiting += new
    if len(nodes) > _MOST_NODES:
        obstacle = f"it is computed by {len(nodes)} nodes"
    return Sources(list(found), obstacle)


def _needs_weights(node: ir.Node, data: Collection[ir.Value]) -> bool:
    """Whether weights are needed to run a node."""
    known, waiting = set[ir.Value](), [value for value in node.inputs if value is not None]
    while waiting:
        value = waiting.pop()
        if value in known:
            continue
        known.add(value)
        maker = value.producer()
        if maker is None:
            if value.is_graph_input() and value not in data:
                return True
        else:
            waiting += [one for one in maker.inputs if one is not None]
    return False
