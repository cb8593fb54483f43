"""Softplus and Sigmoid in primitives that keep the digits of small results.

ONNX Runtime has no Softplus of double, and ONNX's definition of it overflows and cancels. Its Sigmoid (seen in
1.32) has an absolute error of up to 6e-8 in float and 1e-16 in double, and smaller results have no right digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker


def softplus(make: NodeMaker, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Returns log(1 + exp(x)), with a gradient of 1/2 at 0.

    In double it is max(x, 0) + log(s) + (u - (s - 1)) / s, with u = exp(-|x|) and s = 1 + u, as rounded.
    """
    if dtype != ir.DataType.DOUBLE:
        return make.op("Softplus", x)
    zero, unit = make.constant(0, dtype), make.constant(1, dtype)
    above = make.op("Greater", x, zero)
    u = make.op("Exp", make.op("Where", above, make.op("Neg", x), x))
    s = make.op("Add", unit, u)
    residue = make.op("Sub", u, make.op("Sub", s, unit))
    logarithm = make.op("Add", make.op("Log", s), make.op("Div", residue, s))
    return make.op("Add", make.op("Where", above, x, zero), logarithm)


def sigmoid(make: NodeMaker, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Returns 1 / (1 + exp(-x)), of 16-bit types computed in float, where exp(-x) does not overflow so early.

    Not to be differentiated: below -44 the square of the denominator is infinite in float.
    """
    wide = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    if dtype != wide:
        x = make.op("Cast", x, to=int(wide))
    result = make.op("Reciprocal", make.op("Add", make.constant(1, wide), make.op("Exp", make.op("Neg", x))))
    return result if dtype == wide else make.op("Cast", result, to=int(dtype))
