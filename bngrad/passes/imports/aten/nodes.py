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

from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.node_reader import text_of

if TYPE_CHECKING:
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
    """One argument of a schema."""

    name: str
    kind: Literal["tensor", "bool", "float", "int", "mask"]
    optional: bool

    @property
    def role(self) -> str:
        """The name shared by all schemas: bngrad's, or train, eps, output_mask, running_mean, running_var."""
        return _ROLES.get(self.name, self.name)


class Call(NamedTuple):
    """A call of an ATen op, as read from a node."""

    operator: str
    """A key of `SCHEMAS`."""
    overload: str
    given: dict[str, ir.Value | ir.Attr | None]
    """The argument for each role; None if omitted."""
    extra_inputs: int
    """The number of inputs beyond the arguments of the schema."""

    def tensor(self, role: str) -> ir.Value | None:
        """Returns a tensor argument; None if it is omitted."""
        value = self.given[role]
        return value if isinstance(value, ir.Value) else None

    def required(self, role: str) -> ir.Value:
        """Returns a tensor argument that every node has that was not refused."""
        value = self.tensor(role)
        assert value is not None, f"a node without {role} is refused"  # noqa: S101
        return value

    def scalars(self) -> list[ir.Value]:
        """Returns the inputs that are scalars or masks in ATen's schema."""
        roles = (argument.role for argument in arguments(self.operator) if argument.kind != "tensor")
        return [value for role in roles if isinstance(value := self.given[role], ir.Value)]

    def constant(self, role: str) -> NDArray[Any] | None:
        """Returns a scalar or a mask as one-dimensional array; None if it is omitted or known only at run time."""
        value = self.given.get(role)
        if isinstance(value, ir.Attr):
            return None if value.is_ref() else np.reshape(value.value, -1)
        # A graph input is not constant, even with an initializer: the caller may override it.
        if value is None or value.is_graph_input():
            return None
        tensor = constant_tensor(value)
        return None if tensor is None else tensor.numpy().reshape(-1)

    def refusal(self) -> str | None:
        """Returns why the schema does not allow this call; None if it does."""
        if self.overload:
            return f"its overload is {self.overload!r}; expected the default one"
        for argument in arguments(self.operator):
            if reason := _argument_refusal(argument, self.given[argument.role], self.constant(argument.role)):
                return reason
        if self.extra_inputs:
            return f"it has {self.extra_inputs} more inputs than ATen's schema has arguments"
        return None

    def unknown(self, role: str) -> str:
        """Returns why the value of a scalar is unknown."""
        name = next(argument.name for argument in arguments(self.operator) if argument.role == role)
        if self.given[role] is None:
            return f"it has no {name}; expected one"
        return f"its {name} is not constant; fold the model's constants and inline its functions first"


def arguments(operator: str) -> list[Argument]:
    """Returns the arguments of an op, a key of `SCHEMAS`, in order."""
    pairs = (argument.split(" ") for argument in SCHEMAS[operator].split(", "))
    return [Argument(name, _KINDS[kind.rstrip("?")], kind.endswith("?")) for kind, name in pairs]  # type: ignore[arg-type]


def operator_of(node: ir.Node) -> str | None:
    """Returns the name of the ATen op that a node calls, without namespace and overload; None if it calls none."""
    if (node.domain, node.op_type) != ATEN_NODE:
        return node.op_type.removeprefix("aten::").removeprefix("aten_").partition(".")[0]
    operator = node.attributes.get("operator")
    return _text(operator).removeprefix("aten::") or None


def call_of(node: ir.Node) -> Call:
    """Reads a node whose operator is one of `SCHEMAS`."""
    operator = operator_of(node)
    assert operator is not None, "the pass matches no other nodes"  # noqa: S101
    inputs = list(node.inputs)
    given: dict[str, ir.Value | ir.Attr | None] = {}
    for argument in arguments(operator):
        attribute = node.attributes.get(argument.name)
        given[argument.role] = (inputs.pop(0) if inputs else None) if attribute is None else attribute
    return Call(operator, _overload(node), given, len(inputs))


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


def _argument_refusal(
    argument: Argument, value: ir.Value | ir.Attr | None, constant: NDArray[Any] | None
) -> str | None:
    name, kind, optional = argument
    if kind == "tensor":
        if isinstance(value, ir.Attr):
            return f"its {name} is an attribute; expected an input"
        return (
            f"it has no {name}; expected one"
            if value is None and not optional and name not in _WORKSPACES
            else None
        )
    if isinstance(value, ir.Attr) and value.type != _ATTRIBUTE_TYPES[kind]:
        return f"its attribute {name} is of type {value.type.name}; expected {_ATTRIBUTE_TYPES[kind].name}"
    expected = 3 if kind == "mask" else 1
    if constant is not None and constant.size != expected:
        return f"its {name} has {constant.size} elements; expected {expected}"
    return None
