"""The updates of weights by ONNX Runtime's optimizers in standard ONNX.

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

_FLOAT = ir.DataType.FLOAT


def _refusal(number: int, updated: Sequence[int]) -> Callable[[ir.Node], str | None]:
    """Makes the refusal of an op that has at least a number of inputs, and updates those of some indices."""

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
    """AdamWOptimizer(lr, t, w, g, m, v, signal) -> done, new w, new m, new v.

    With a = alpha, b = beta, ca = 1 - a^t and cb = 1 - b^t, both 1 without ``correct_bias``::

        m = a m + (1 - a) g
        v = b v + (1 - b) g^2
        adam_mode 0: w = (1 - lr weight_decay) w - lr m / (ca (sqrt(v / cb) + epsilon))        as in PyTorch
        adam_mode 1: w = (1 - lr weight_decay) (w - lr sqrt(cb) / ca m / (sqrt(v) + epsilon))  as in Transformers
    """
    alpha, beta = (np.float32(site.attribute(*attribute)) for attribute in (("alpha", 0.9), ("beta", 0.999)))
    decay, epsilon = site.attribute("weight_decay", 0.01), site.attribute("epsilon", 1e-8)
    rate = _scalar(site, site.x(0))
    number = site.constant
    corrections = None
    if site.attribute("correct_bias", 1):
        step = site.cast(_scalar(site, site.x(1)), ir.DataType.DOUBLE)
        corrections = [_bias_correction(site, step, base) for base in (alpha, beta)]
    as_pytorch = site.attribute("adam_mode", 0) == 0
    corrected = rate
    if corrections and not as_pytorch:
        corrected = site.op("Mul", rate, site.op("Div", site.op("Sqrt", corrections[1]), corrections[0]))
    shrinkage = site.op("Mul", rate, number(decay, _FLOAT)) if decay else None
    constants = [number(c, _FLOAT) for c in (alpha, np.float32(1) - alpha, beta, np.float32(1) - beta, epsilon)]

    def decayed(make: NodeMaker, weight: ir.Value) -> ir.Value:
        return weight if shrinkage is None else make.op("Sub", weight, make.op("Mul", shrinkage, weight))

    def update(make: NodeMaker, tensors: Sequence[ir.Value]) -> list[ir.Value]:
        weight, first, second, gradient = tensors
        a, one_minus_a, b, one_minus_b, small = constants
        first = make.op("Add", make.op("Mul", a, first), make.op("Mul", one_minus_a, gradient))
        square = make.op("Mul", make.op("Mul", one_minus_b, gradient), gradient)
        second = make.op("Add", make.op("Mul", b, second), square)
        unbiased = make.op("Div", second, corrections[1]) if corrections and as_pytorch else second
        denominator = make.op("Add", make.op("Sqrt", unbiased), small)
        if corrections and as_pytorch:
            denominator = make.op("Mul", corrections[0], denominator)
        weight = decayed(make, weight) if as_pytorch else weight
        weight = make.op("Sub", weight, make.op("Div", make.op("Mul", corrected, first), denominator))
        return [weight if as_pytorch else decayed(make, weight), first, second]

    return _updated(site, [2, 4, 5], [3], update, signal=6)


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
    read: Sequence[int],
    update: Callable[[NodeMaker, Sequence[ir.Value]], list[ir.Value]],
    *,
    signal: int,
) -> list[ir.Value]:
    """Lowers an optimizer: returns its flag, and the new sequences of the inputs that it updates.

    Args:
        site: The node.
        updated: The indices of those inputs.
        read: The indices of the sequences that it reads only.
        update: Makes the new tensors of the updated ones and the read ones.
        signal: The index of an input that is false where nothing is to be updated; it may be left out.
    """
    old = [site.x(index) for index in updated]
    go = None if (given := site.optional(signal)) is None else _scalar(site, given)

    def update_if(make: NodeMaker, tensors: Sequence[ir.Value]) -> list[ir.Value]:
        new = update(make, tensors)
        return new if go is None else [make.op("Where", go, *pair) for pair in zip(new, tensors, strict=False)]

    new = map_sequences(site, [*old, *(site.x(index) for index in read)], update_if)
    for output, (before, after) in enumerate(zip(old, new, strict=True), start=1):
        return_sequence(site, before, after, output)
    flag = site.constant(value=True, dtype=ir.DataType.BOOL) if go is None else go
    like = site.x(0 if site.node.op_type == "SGDOptimizerV2" else 1)
    done = site.op("Expand", flag, site.op("Shape", like))
    return [done, *new][: len(site.node.outputs)]


def _scalar(site: Site, value: ir.Value) -> ir.Value:
    """One number as a scalar, so that a weight keeps its own rank, be it 0."""
    return site.op("Reshape", value, site.int64([]))


def _bias_correction(site: Site, step: ir.Value, base: np.float32) -> ir.Value:
    """1 - base^t, whose power ONNX Runtime computes in double."""
    power = site.op("Pow", site.constant(base, ir.DataType.DOUBLE), step)
    return site.op("Sub", site.constant(1.0, _FLOAT), site.cast(power, _FLOAT))
