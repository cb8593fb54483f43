"""Reading a node: its inputs, its attributes, and what is known of their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.nodes import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.graph.builder import NodeMaker

_TYPES = {
    int: ir.AttributeType.INT,
    float: ir.AttributeType.FLOAT,
    str: ir.AttributeType.STRING,
    list: ir.AttributeType.INTS,
    tuple: ir.AttributeType.INTS,
}
"""The type of an attribute that has a default of this kind."""


class NodeView:
    """What rules and lowerings ask a node; for a class that has it as ``node``.

    onnx has no schema for most training ops, so that nothing has looked at their nodes before.
    """

    node: ir.Node

    def x(self, index: int) -> ir.Value:
        """An input that the op always has.

        Raises:
            UnsupportedNodeError: The node does not have it.
        """
        value = self.optional(index)
        if value is None:
            raise UnsupportedNodeError(
                f"{describe(self.node)} has no input {index}, which {self.node.op_type} requires"
            )
        return value

    def has(self, index: int) -> bool:
        """Whether the node has an input, which may be optional."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def optional(self, index: int) -> ir.Value | None:
        """An input that may be left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def has_output(self, index: int) -> bool:
        """Whether the node has an output, which may be optional, and something reads it."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def attribute(self, name: str, default: Any) -> Any:  # noqa: ANN401
        """The value of an attribute, or what it is where it is left out; bytes as a str.

        A default that is a float is rounded to float32, as ONNX stores one that is written out.

        Raises:
            UnsupportedNodeError: It is an attribute of the function that the node is in, or of another type.
        """
        return read_attribute(self.node, name, default)

    def known_int64(self, index: int) -> list[int] | None:
        """The numbers of an int64 input that is a constant of the graph; None where it is computed.

        Raises:
            UnsupportedNodeError: They are no integers, or there is no such input.
        """
        self.x(index)
        return known_integers(self.node, index)


def read_attribute(node: ir.Node, name: str, default: Any) -> Any:  # noqa: ANN401
    """See `NodeView.attribute`."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return float(np.float32(default)) if isinstance(default, float) else default
    want = _TYPES.get(type(default), attribute.type)
    if attribute.is_ref() or attribute.type != want:
        got = "of its function" if attribute.is_ref() else attribute.type.name
        raise UnsupportedNodeError(
            f"{describe(node)} has the attribute {name!r} {got}; expected {want.name} (inline functions)"
        )
    return text_of(attribute) if want == ir.AttributeType.STRING else attribute.value


def attribute_refusal(node: ir.Node, known: Mapping[str, Sequence[int | str]]) -> str | None:
    """Why the attributes of a node are not those that a rule or a lowering was written for; None if they are.

    Args:
        node: The node.
        known: The attributes by name, each with the values that are supported; all values where there are none.

    Raises:
        UnsupportedNodeError: An attribute with few values is one of the function that the node is in, or of
            another type.
    """
    for name in node.attributes:
        if name not in known:
            expected = f"none but {', '.join(sorted(known))}" if known else "none"
            return f"it has the attribute {name!r}; expected {expected}"
        values = known[name]
        if values and (value := read_attribute(node, name, values[0])) not in values:
            expected = f"{'one of ' if len(values) > 1 else ''}{', '.join(map(str, values))}"
            return f"it has {name} = {value!r}; expected {expected}"
    return None


def text_of(attribute: ir.Attr) -> str:
    """What an attribute of type STRING says, which may be any bytes."""
    value: str | bytes = attribute.value
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def known_integers(node: ir.Node, index: int) -> list[int] | None:
    """The numbers of an input that is there and a constant of the graph; else None.

    Raises:
        UnsupportedNodeError: They are no integers.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    array = constant_of(value)
    if value is None or array is None:
        return None
    if array.dtype.kind not in "iu":
        got = value.dtype.name.lower() if value.dtype is not None else "of no type"
        raise UnsupportedNodeError(f"{describe(node)}: its input {value.name!r} is {got}; expected integers")
    return [int(number) for number in array.ravel()]


def is_off(flag: ir.Value | None) -> bool:
    """Whether a flag is left out, or a constant that is false.

    Raises:
        ModelError: It is a constant of several elements, or of none.
    """
    known = constant_of(flag)
    if flag is not None and known is not None and known.size != 1:
        raise ModelError(f"{flag.name!r}, a flag, has {known.size} elements; expected 1")
    return flag is None or (known is not None and not known.item())


def axis_refusal(node: ir.Node, default: int, rank: int) -> str | None:
    """Why the attribute ``axis`` of a node is none of data of a rank; None if it is one."""
    axis = read_attribute(node, "axis", default)
    if -rank <= axis < rank:
        return None
    expected = f"{-rank} to {rank - 1}" if rank else "data with one dimension at least"
    return f"its axis is {axis}, of data with {rank} dimensions; expected {expected}"


def axes_refusal(axes: Sequence[int], rank: int) -> str | None:
    """Why numbers cannot be axes of data of a rank; None if they can."""
    if all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes):
        return None
    return f"its axes are {list(axes)}; expected different ones from {-rank} to {rank - 1}"


def like(make: NodeMaker, number: float, value: ir.Value) -> ir.Value:
    """Returns a scalar constant of a value's type."""
    return make.constant(number, dtype_of(value))


def dtype_of(value: ir.Value) -> ir.DataType:
    """The element type of a value.

    Raises:
        ModelError: It is not known.
    """
    if value.dtype is None:
        raise ModelError(
            f"the type of {value.name!r} is not known; expected a model that shape inference can read "
            "(inline functions)"
        )
    return value.dtype


def constant_of(value: ir.Value | None) -> NDArray[Any] | None:
    """The elements of a value that is the same in every run; None where it is computed, or can be fed."""
    if value is None or value.is_graph_input():
        return None
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value where all of it is numbers; else None."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()
