"""Ops whose output elements are those of one input or another."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from bngrad.autodiff.broadcasting import for_each_input
from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.guards import cut
from bngrad.graph.node_reader import dtype_of, is_off, like
from bngrad.graph.signs import may_overflow
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Max", inputs=None, versions=(13,))
@gradient("Min", inputs=None, versions=(13,))
def extremum(back: Backward) -> Gradients:
    """Of Min and Max: dY goes to the operand that is Y, in equal parts where several are."""
    operands = [back.x(index) for index in range(len(back.node.inputs))]
    if len(operands) == 1:
        return [back.dY]
    singular = any(map(may_overflow, operands))  # no operand equals a NaN
    y, dtype = back.y(), statistics_dtype(operands[0])
    if operands[0].dtype != dtype:
        # ONNX Runtime may leave out the rounding of operands to 16 bits for Equal, and not for Y.
        operands = [back.cast(x, dtype) for x in operands]
        y = back.op(back.node.op_type, *operands)
    chosen = [back.op("Equal", x, y) for x in operands]
    share = back.op("Div", back.dY, back.op("Sum", *(back.cast(each, dtype_of(back.dY)) for each in chosen)))
    share.dtype = dtype_of(back.dY)
    return for_each_input(back, lambda index: back.kept(chosen[index], share, singular=singular))


@gradient("Where", inputs=(1, 2), versions=(16,))
def where(back: Backward) -> Gradients:
    """dY goes to X where the condition is true, else to Y. Not a product: 0 times infinity is no 0."""
    condition, zero = back.x(0), like(back, 0, back.dY)
    return for_each_input(
        back, lambda index: back.op("Where", condition, *((back.dY, zero) if index == 1 else (zero, back.dY)))
    )


@gradient("Clip", inputs=(0, 1, 2), versions=(13,))
def clip(back: Backward) -> Gradients:
    """dY goes to X from min to max, both included, else to the limit that Y is.

    Y = min(max(X, low), high): where low is above high, that is high. Either may be left out.
    """
    x, low, high = back.x(0), back.optional(1), back.optional(2)
    result: list[ir.Value | None] = [None] * 3
    if back.needs(0):
        above = [back.op("GreaterOrEqual", x, low)] if low is not None else []
        below = [back.op("LessOrEqual", x, high)] if high is not None else []
        result[0] = _masked(back, *above, *below)
    if low is not None and back.needs(1):
        sane = [back.op("LessOrEqual", low, high)] if high is not None else []
        result[1] = sum_to(back, _masked(back, back.op("Less", x, low), *sane), low, back.y())
    if high is not None and back.needs(2):
        raised = back.op("Max", x, low) if low is not None else x
        result[2] = sum_to(back, _masked(back, back.op("Greater", raised, high)), high, back.y())
    return result


@gradient("Dropout", versions=(13, 22), attributes={"seed": ANY})
def dropout(back: Backward) -> Gradients:
    """ORT's DropoutGrad(dY, mask, ratio, training_mode); dX = dY where the node never drops anything."""
    training = back.optional(2)
    if training is None or is_off(training):
        return [back.dY]
    dX = back.microsoft("DropoutGrad", back.dY, back.y(1), back.optional(1), training)
    dX.dtype = dtype_of(back.dY)
    return [cut(back, back.y(1), dX) if back.unbounded else dX]


def _masked(back: Backward, *conditions: ir.Value) -> ir.Value:
    """dY where all the conditions are true, else 0."""
    if not conditions:
        return back.dY
    return back.kept(reduce(partial(back.op, "And"), conditions), back.dY)
