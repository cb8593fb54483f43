"""The gradient of a ReLU, as one op or in primitives: dZ where Z > 0, else 0.

::

    com.microsoft.ReluGrad(dZ, Z)
    Where(Z > 0, dZ, 0);  Where(Z <= 0, 0, dZ);  Mul(dZ, Cast(Z > 0)), with 0 of any shape
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir


class ReluGradient(NamedTuple):
    """The operands of a ReLU's gradient."""

    dZ: ir.Value
    Z: ir.Value


def relu_gradient(value: ir.Value) -> ReluGradient | None:
    """Returns the operands of a value that is a ReLU's gradient; None if it is not, or broadcasts an operand."""
    node = value.producer()
    if node is None:
        return None
    result: ReluGradient | None = None
    if (node.domain, node.op_type) == (MICROSOFT, "ReluGrad"):
        # Nothing checks the number of inputs of this op before.
        present = [value for value in node.inputs if value is not None]
        return ReluGradient(*present) if len(present) == len(node.inputs) == len(ReluGradient._fields) else None
    if (node.domain, node.op_type) == ("", "Where"):
        condition, a, b = node.inputs
        sign = _sign(condition)
        dZ, other = (a, b) if sign is not None and sign[1] else (b, a)
        if sign is not None and dZ is not None and _is_zero(other):
            result = ReluGradient(dZ, sign[0])
    elif (node.domain, node.op_type) == ("", "Mul"):
        for dZ, mask in (node.inputs, node.inputs[::-1]):
            sign = _sign(mask)
            if sign is not None and sign[1] and dZ is not None and result is None:
                result = ReluGradient(dZ, sign[0])
    same = result is not None and all(
        _has_shape(operand, value) and operand.dtype == value.dtype for operand in result
    )
    return result if same else None


def _sign(condition: ir.Value | None) -> tuple[ir.Value, bool] | None:
    """Returns the Z of a condition, and whether it is Z > 0, or else Z <= 0; None if it is another one."""
    if condition is None:
        return None
    node = origin(condition, ("Cast", "Identity")).producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Not":
        inner = _sign(node.inputs[0])
        return None if inner is None else (inner[0], not inner[1])
    if node.op_type not in _ABOVE or len(node.inputs) != 2:
        return None
    for place, above in enumerate(_ABOVE[node.op_type]):
        Z, zero = node.inputs[place], node.inputs[1 - place]
        if above is not None and Z is not None and _is_zero(zero):
            return Z, above
    return None


_MOST_ELEMENTS = 1 << 24

_ABOVE = {
    "Greater": (True, None),
    "Less": (None, True),
    "LessOrEqual": (False, None),
    "GreaterOrEqual": (None, False),
}
"""For Z as the first and as the second input of a comparison with 0: True if it is Z > 0, False if Z <= 0."""


def _is_zero(value: ir.Value | None) -> bool:
    """Tests whether all elements of a value are the constant 0."""
    if value is None:
        return False
    source = origin(value, SAME_VALUES)
    maker = source.producer()
    if maker is not None and (maker.domain, maker.op_type) == ("", "ConstantOfShape"):
        filling = maker.attributes.get("value")
        return filling is None or (not filling.is_ref() and not filling.as_tensor().numpy().any())
    tensor = None if source.is_graph_input() else constant_tensor(source)
    return tensor is not None and 0 < tensor.size <= _MOST_ELEMENTS and not tensor.numpy().any()


def _has_shape(value: ir.Value, other: ir.Value) -> bool:
    """Tests whether two values have the same shape, as far as it is known."""
    return value.shape is not None and value.shape == other.shape
