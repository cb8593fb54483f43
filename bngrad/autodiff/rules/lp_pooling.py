"""Pools by a p-norm: dX = sign X |X|^(p - 1) times the sum of dY / Y^(p - 1) over the windows of each element.

The gradient is 0 where Y is 0, and with p = 1 where X is 0.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules.pooling import refuse_dilated_same
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import like
from bngrad.graph.shapes import shape_of
from bngrad.opset.op_attributes import ANY, POOL

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("LpPool", versions=(18, 22), attributes={**POOL, "p": ANY})
def lp_pool(back: Backward) -> Gradients:
    """dX = sign X |X|^(p - 1) G, where G is the sum of dY / Y^(p - 1) over the windows of an element.

    AveragePoolGrad adds up, of these times the number of elements that it divides by.
    """
    refuse_dilated_same(back)
    x, share, dtype = back.x(0), _share(back), statistics_dtype(back.x(0))
    kernel, loose = list(back.attribute("kernel_shape", [])), bool(back.attribute("ceil_mode", 0))
    attributes = {name: value for name, value in back.attributes().items() if name != "p"}
    if loose:
        # What ceil_mode adds to the last windows counts in some versions: only elements of X count.
        ones = back.op("Expand", back.constant(1, dtype), shape_of(back, x))
        count = back.op("LpPool", ones, p=1, **attributes)
    else:
        count = back.constant(prod(kernel), dtype)
    dX = back.op("AveragePoolGrad", back.op("Mul", share, count), count_include_pad=int(not loose), **attributes)
    dX.dtype, dX.shape = dtype, x.shape
    return [_of_elements(back, dX)]


@gradient("GlobalLpPool", versions=(2, 22), attributes={"p": ANY})
def global_lp_pool(back: Backward) -> Gradients:
    """dX = sign X |X|^(p - 1) dY / Y^(p - 1)."""
    return [_of_elements(back, _share(back))]


def _p(back: Backward) -> int:
    p: int = back.attribute("p", 2)
    if p < 1:
        back.refuse(f"its p is {p}; expected 1 or more")
    return p


def _share(back: Backward) -> ir.Value:
    """Returns dY / Y^(p - 1), in the type of statistics."""
    p, dtype = _p(back), statistics_dtype(back.x(0))
    dY = back.cast(back.dY, dtype)
    if p == 1:
        return dY
    y = back.cast(back.y(), dtype)
    length = back.op("Where", back.op("Equal", y, like(back, 0, y)), like(back, 1, y), y)
    share = back.op("Div", dY, length if p == 2 else back.op("Pow", length, like(back, p - 1, y)))
    share.dtype = dtype
    return share


def _of_elements(back: Backward, share: ir.Value) -> ir.Value:
    """Returns sign X |X|^(p - 1) times the shares of the windows."""
    p, dtype = _p(back), statistics_dtype(back.x(0))
    x = back.cast(back.x(0), dtype)
    slope = back.op("Sign", x) if p == 1 else x
    if p > 2:
        slope = back.op("Mul", x, back.op("Pow", back.op("Abs", x), like(back, p - 2, x)))
    return cast_like(back, back.times(share, slope), dtype, back.x(0))
