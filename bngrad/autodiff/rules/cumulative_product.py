"""CumProd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.guards import first_order, zero_where_zero
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("CumProd", versions=(26,), attributes={"exclusive": FLAG, "reverse": FLAG})
def cum_prod(back: Backward) -> Gradients:
    """dX = CumSum(dY Y) / X from the other end, before the first 0 of X; there CumSum(dY Y'), and after it 0.

    Y' has a 1 in the place of that 0: the products of the other elements.
    """
    axis, exclusive, reverse = back.x(1), back.attribute("exclusive", 0), back.attribute("reverse", 0)
    dtype = statistics_dtype(back.x(0))
    x, dY = back.cast(back.x(0), dtype), back.cast(back.dY, dtype)

    def total(products: ir.Value) -> ir.Value:
        terms = back.op("Mul", dY, products)
        if back.unbounded:
            terms = zero_where_zero(back, products, terms, typed=x)
        return back.op("CumSum", terms, axis, exclusive=exclusive, reverse=1 - reverse)

    def product(values: ir.Value) -> ir.Value:
        return back.op("CumProd", values, axis, exclusive=exclusive, reverse=reverse)

    zero, unit = like(back, 0, x), like(back, 1, x)
    is_zero = back.op("Equal", x, zero)
    before = back.op("CumSum", back.cast(is_zero, ir.DataType.INT32), axis, exclusive=1, reverse=reverse)
    is_first = back.op("And", is_zero, back.op("Equal", before, back.constant(0, ir.DataType.INT32)))
    others = total(product(first_order(back.op("Where", is_first, unit, x))))
    y = back.y() if dtype == back.x(0).dtype else product(x)
    quotient = back.op("Div", total(y), back.op("Where", is_zero, unit, x))
    return [cast_like(back, back.op("Where", is_first, others, quotient), dtype, back.x(0))]
