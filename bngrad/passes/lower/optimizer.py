"""The updates of weights by ONNX Runtime's optimizers, in standard ONNX and AdamUpdate of ``bngrad``.

Weights, moments and gradients are sequences of tensors, which ONNX Runtime updates in place. Here the new ones are
graph outputs: ``<input>_new``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute
from bngrad.opset.op_attributes import ANY, FLAG
from bngrad.passes.lower.lowering import lowering
from bngrad.passes.lower.tensor_sequences import concatenated, map_sequences, return_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.graph.builder import NodeMaker
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.tensor_sequences import Compute

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def _refusal(number: int, updated: Sequence[int]) -> Callable[[ir.Node], str | None]:
    """Returns the refusal of an op with at least ``number`` inputs, which updates those with some indices."""

    def refusal(node: ir.Node) -> str | None:
        if len(node.inputs) < number or None in node.inputs[:number]:
            return f"it lacks an input; expected {number}"
        for index, value in enumerate(node.inputs[:number]):
            if value is None:
                continue
            if isinstance(value.type, ir.SequenceType) and value.dtype not in (_FLOAT, None):
                return f"its input {value.name!r} is a sequence of {value.dtype.name.lower()}; expected float"
            if index in updated and len(value.uses()) > 1:
                return f"its input {value.name!r}, which it updates in place, is read by another node too"
        return None

    return refusal


@lowering("SGDOptimizerV2", refusal=_refusal(3, [1]))
def sgd_optimizer(site: Site) -> Outputs:
    """SGDOptimizerV2(lr, w, g, signal) -> done, w - lr g."""
    rate = _scalar(site, site.x(0))

    def update(make: NodeMaker, tensors: Sequence[ir.Value]) -> list[ir.Value]:
        weight, gradient = tensors
        return [make.op("Sub", weight, make.op("Mul", rate, gradient))]

    return _updated(site, [1], [2], update, signal=3)


def _adamw_refusal(node: ir.Node) -> str | None:
    if not read_attribute(node, "adam_mode", 0) and not read_attribute(node, "correct_bias", 1):
        return "it has adam_mode = 0 and correct_bias = 0, which ONNX Runtime refuses; expected correct_bias = 1"
    return _refusal(6, [2, 4, 5])(node)


@lowering(
    "AdamWOptimizer",
    refusal=_adamw_refusal,
    attributes={
        "alpha": ANY,
        "beta": ANY,
        "epsilon": ANY,
        "weight_decay": ANY,
        "adam_mode": (0, 1),
        "correct_bias": FLAG,
    },
)
def adamw_optimizer(site: Site) -> Outputs:
    """AdamWOptimizer(lr, t, w, g, m, v, signal) -> done, new w, new m, new v: AdamUpdate of ``bngrad``.

    With a = alpha, b = beta, k = 1 - lr weight_decay, ca = 1 - a^t and cb = 1 - b^t, both 1 without
    ``correct_bias``::

        m = a m + (1 - a) g
        v = b v + (1 - b) g^2
        adam_mode 0: w = k w - lr / ca m / (sqrt(v) / sqrt(cb) + epsilon)             as in PyTorch
        adam_mode 1: w = k (w - lr sqrt(cb) / ca m / (sqrt(v) + epsilon))             as in Transformers
                       = k w - k lr / ca m / (sqrt(v) / sqrt(cb) + epsilon / sqrt(cb))
    """
    coefficients = _adamw_coefficients(site)

    def update(make: NodeMaker, tensors: Sequence[ir.Value]) -> Sequence[ir.Value]:
        weight, first, second, gradient = tensors
        return make.bngrad("AdamUpdate", weight, gradient, first, second, coefficients)

    return _updated(site, [2, 4, 5], [3], update, signal=6)


def _adamw_coefficients(site: Site) -> ir.Value:
    """The coefficients of AdamUpdate, in its order, as double.

    ONNX Runtime rounds a, b and 1 - a^t to float32; so does this.
    """
    unit = site.constant([1], _DOUBLE)
    rate = site.cast(site.op("Reshape", site.x(0), site.int64([1])), _DOUBLE)
    alpha, beta = (float(np.float32(site.attribute(*default))) for default in (("alpha", 0.9), ("beta", 0.999)))
    decay, epsilon = (
        site.constant([site.attribute(*default)], _DOUBLE)
        for default in (("weight_decay", 0.01), ("epsilon", 1e-8))
    )
    kept = site.op("Sub", unit, site.op("Mul", rate, decay))
    correction, deviation = unit, unit
    if site.attribute("correct_bias", 1):
        step = site.cast(site.op("Reshape", site.x(1), site.int64([1])), _DOUBLE)
        correction = _bias_correction(site, step, alpha)
        deviation = site.op("Sqrt", _bias_correction(site, step, beta))
    size = site.op("Div", rate, correction)
    if site.attribute("adam_mode", 0):
        size, epsilon = site.op("Mul", size, kept), site.op("Div", epsilon, deviation)
    numbers = site.constant([1 - alpha, beta, 1 - beta], _DOUBLE)
    unscaled = site.constant([1, 0], _DOUBLE)
    return site.op("Concat", unscaled, kept, numbers, size, deviation, epsilon, axis=0)


@lowering("InplaceClipGradNorm", refusal=_refusal(1, [0]), attributes={"max_norm": ANY})
def clip_gradient_norm(site: Site) -> Outputs:
    """InplaceClipGradNorm(g) {max_norm} -> g min(max_norm / (norm + 1e-6), 1).

    The norm is that of all gradients together. ONNX Runtime scales the gradients that it is given, so the result
    is a new value of them, too.
    """
    gradients = site.x(0)

    def square(make: NodeMaker, tensors: Sequence[ir.Value]) -> list[ir.Value]:
        return [make.op("Reshape", make.op("ReduceSumSquare", *tensors, keepdims=0), make.int64([1]))]

    (squares,) = map_sequences(site, [gradients], square)
    norm = site.op("Sqrt", site.op("ReduceSum", concatenated(site, squares), keepdims=0))
    largest = site.constant(site.attribute("max_norm", 1.0), _FLOAT)
    ratio = site.op("Div", largest, site.op("Add", norm, site.constant(1e-6, _FLOAT)))
    factor = site.op("Min", ratio, site.constant(1.0, _FLOAT))

    def scale(make: NodeMaker, tensors: Sequence[ir.Value]) -> list[ir.Value]:
        return [make.op("Mul", *tensors, factor)]

    (clipped,) = map_sequences(site, [gradients], scale)
    return_sequence(site, gradients, clipped, output=0)
    return [clipped]


@lowering("ReduceAllL2")
def reduce_all_l2(site: Site) -> Outputs:
    """ReduceAllL2(tensors...) -> the L2 norm of all their elements."""
    tensors = [site.x(index) for index in range(len(site.node.inputs))]
    squares = [site.op("ReduceSumSquare", tensor, keepdims=0) for tensor in tensors]
    return [site.op("Sqrt", site.op("Sum", *squares))]


def _updated(
    site: Site,
    updated: Sequence[int],
    read_only: Sequence[int],
    update: Compute,
    *,
    signal: int,
) -> list[ir.Value]:
    """Lowers an optimizer: returns its flag, and the new sequences of the inputs that it updates.

    Args:
        site: The node.
        updated: The indices of those inputs.
        read_only: The indices of the sequences that it reads but does not update.
        update: Computes the new tensors from the updated ones and the others.
        signal: The index of an input that is false where nothing is to be updated; it may be left out.
    """
    old = [site.x(index) for index in updated]
    go = None if (signal_value := site.optional(signal)) is None else _scalar(site, signal_value)

    def update_if(make: NodeMaker, tensors: Sequence[ir.Value]) -> Sequence[ir.Value]:
        new = update(make, tensors)
        return new if go is None else [make.op("Where", go, *pair) for pair in zip(new, tensors, strict=False)]

    new = map_sequences(site, [*old, *(site.x(index) for index in read_only)], update_if)
    for output, (before, after) in enumerate(zip(old, new, strict=True), start=1):
        return_sequence(site, before, after, output)
    flag = site.constant(value=True, dtype=ir.DataType.BOOL) if go is None else go
    like = site.x(0 if site.node.op_type == "SGDOptimizerV2" else 1)
    done = site.op("Expand", flag, site.op("Shape", like))
    return [done, *new][: len(site.node.outputs)]


def _scalar(site: Site, value: ir.Value) -> ir.Value:
    """One number as a scalar, so that a weight keeps its own rank, even 0."""
    return site.op("Reshape", value, site.int64([]))


def _bias_correction(site: Site, step: ir.Value, base: float) -> ir.Value:
    """1 - base^t as float32 has it, in double."""
    power = site.cast(site.op("Pow", site.constant([base], _DOUBLE), step), _FLOAT)
    return site.cast(site.op("Sub", site.constant([1], _FLOAT), power), _DOUBLE)
