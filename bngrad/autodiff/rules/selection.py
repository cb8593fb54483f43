"""Ops whose output elements are those of one input or another."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from bngrad.autodiff.rule import for_each_input, gradient
from bngrad.autodiff.ties import joint_limits
from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.guards import cut, is_first_order, is_guard
from bngrad.graph.node_reader import dtype_of, is_off, like
from bngrad.graph.signs import may_overflow
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Max", inputs=None, versions=(13,))
@gradient("Min", inputs=None, versions=(13,))
def extremum(back: Backward) -> Gradients:
    """For Min and Max: dY goes to the operand equal to Y; if several are, by the framework's convention."""
    operands = [back.x(index) for index in range(len(back.node.inputs))]
    if len(operands) == 1:
        return [back.dY]
    singular = any(map(may_overflow, operands))  # no operand equals a NaN
    dtype = statistics_dtype(operands[0])
    rounded = operands[0].dtype != dtype
    # ONNX Runtime may leave out the rounding of operands to 16 bits for comparisons, but not for Y.
    operands = [back.cast(x, dtype) for x in operands]
    tie = back.tie
    if len(operands) == 2 and tie in ("pass", "stop"):
        beyond = "Greater" if back.node.op_type == "Max" else "Less"
        comparisons = (f"{beyond}OrEqual", beyond) if tie == "pass" else (beyond, f"{beyond}OrEqual")
        chosen = [back.op(op_type, operands[i], operands[1 - i]) for i, op_type in enumerate(comparisons)]
        return for_each_input(back, lambda index: back.kept(chosen[index], back.dY, singular=singular))
    y = back.op(back.node.op_type, *operands) if rounded else back.y()
    chosen = [back.op("Equal", x, y) for x in operands]
    if limits := joint_limits(back.node):  # where these are equal, the first operand gets all
        alone = back.op("And", chosen[0], back.op("Equal", *limits))
        chosen[1] = back.op("And", chosen[1], back.op("Not", alone))
    share = back.op(
        "Div", back.dY, back.op("Sum", *(back.cast(is_chosen, dtype_of(back.dY)) for is_chosen in chosen))
    )
    share.dtype = dtype_of(back.dY)
    return for_each_input(back, lambda index: back.kept(chosen[index], share, singular=singular))


@gradient("Where", inputs=(1, 2), versions=(16,))
def where(back: Backward) -> Gradients:
    """dY goes to X where the condition is true, else to Y. Not a product: 0 times infinity is not 0."""
    if is_guard(back.node):
        return [None, None, back.dY]
    if is_first_order(back.node):
        back.refuse("its derivative has no derivative here, as that of a product has none where a factor is 0")
    condition, zero = back.x(0), like(back, 0, back.dY)
    return for_each_input(
        back, lambda index: back.op("Where", condition, *((back.dY, zero) if index == 1 else (zero, back.dY)))
    )


@gradient("Clip", inputs=(0, 1, 2), versions=(13,))
def clip(back: Backward) -> Gradients:
    """dY goes to X between min and max, else to the limit equal to Y; at a limit by the framework's convention.

    Y = min(max(X, low), high), which is high where low is above it. Either may be left out.
    """
    x, low, high, tie = back.x(0), back.optional(1), back.optional(2), back.tie
    result: list[ir.Value | None] = [None] * 3
    within, beyond = ("", "OrEqual") if tie == "stop" else ("OrEqual", "")
    if back.needs(0):
        above = [back.op(f"Greater{within}", x, low)] if low is not None else []
        below = [back.op(f"Less{within}", x, high)] if high is not None else []
        dX = _masked(back, *above, *below)
        limits = [limit for limit in (low, high) if limit is not None]
        result[0] = _halved(back, dX, limits) if tie == "split" and limits else dX
    if low is not None and back.needs(1):
        sane = [back.op("LessOrEqual", low, high)] if high is not None else []
        result[1] = _of_limit(back, f"Less{beyond}", x, low, sane)
    if high is not None and back.needs(2):
        raised = back.op("Max", x, low) if low is not None else x
        result[2] = _of_limit(back, f"Greater{beyond}", raised, high, [])
    return result


def _halved(back: Backward, dX: ir.Value, limits: Sequence[ir.Value]) -> ir.Value:
    """Halves a gradient where X equals one limit, but not both."""
    at_limit = reduce(partial(back.op, "Xor"), (back.op("Equal", back.x(0), limit) for limit in limits))
    return back.op("Where", at_limit, back.op("Mul", dX, like(back, 0.5, back.dY)), dX)


def _of_limit(back: Backward, beyond: str, x: ir.Value, limit: ir.Value, sane: Sequence[ir.Value]) -> ir.Value:
    """Returns the gradient of a limit: dY where X is beyond it, and half of dY at a tie with X that is split."""
    dY = _masked(back, back.op(beyond, x, limit), *sane)
    if back.tie == "split":
        half = _masked(back, back.op("Equal", x, limit), *sane)
        dY = back.op("Add", dY, back.op("Mul", half, like(back, 0.5, back.dY)))
    return sum_to(back, dY, limit, back.y())


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
    """Returns dY where all the conditions are true, else 0."""
    if not conditions:
        return back.dY
    return back.kept(reduce(partial(back.op, "And"), conditions), back.dY)
