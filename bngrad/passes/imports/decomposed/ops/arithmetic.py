"""Arithmetic of elements, and functions whose output has the layout of their input and no normal form."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.passes.imports.decomposed.ops.record import (
    FLOATS,
    INTEGERS,
    Op,
    register,
)
from bngrad.passes.imports.decomposed.polynomial import WHOLE, add, as_number, multiply, number

if TYPE_CHECKING:
    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.evaluate import Evaluator
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.ops.record import Array
    from bngrad.passes.imports.decomposed.polynomial import Polynomial, Vector
    from bngrad.passes.imports.decomposed.sizes import Sizes


def elementwise(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:  # noqa: ARG001
    """The layout of all inputs, broadcast."""
    values = [value for value in node.inputs if value is not None]
    operands = [operand for value in values if (operand := layouts.at(value)) is not None]
    return layouts.axes.broadcast(operands) if len(operands) == len(values) else None


def same_layout(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout:  # noqa: ARG001
    """The layout of input 0."""
    return layout


def _cast(forms: Forms, node: ir.Node) -> Polynomial | None:
    x, to = node.inputs[0], node.outputs[0].dtype
    if x is None or to not in FLOATS:
        return None
    vector = forms.sizes.of(x)
    if vector is not None:
        return vector[0] if len(vector) == 1 else None
    if x.dtype == ir.DataType.BOOL:
        flag = as_number(forms.of(x))
        return None if flag is None else number(flag)
    return forms.of(x) if x.dtype in FLOATS else None


def _cast_array(evaluator: Evaluator, node: ir.Node, x: Array) -> Array:  # noqa: ARG001
    return x if node.outputs[0].dtype in INTEGERS else np.asarray(x).astype(np.float64)


def _add(forms: Forms, node: ir.Node) -> Polynomial | None:
    if node.outputs[0].dtype not in FLOATS:
        return None
    total: Polynomial = {}
    for index in range(len(node.inputs)):
        term = forms.of_input(node, index)
        if term is None:
            return None
        total = add(total, term, -1.0 if node.op_type == "Sub" and index else 1.0)
    return total


def _add_sizes(sizes: Sizes, node: ir.Node, *vectors: Vector) -> Vector | None:  # noqa: ARG001
    numbers = [as_number(vector[0]) if len(vector) == 1 else None for vector in vectors]
    a, b = numbers if len(numbers) == 2 else (None, None)
    return None if a is None or b is None else [number(a + b if node.op_type == "Add" else a - b)]


def _neg(forms: Forms, node: ir.Node) -> Polynomial | None:
    x = forms.of_input(node)
    return None if x is None else add({}, x, -1.0)


def _mul(forms: Forms, node: ir.Node) -> Polynomial | None:
    a, b = node.inputs
    if a is None or b is None or node.outputs[0].dtype not in FLOATS:
        return None
    if a is b:
        return forms.algebra.power(forms.of(a), 2 * WHOLE)
    forms.before_multiplying(a, b)
    forms.before_multiplying(b, a)
    return forms.algebra.product(forms.of(a), forms.of(b))


def _mul_sizes(sizes: Sizes, node: ir.Node, a: Vector, b: Vector) -> Vector | None:  # noqa: ARG001
    return [multiply(x, y) for x in a for y in b] if min(len(a), len(b)) == 1 else None


def _div(forms: Forms, node: ir.Node) -> Polynomial | None:
    a, b = forms.of_input(node, 0), forms.of_input(node, 1)
    if a is None or b is None or node.outputs[0].dtype not in FLOATS:
        return None
    inverse = forms.algebra.power(b, -2)
    return None if inverse is None else forms.algebra.product(a, inverse)


def _div_sizes(sizes: Sizes, node: ir.Node, a: Vector, b: Vector) -> Vector | None:  # noqa: ARG001
    """The quotient if nothing is rounded, as of a product divided by one of its factors; else None."""
    if len(a) != 1 or len(b) != 1 or len(b[0]) != 1:
        return None
    inverse = sizes.algebra.power(b[0], -2)
    result = {} if inverse is None else multiply(a[0], inverse)
    whole = all(value == int(value) and all(e > 0 for _, e in term) for term, value in result.items())
    return [result] if inverse is not None and whole else None


def _divided(a: Array, b: Array) -> Array:
    return a // b if a.dtype.kind == b.dtype.kind == "i" else a / b


def _pow(forms: Forms, node: ir.Node) -> Polynomial | None:
    base, exponent = forms.of_input(node, 0), node.inputs[1]
    sizes = forms.sizes.of(exponent)
    power = as_number(sizes[0]) if sizes else None if exponent is None else as_number(forms.of(exponent))
    if base is None or power is None or not 0 < abs(power) <= 4 or power * 2 != int(power * 2):
        return None
    return forms.algebra.power(base, int(power * 2))


def _power_of_input(forms: Forms, node: ir.Node) -> Polynomial | None:
    x = forms.of_input(node)
    return None if x is None else forms.algebra.power(x, 1 if node.op_type == "Sqrt" else -2)


_CAST = Op(same_layout, _cast, lambda sizes, node, x, *_: x, evaluate=_cast_array, operands=1)  # noqa: ARG005

register(
    {
        "Cast": _CAST._replace(float_sizes=True),
        "CastLike": _CAST._replace(sizes=None),
        "Add": Op(elementwise, _add, _add_sizes, np.add),
        "Sum": Op(elementwise, _add, numpy=lambda *terms: reduce(np.add, terms)),
        "Sub": Op(elementwise, _add, _add_sizes, np.subtract),
        "Neg": Op(elementwise, _neg, numpy=np.negative),
        "Mul": Op(elementwise, _mul, _mul_sizes, np.multiply),
        "Div": Op(elementwise, _div, _div_sizes, _divided),
        "Pow": Op(elementwise, _pow, numpy=np.power),
        "Sqrt": Op(elementwise, _power_of_input, numpy=np.sqrt),
        "Reciprocal": Op(elementwise, _power_of_input, numpy=lambda x: 1.0 / x),
        **dict.fromkeys(
            (
                *("Celu", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log"),
                *("Mish", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
            ),
            Op(same_layout),
        ),
    }
)
