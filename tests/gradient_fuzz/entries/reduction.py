"""Reductions and global pooling."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

REDUCTIONS = (
    *(
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
    ),
    *("ReduceSum", "ReduceSumSquare"),
)


def reduction(b: Sketch, op_type: str) -> list[Value]:
    x = b.any(0)
    if op_type == "ReduceLogSum":
        x = b.positive(x)
    if op_type == "ReduceProd" and x.array.size and b.draw.chance(0.2):
        x = b.one("Relu", x)
    keepdims = b.maybe(b.draw.choice([0, 1]), 0.7)
    with_input = b.opset >= (13 if op_type == "ReduceSum" else 18)
    axes = [
        axis - x.rank if b.draw.chance(0.4) else axis
        for axis in b.draw.sample(range(x.rank), b.draw.randint(0, x.rank))
    ]
    if b.draw.chance(0.2):
        axes = None
    noop = b.maybe(b.draw.choice([0, 1]), 0.3) if with_input else None
    # For a reduction over no axes, some runtimes compute the rest and some return the input.
    if axes is not None and not axes and not with_input:
        axes = None
    axes_in = None if axes is None or not with_input else b.shape_of(axes)
    if noop and not axes and op_type not in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
        raise NotDrawableError("releases differ")
    outputs = b.emit(
        op_type,
        [x, axes_in],
        keepdims=keepdims,
        axes=axes if not with_input else None,
        noop_with_empty_axes=noop,
    )
    if op_type == "ReduceL2" and not np.all(outputs[0].array > 0.01):
        raise NotDrawableError("a length of 0")
    return outputs


def pooled(b: Sketch, op_type: str) -> list[Value]:
    return b.emit(op_type, [b.any(3, 5)])


def global_lp_pool(b: Sketch) -> list[Value]:
    x = b.any(3, 5)
    (y,) = b.emit("GlobalLpPool", [x], p=b.maybe(b.draw.choice([1, 2, 3])))
    if not np.all(y.array > 0.01):
        raise NotDrawableError("a length of 0")
    return [y]


def cum_prod(b: Sketch) -> list[Value]:
    """Products along an axis, sometimes with zeros among their factors."""
    x = b.any(1)
    if b.draw.chance(0.5):
        x = b.one("Mul", x, b.constant(b.rng.integers(0, 2, b.broadcast_to(x.shape)), b.element))
    element = b.draw.choice([onnx.TensorProto.INT64, onnx.TensorProto.INT32])
    return b.emit(
        "CumProd",
        [x, b.constant(np.asarray(b.axis(x.rank)), element)],
        exclusive=b.maybe(b.draw.choice([0, 1])),
        reverse=b.maybe(b.draw.choice([0, 1])),
    )


def det(b: Sketch) -> list[Value]:
    size = b.draw.choice([1, 2, 2, 3, 4])
    x = b.of_shape((*b.dims(b.draw.randint(0, 2)), size, size))
    if b.draw.chance(0.3):  # singular matrices
        x = b.one("Mul", x, b.constant(b.rng.integers(0, 2, (size, 1)), b.element))
    return b.emit("Det", [x])


ENTRIES = {
    **{("", op_type): partial(reduction, op_type=op_type) for op_type in REDUCTIONS},
    ("", "CumProd"): cum_prod,
    ("", "Det"): det,
    ("", "GlobalLpPool"): global_lp_pool,
    **{("", op_type): partial(pooled, op_type=op_type) for op_type in ("GlobalAveragePool", "GlobalMaxPool")},
}
