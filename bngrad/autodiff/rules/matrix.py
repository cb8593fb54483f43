"""Matrix products: for Y = A B, dA = dY B^T and dB = A^T dY.

ONNX Runtime fuses a Transpose with the MatMul after it into an op that has only a kernel in float. Up to 1.23 at
least it does so with double too, and then fails: products of double are an Einsum. That ends the process if the
last dimensions of both operands are summed and the batch or that dimension is 0: the second is transposed first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import ANY, FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_BATCH = "abcdefghij"


@gradient("MatMul", inputs=(0, 1), versions=(13,))
def matmul(back: Backward) -> Gradients:
    """dA = dY B^T and dB = A^T dY, each summed over the batch dimensions that its operand was repeated in.

    A vector A is a matrix of one row, a vector B one of one column. Where B has no batch dimensions, dB is one
    product of two matrices, whose inner dimension is the batch.
    """
    a, b, dY = back.x(0), back.x(1), back.dY
    a_is_vector, b_is_vector = back.rank(a) == 1, back.rank(b) == 1
    if b_is_vector:
        b, dY = _unsqueezed(back, b, 1), _unsqueezed(back, dY, -1)
    if a_is_vector:
        a, dY = _unsqueezed(back, a, 0), _unsqueezed(back, dY, -2)
    dA = _by_left(back, a, b, dY) if back.needs(0) else None
    dB = _by_right(back, a, b, dY) if back.needs(1) else None
    if dA is not None and a_is_vector:
        dA = back.op("Squeeze", dA, back.int64([0]))
    if dB is not None and b_is_vector:
        dB = back.op("Squeeze", dB, back.int64([1]))
    return [dA, dB]


@gradient(
    "Gemm",
    inputs=(0, 1, 2),
    versions=(13,),
    attributes={"alpha": ANY, "beta": ANY, "transA": FLAG, "transB": FLAG},
)
def gemm(back: Backward) -> Gradients:
    """For Y = alpha A' B' + beta C: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY summed to its shape."""
    a, b, dY = back.x(0), back.x(1), back.dY
    alpha, beta = back.attribute("alpha", 1.0), back.attribute("beta", 1.0)
    trans_a, trans_b = back.attribute("transA", 0), back.attribute("transB", 0)
    dA = dB = dC = None
    if back.needs(0) and trans_a:
        dA = back.op("Gemm", b, dY, alpha=alpha, transA=trans_b, transB=1)
    elif back.needs(0):
        dA = back.op("Gemm", dY, b, alpha=alpha, transA=0, transB=1 - trans_b)
    if back.needs(1) and trans_b:
        dB = back.op("Gemm", dY, a, alpha=alpha, transA=1, transB=trans_a)
    elif back.needs(1):
        dB = back.op("Gemm", a, dY, alpha=alpha, transA=1 - trans_a, transB=0)
    if back.needs(2):
        dC = sum_to(back, dY, back.x(2), back.y())
        if beta != 1:
            dC = back.op("Mul", dC, like(back, beta, dY))
    return [dA, dB, dC]


def _by_left(back: Backward, a: ir.Value, b: ir.Value, dY: ir.Value) -> ir.Value:
    if back.rank(a) == back.rank(b) == 2:
        return back.op("Gemm", dY, b, transB=1)
    if b.dtype == ir.DataType.DOUBLE:
        return _summed(back, _einsum(back, (dY, "mn"), (_transposed(back, b), "nk"), "mk"), a, dY)
    return _summed(back, back.op("MatMul", dY, _transposed(back, b)), a, dY)


def _by_right(back: Backward, a: ir.Value, b: ir.Value, dY: ir.Value) -> ir.Value:
    if back.rank(b) == 2:
        rows = [value if back.rank(value) == 2 else back.op("Flatten", value, axis=-1) for value in (a, dY)]
        return back.op("Gemm", *rows, transA=1)
    if a.dtype == ir.DataType.DOUBLE:
        return _summed(back, _einsum(back, (a, "mk"), (dY, "mn"), "kn"), b, dY)
    return _summed(back, back.op("MatMul", _transposed(back, a), dY), b, dY)


def _einsum(back: Backward, left: tuple[ir.Value, str], right: tuple[ir.Value, str], result: str) -> ir.Value:
    """Makes a product of matrices whose dimensions are letters, after the batch dimensions."""
    batches = [_BATCH[len(_BATCH) + 2 - back.rank(operand) :] for operand, _ in (left, right)]
    terms = [batch + letters for batch, (_, letters) in zip(batches, (left, right), strict=True)]
    return back.op("Einsum", left[0], right[0], equation=f"{','.join(terms)}->{max(batches, key=len)}{result}")


def _summed(back: Backward, gradient: ir.Value, x: ir.Value, dY: ir.Value) -> ir.Value:
    """Returns the gradient of an operand, from one for each matrix of the batch."""
    assert dY.shape is not None, "operands of known rank have a product of known rank"  # noqa: S101
    assert x.shape is not None, "see above"  # noqa: S101
    gradient.type, gradient.shape = x.type, ir.Shape([*dY.shape[:-2], *x.shape[-2:]])
    return sum_to(back, gradient, x, gradient)


def _transposed(back: Backward, x: ir.Value) -> ir.Value:
    *batch, row, column = range(back.rank(x))
    perm = [*batch, column, row]
    result = back.op("Transpose", x, perm=perm)
    result.type, result.shape = x.type, ir.Shape([x.shape[axis] for axis in perm]) if x.shape is not None else None
    return result


def _unsqueezed(back: Backward, x: ir.Value, axis: int) -> ir.Value:
    result = back.op("Unsqueeze", x, back.int64([axis]))
    dimensions = list(x.shape or ())
    dimensions.insert(axis if axis >= 0 else len(dimensions) + 1 + axis, 1)
    result.type, result.shape = x.type, ir.Shape(dimensions)
    return result
