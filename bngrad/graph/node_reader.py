"""Readers of a node's inputs and attributes, and of the known shapes and constants among its values."""

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
"""The type of an attribute by the Python type of its default."""


class NodeView:
    """Checked access of rules and lowerings to a node; for a class that has it as ``node``.

    onnx has no schema for most training ops, so their nodes have not been checked before.
    """

    node: ir.Node

    def x(self, index: int) -> ir.Value:
        """Returns an input that the op always has.

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
        """Returns whether the node has an input, which may be optional."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def optional(self, index: int) -> ir.Value | None:
        """Returns an input that may be left out; None if it is."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def has_output(self, index: int) -> bool:
        """Returns whether the node has an output, which may be optional, and something reads it."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def attribute(self, name: str, default: Any) -> Any:  # noqa: ANN401
        """Returns the value of an attribute, or its default if it is left out; bytes as a str.

        A float default is rounded to float32, as ONNX stores a float attribute.

        Raises:
            UnsupportedNodeError: It refers to an attribute of the function around the node, or has another type.
        """
        return read_attribute(self.node, name, default)

    def known_int64(self, index: int) -> list[int] | None:
        """Returns the numbers of an int64 input that is a constant of the graph; None where it is computed.

        Raises:
            UnsupportedNodeError: They are not integers, or there is no such input.
        """
        self.x(index)
        return known_integers(self.node, index)


def read_attribute(node: ir.Node, name: str, default: Any) -> Any:  # noqa: ANN401
    """Returns the value of an attribute; see `NodeView.attribute`."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return float(np.float32(default)) if isinstance(default, float) else default
    expected = _TYPES.get(type(default), attribute.type)
    if attribute.is_ref() or attribute.type != expected:
        got = "of its function" if attribute.is_ref() else attribute.type.name
        raise UnsupportedNodeError(
            f"{describe(node)} has the attribute {name!r} {got}; expected {expected.name} (inline functions)"
        )
    return text_of(attribute) if expected == ir.AttributeType.STRING else attribute.value


def attribute_refusal(node: ir.Node, supported: Mapping[str, Sequence[int | str]]) -> str | None:
    """Returns the reason why a rule or lowering does not support the attributes of a node; None if it does.

    Args:
        node: The node.
        supported: The attributes by name, each with the values that are supported; empty for all values.

    Raises:
        UnsupportedNodeError: An attribute with a list of values refers to one of the function around the node, or
            has another type.
    """
    for name in node.attributes:
        if name not in supported:
            expected = f"only {', '.join(sorted(supported))}" if supported else "none"
            return f"it has the attribute {name!r}; expected {expected}"
        values = supported[name]
        if values and (value := read_attribute(node, name, values[0])) not in values:
            expected = f"{'one of ' if len(values) > 1 else ''}{', '.join(map(str, values))}"
            return f"it has {name} = {value!r}; expected {expected}"
    return None


def text_of(attribute: ir.Attr) -> str:
    """Returns the text of an attribute of type STRING, which may be any bytes."""
    value: str | bytes = attribute.value
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def known_integers(node: ir.Node, index: int) -> list[int] | None:
    """Returns the numbers of an input that is present and a constant of the graph; else None.

    Raises:
        UnsupportedNodeError: They are not integers.
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
    """Returns whether a flag is left out, or a constant that is false.

    Raises:
        ModelError: It is a constant of several elements, or an empty one.
    """
    constant = constant_of(flag)
    if flag is not None and constant is not None and constant.size != 1:
        raise ModelError(f"{flag.name!r}, a flag, has {constant.size} elements; expected 1")
    return flag is None or (constant is not None and not constant.item())


def axis_refusal(node: ir.Node, default: int, rank: int) -> str | None:
    """Returns the reason why the attribute ``axis`` of a node is out of range for a rank; None if it is valid."""
    axis = read_attribute(node, "axis", default)
    if -rank <= axis < rank:
        return None
    expected = f"{-rank} to {rank - 1}" if rank else "data with at least one dimension"
    return f"its axis is {axis}, of data with {rank} dimensions; expected {expected}"


def axes_refusal(axes: Sequence[int], rank: int) -> str | None:
    """Returns the reason why numbers cannot be axes of data of a rank; None if they can."""
    if all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes):
        return None
    return f"its axes are {list(axes)}; expected distinct axes from {-rank} to {rank - 1}"


def like(make: NodeMaker, number: float, value: ir.Value) -> ir.Value:
    """Returns a scalar constant of a value's type."""
    return make.constant(number, dtype_of(value))


def dtype_of(value: ir.Value) -> ir.DataType:
    """Returns the element type of a value.

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
    """Returns the elements of a value that is the same in every run; None where it is computed, or can be fed."""
    if value is None or value.is_graph_input():
        return None
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Returns the shape of a value if all its dimensions are numbers; else None."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()
