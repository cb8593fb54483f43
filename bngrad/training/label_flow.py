"""The sources of class labels and other indices: a data input as it is, or a value computed from data inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.constant_value import RANDOM_OPS
from bngrad.graph.node_reader import constant_of
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import moves
from bngrad.graph.subgraphs import subgraphs
from bngrad.training.loss.cross_entropy import NO_CLASS

if TYPE_CHECKING:
    from collections.abc import Collection

_MOVES = moves("order", "size")

_WIDE = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold the number of each class."""

_IN_RANGE = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK")
"""Ops whose integers do not depend on the value of a label, or are indices of their input."""

_MOST_STEPS = 20
"""The most additions and choices that labels are followed through."""

_MOST_NODES = 100
"""The most nodes that compute labels for the check of a batch."""


class Followed(NamedTuple):
    """An input whose elements minus a number are the labels."""

    input: ir.Value
    offset: int = 0
    ignored: tuple[int, ...] = ()
    """The elements that the model replaces by a class."""
    replacement: int = 0
    """The largest of these classes."""


def follow(value: ir.Value | None, most: int = _MOST_STEPS) -> Followed | None:
    """Returns the input that labels are, except for their type, shape and first number; None if they are computed.

    Args:
        value: The labels.
        most: The most additions and choices to go through.
    """
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or not node.inputs:
            return None
        value = node.inputs[0]
        if node.op_type in _MOVES or _is_wide_cast(node):
            continue
        if not most or node.op_type not in ("Add", "Sub", "Where"):
            return None
        return _selected(node, most - 1) if node.op_type == "Where" else _shifted(node, most - 1)
    return Followed(value) if value is not None and value.is_graph_input() else None


def _is_wide_cast(node: ir.Node) -> bool:
    of, to = node.inputs[0], node.attributes.get("to")
    is_bool = of is not None and of.dtype == ir.DataType.BOOL
    return node.op_type == "Cast" and to is not None and to.value in _WIDE and not is_bool


def _shifted(node: ir.Node, most: int) -> Followed | None:
    """Follows labels plus or minus a number."""
    first, second = node.inputs
    number, followed, sign = _integer(second), follow(first, most), 1 if node.op_type == "Sub" else -1
    if number is None and node.op_type == "Add":
        number, followed = _integer(first), follow(second, most)
    if followed is None or number is None or followed.ignored:
        return None
    return followed._replace(offset=followed.offset + sign * number)


def _selected(node: ir.Node, most: int) -> Followed | None:
    """Follows labels after a Where that replaces one by a class, or negative ones by numbers of no class."""
    condition, yes, no = node.inputs
    maker, test = (None if value is None else value.producer() for value in (yes, condition))
    if maker is not None and maker.op_type == "Sub" and maker.inputs[0] is no:
        return follow(no, most) if _integer(maker.inputs[1]) == NO_CLASS else None
    if maker is not None and maker.op_type == "Add" and maker.inputs[0] is no and _is_below_zero(test, no):
        return follow(no, most)  # JAX counts negative indices from the end
    if test is not None and test.op_type == "Not" and test.inputs[0] is not None:
        test, yes, no = test.inputs[0].producer(), no, yes
    labels, replacement = follow(no, most), _integer(yes)
    if labels is None or replacement is None or replacement < 0 or test is None or test.op_type != "Equal":
        return None
    compared, label = follow(test.inputs[0], most), _integer(test.inputs[1])
    if compared is None or label is None or compared.input is not labels.input:
        return None
    ignored, largest = (*labels.ignored, label + compared.offset), max(labels.replacement, replacement)
    return labels._replace(ignored=ignored, replacement=largest)


def _is_below_zero(test: ir.Node | None, value: ir.Value | None) -> bool:
    """Tests whether a node is ``value < 0``."""
    if test is None or test.op_type != "Less":
        return False
    return test.inputs[0] is value and _integer(test.inputs[1]) == 0


def _integer(value: ir.Value | None) -> int | None:
    """The integer that a constant of one element is, in any type."""
    array = constant_of(value)
    if array is None or array.size != 1 or array.dtype.kind not in "iuf" or not float(array.item()).is_integer():
        return None
    return int(array.item())


class Sources(NamedTuple):
    """The data inputs that a value is computed from."""

    data: list[ir.Value]
    obstacle: str | None
    """The reason why it cannot be computed from only the data; None if it can."""


def sources(value: ir.Value, data: Collection[ir.Value]) -> Sources:
    """Returns the data inputs that a value depends on, and whether they are enough to compute it."""
    inputs: dict[ir.Value, None] = {}
    seen, waiting, nodes = {value}, [value], set[ir.Node]()
    obstacle = None
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if node is None:
            if current in data:
                inputs[current] = None
            elif current.is_graph_input():
                obstacle = f"it depends on the weights ({current.name!r})"
            continue
        if node.op_type in _IN_RANGE and node.domain == "":
            if _needs_weights(node, data):
                obstacle = f"it depends on the shape of what {describe(node)} reads"
            continue
        nodes.add(node)
        if node.domain != "" or node.op_type in RANDOM_OPS or any(subgraphs(node)):
            obstacle = f"it is computed by {describe(node)}"
        new = [operand for operand in node.inputs if operand is not None and operand not in seen]
        seen.update(new)
        waiting += new
    if len(nodes) > _MOST_NODES:
        obstacle = f"it is computed by {len(nodes)} nodes"
    return Sources(list(inputs), obstacle)


def _needs_weights(node: ir.Node, data: Collection[ir.Value]) -> bool:
    """Tests whether weights are needed to run a node."""
    seen, waiting = set[ir.Value](), [value for value in node.inputs if value is not None]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None:
            if value.is_graph_input() and value not in data:
                return True
        else:
            waiting += [operand for operand in maker.inputs if operand is not None]
    return False
