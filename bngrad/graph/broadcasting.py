"""The gradient of broadcasting: a sum over the dimensions along which an input was repeated.

The dimensions are known statically where sizes are numbers or the same symbol. Elsewhere BroadcastGradientArgs
computes the axes from two shapes at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker


def _gradient_args(make: NodeMaker, x_shape: ir.Value, y_shape: ir.Value) -> ir.Value:
    """Builds ORT's op for the axes; its second output, the axes of y, would be empty."""
    return make.microsoft("BroadcastGradientArgs", x_shape, y_shape)


def sum_to(
    make: NodeMaker,
    gradient: ir.Value,
    x: ir.Value,
    y: ir.Value,
    *,
    others: Iterable[ir.Value] = (),
    axes_of: Callable[[NodeMaker, ir.Value, ir.Value], ir.Value] = _gradient_args,
) -> ir.Value:
    """Returns a gradient with the shape of an input, from one with the shape of the output.

    Args:
        make: The maker of the nodes.
        gradient: The gradient with respect to x before the sum, in the shape of y.
        x: An input that was broadcast.
        y: The output, or another value of its shape.
        others: The other inputs, where these are all that x was broadcast against.
        axes_of: A function that builds the nodes for the axes along which x was repeated, from the shapes of x and
            y.
    """
    repeated = repeated_axes(x, y, others)
    if repeated is None:
        x_shape = make.op("Shape", x)
        axes = axes_of(make, x_shape, make.op("Shape", y))
        summed = make.op("ReduceSum", gradient, axes, keepdims=1, noop_with_empty_axes=1)
        return make.op("Reshape", summed, x_shape, allowzero=1)
    if not repeated:
        return gradient
    missing = list(range(len(y.shape or ()) - len(x.shape or ())))
    if repeated == missing:
        return make.op("ReduceSum", gradient, make.int64(missing), keepdims=0)
    summed = make.op("ReduceSum", gradient, make.int64(repeated), keepdims=1)
    return make.op("Squeeze", summed, make.int64(missing)) if missing else summed


def repeated_axes(x: ir.Value, y: ir.Value, others: Iterable[ir.Value] = ()) -> list[int] | None:
    """Returns the axes of y along which x was repeated, those that x lacks first; None if not known statically.

    An axis of y of size 1 may be among them: a sum over one element changes nothing.

    Args:
        x: An input that was broadcast.
        y: The output, or another value of its shape.
        others: The other inputs, where these are all that x was broadcast against.
    """
    if x.shape is None or y.shape is None or len(x.shape) > len(y.shape):
        # A higher rank than y's is an error in the model's shapes.
        return None
    rank, others = len(y.shape), list(others)
    leading = rank - len(x.shape)
    axes = list(range(leading))
    for axis in range(leading, rank):
        mine, whole = x.shape[axis - leading], y.shape[axis]
        same = isinstance(mine, int) or (mine.value is not None and mine == whole)
        alone = bool(others) and all(_is_one(other, axis - rank) for other in others)
        if not same and not alone:
            return None
        if mine == 1 != whole:
            axes.append(axis)
    return axes


def _is_one(x: ir.Value, axis: int) -> bool:
    """Returns whether x has size 1 along an axis, counted from the last, or lacks the axis."""
    return x.shape is not None and (-axis > len(x.shape) or x.shape[axis] == 1)
