"""Reads nodes that call one of ATen's batch-norm gradients: the op and its arguments by name.

Two spellings are accepted; both keep the arguments in the order of ATen's schema::

    org.pytorch.aten.ATen(...)    {operator="aten::native_batch_norm_backward", overload_name=""}
    <any domain>.native_batch_norm_backward(...)    also aten_native_..., aten::native_..., and with .default

An argument is either an input or an attribute with the argument's name. ONNX Runtime's ATen nodes have the scalars
and the mask as constant inputs (tensors of float, bool or int64 with one element, or three); the functions of
onnxscript's torch_lib have them as attributes (float, int, ints). An omitted input, in the middle or at the end,
is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import constant_of, text_of
from bngrad.passes.imports.foreign_node import ForeignNode, ForeignOp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ATEN_NODE = ("org.pytorch.aten", "ATen")

SCHEMAS = {
    "native_batch_norm_backward": "Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask",
    "batch_norm_backward": "Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, "
    "Tensor reserve",
    "cudnn_batch_norm_backward": "Tensor input, Tensor grad_output, Tensor weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_var, float epsilon, Tensor reserveSpace",
    "miopen_batch_norm_backward": "Tensor input, Tensor grad_output, Tensor weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_var, float epsilon",
    "_batch_norm_impl_index_backward": "int impl_index, Tensor input, Tensor grad_output, Tensor? weight, "
    "Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_var_transform, bool train, "
    "float eps, bool[3] output_mask, Tensor reservedSpace",
}
"""The arguments as ATen's native_functions.yaml declares them; all return (grad_input, grad_weight, grad_bias)."""

_ROLES = {
    "grad_out": "dY",
    "grad_output": "dY",
    "input": "X",
    "weight": "scale",
    "save_mean": "mean",
    # All three are inverse standard deviations: cuDNN and MIOpen receive save_var as savedInvVariance.
    "save_invstd": "inv_std",
    "save_var": "inv_std",
    "save_var_transform": "inv_std",
    "update": "train",
    "epsilon": "eps",
}
_WORKSPACES = ("reserve", "reserveSpace", "reservedSpace")
"""cuDNN's data from the forward pass; the gradients do not depend on it."""
_KINDS = {"Tensor": "tensor", "bool": "bool", "float": "float", "int": "int", "bool[3]": "mask"}
_ATTRIBUTE_TYPES = {
    "bool": ir.AttributeType.INT,
    "int": ir.AttributeType.INT,
    "float": ir.AttributeType.FLOAT,
    "mask": ir.AttributeType.INTS,
}


class Argument(NamedTuple):
    """An argument of a schema."""

    name: str
    kind: Literal["tensor", "bool", "float", "int", "mask"]
    optional: bool

    @property
    def role(self) -> str:
        """The name shared by all schemas: a quantity, or train, eps, output_mask."""
        return _ROLES.get(self.name, self.name)


class AtenNode(ForeignNode):
    """A call of an ATen op; its inputs are the tensor arguments."""

    def __init__(self, node: ir.Node, op: ForeignOp, *, unbiased_running_var: bool = False) -> None:
        super().__init__(node, op, unbiased_running_var=unbiased_running_var)
        inputs = list(node.inputs)
        self.given: dict[str, ir.Value | ir.Attr | None] = {}
        """The argument for each role; None if omitted."""
        for argument in self.arguments():
            attribute = node.attributes.get(argument.name)
            self.given[argument.role] = (inputs.pop(0) if inputs else None) if attribute is None else attribute
        self.extra_inputs = len(inputs)
        """The number of inputs beyond the arguments of the schema."""
        tensors = {argument.role for argument in self.arguments() if argument.kind == "tensor"}
        values = {role: value for role, value in self.given.items() if isinstance(value, ir.Value)}
        self.inputs = {role: values.get(role) for role in self.given if role in tensors}
        self.scalars = [value for role, value in values.items() if role not in tensors]
        """The inputs that are scalars or masks in ATen's schema."""
        mask = self.constant("output_mask")
        self.masked = [False] * len(node.outputs) if mask is None else [not defined for defined in mask]
        """True for each output that is undefined, as far as the mask is known."""
        undefined = [value for value, masked in zip(node.outputs, self.masked, strict=False) if masked]
        self.outputs = {quantity: value for quantity, value in self.outputs.items() if value not in undefined}

    def arguments(self) -> list[Argument]:
        """Returns the arguments of the schema, in order; none if the op has no schema."""
        schema = SCHEMAS.get(operator_of(self.node) or "")
        pairs = (argument.split(" ") for argument in (schema.split(", ") if schema else ()))
        return [Argument(name, _KINDS[kind.rstrip("?")], kind.endswith("?")) for kind, name in pairs]  # type: ignore[arg-type]

    def constant(self, role: str) -> NDArray[Any] | None:
        """Returns a scalar or a mask as one-dimensional array; None if it is omitted or known only at run time."""
        value = self.given.get(role)
        if isinstance(value, ir.Attr):
            return None if value.is_ref() else np.reshape(value.value, -1)
        array = constant_of(value)
        return None if array is None else array.reshape(-1)

    def unknown(self, role: str) -> str:
        """Returns why the value of a scalar is unknown."""
        name = self.label(role)
        if self.given[role] is None:
            return f"it has no {name}; expected one"
        return f"its {name} is not constant; fold the model's constants and inline its functions first"

    def label(self, quantity: str) -> str:
        """The name of an argument in the schema."""
        return next(argument.name for argument in self.arguments() if argument.role == quantity)


def call_reasons(node: AtenNode) -> Iterator[str]:
    """Yields why the schema does not allow a call."""
    if overload := _overload(node.node):
        yield f"its overload is {overload!r}; expected the default one"
    for argument in node.arguments():
        yield from _argument_reasons(argument, node.given[argument.role], node.constant(argument.role))
    if node.extra_inputs:
        yield f"it has {node.extra_inputs} more inputs than ATen's schema has arguments"


def _argument_reasons(
    argument: Argument, value: ir.Value | ir.Attr | None, constant: NDArray[Any] | None
) -> Iterator[str]:
    name, kind, optional = argument
    if kind == "tensor":
        if isinstance(value, ir.Attr):
            yield f"its {name} is an attribute; expected an input"
        if value is None and not optional and name not in _WORKSPACES:
            yield f"it has no {name}; expected one"
        return
    if isinstance(value, ir.Attr) and value.type != _ATTRIBUTE_TYPES[kind]:
        yield f"its attribute {name} is of type {value.type.name}; expected {_ATTRIBUTE_TYPES[kind].name}"
    expected = 3 if kind == "mask" else 1
    if constant is not None and constant.size != expected:
        yield f"its {name} has {constant.size} elements; expected {expected}"


def operator_of(node: ir.Node) -> str | None:
    """Returns the name of the ATen op that a node calls, without namespace and overload; None if it calls none."""
    if (node.domain, node.op_type) != ATEN_NODE:
        return node.op_type.removeprefix("aten::").removeprefix("aten_").partition(".")[0]
    operator = node.attributes.get("operator")
    return _text(operator).removeprefix("aten::") or None


def _overload(node: ir.Node) -> str:
    if (node.domain, node.op_type) != ATEN_NODE:
        return (node.op_type.partition(".")[2] or node.overload).removeprefix("default")
    overload = node.attributes.get("overload_name")
    return _text(overload).removeprefix("default")


def _text(attribute: ir.Attr | None) -> str:
    """Returns the value of a string attribute; an empty string if it is missing or of another type."""
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.STRING:
        return ""
    return text_of(attribute)
