"""Choices and comparisons, which keep a variance from being negative, and a product from being NaN."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from bngrad.passes.imports.decomposed.ops.arithmetic import elementwise, same_layout
from bngrad.passes.imports.decomposed.ops.record import FLOATS, Op, register
from bngrad.passes.imports.decomposed.polynomial import add, as_number, number, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.polynomial import Polynomial


def _variance_kept(forms: Forms, node: ir.Node) -> Polynomial | None:
    """The form of a variance, if a choice only keeps it from being negative."""
    operands = [forms.of(value) for value in node.inputs if value is not None]
    if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return None
    moving = [form for form in operands if form]
    if node.op_type in ("Clip", "Max") and (len(operands) != 2 or len(moving) != 1):
        return None
    return moving[0] if len(moving) == 1 and forms.algebra.is_variance(moving[0]) else None


def _where(forms: Forms, node: ir.Node) -> Polynomial | None:
    condition = node.inputs[0]
    flag = None if condition is None else as_number(forms.of(condition))
    if flag is not None:
        return forms.of_input(node, 1 if flag else 2)
    return _guarded(forms, node)


def _guarded(forms: Forms, node: ir.Node) -> Polynomial | None:
    """The form of a product that is 0 where one factor is 0, even if the other is infinite (`graph.guards`)."""
    test = None if node.inputs[0] is None else node.inputs[0].producer()
    if (
        not forms.guards
        or test is None
        or (test.domain, test.op_type) != ("", "Equal")
        or forms.of_input(node, 1) != {}
    ):
        return None
    factor, zero, product = (
        forms.of_input(test, 0),
        forms.of_input(test, 1),
        forms.of_input(node, 2),
    )
    if not factor or zero != {} or product is None:
        return None
    forms.compares_with_zero = True
    if len(factor) == 1:
        (monomial,) = factor
        signed = [(atom, exponent) for atom, exponent in monomial if not forms.algebra.is_power_base(atom)]
        multiple = all(dict(term).get(atom, 0) >= exponent > 0 for term in product for atom, exponent in signed)
        return product if multiple else None
    return product if ratio(product, factor) is not None else None


def _compare(forms: Forms, node: ir.Node) -> Polynomial | None:
    """The result of a comparison of constants, of sizes with 0, or of a variance with 0.

    The variance is taken to be positive: where it is 0, x - mean is 0, a factor of all values that depend on it.
    """
    a, b = forms.of_input(node, 0), forms.of_input(node, 1)
    if a is None or b is None or node.inputs[0] is None or node.inputs[0].dtype not in FLOATS:
        return None
    difference = add(a, b, -1.0)
    sign = as_number(difference)
    if sign is None and (not a or not b):
        varies = forms.guards and forms.algebra.is_variance(a or b)
        forms.compares_with_zero |= varies
        sign = (1.0 if a else -1.0) if varies or forms.algebra.is_positive(a or b) else None
    if sign is None or (not difference and as_number(a) is None and not forms.algebra.is_variance(a)):
        return None
    return number(float(_COMPARISONS[node.op_type](sign, 0.0)))


def _logic(forms: Forms, node: ir.Node) -> Polynomial | None:
    flags = [as_number(forms.of(value)) for value in node.inputs if value is not None]
    if not flags or None in flags:
        return None
    if node.op_type == "Not":
        return number(float(not flags[0]))
    return number(float((all if node.op_type == "And" else any)(flags)))


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}


def _choice(form: Callable[[Forms, ir.Node], Polynomial | None], numpy: Callable[..., object]) -> Op:
    return Op(elementwise, form, numpy=numpy, chooses=True)


register(
    {
        "Abs": _choice(_variance_kept, np.abs),
        "Clip": _choice(_variance_kept, np.maximum)._replace(layout=same_layout),
        "Max": _choice(_variance_kept, lambda *values: reduce(np.maximum, values)),
        "Relu": _choice(_variance_kept, lambda x: np.maximum(x, 0.0)),
        "Where": _choice(_where, np.where),
        **{op_type: _choice(_compare, compare) for op_type, compare in _COMPARISONS.items()},
        "And": _choice(_logic, np.logical_and),
        "Or": _choice(_logic, np.logical_or),
        "Not": _choice(_logic, np.logical_not),
    }
)
