"""Products of a transposed matrix and a vector, which ONNX Runtime computes wrongly."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import bngrad
from bngrad.passes.workarounds.matrix_vector import MatrixVectorPass
from pass_models import header, model, ops, proto, run

TEXT = (
    header(18)
    + """g (float[%s] a, float[%s] b) => (float[%s] y) {
    [t] c = Transpose %s (a)
    [m] y = MatMul (%s)
}"""
)

CHANGED = {
    "matrix": ("3,4", "3", "4", "<perm = [1, 0]>", "c, b", (1, 0)),
    "square": ("4,4", "4", "4", "<perm = [1, 0]>", "c, b", (1, 0)),
    "no-perm": ("3,4", "3", "4", "", "c, b", (1, 0)),
    "batch": ("2,3,4", "3", "2,4", "<perm = [0, 2, 1]>", "c, b", (0, 2, 1)),
}
UNCHANGED = {
    "matrices": ("3,4", "3,5", "4,5", "<perm = [1, 0]>", "c, b", (1, 0)),
    "vector-in-front": ("4,3", "3", "4", "<perm = [1, 0]>", "b, c", (1, 0)),
    "other-axes": ("3,2,4", "4", "2,3", "<perm = [1, 0, 2]>", "c, b", (1, 0, 2)),
    "no-perm-of-three": ("3,2,4", "3", "4,2", "", "c, b", (2, 1, 0)),
}


@pytest.mark.parametrize("name", [*CHANGED, *UNCHANGED])
def test_products(name, rng):
    *parts, perm = {**CHANGED, **UNCHANGED}[name]
    text = TEXT % tuple(parts)
    ir_model = model(text)
    assert MatrixVectorPass()(ir_model).modified == (name in CHANGED)
    assert ops(ir_model) == ["Transpose", "MatMul"]
    shapes = [[int(size) for size in part.split(",")] for part in parts[:2]]
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    operands = {"c": a.transpose(perm), "b": b}
    left, right = (operands[name] for name in parts[4].split(", "))
    got = run(ir.to_proto(ir_model), {"a": a, "b": b})["y"]
    np.testing.assert_allclose(got, left @ right, rtol=1e-5, atol=1e-6)


def test_a_training_graph_is_right(rng):
    """Without the pass ONNX Runtime gives another loss, and no error."""
    text = (
        header(18)
        + """g (float[4,4] w, float[4] x) => (float loss) {
    c = Transpose <perm = [1, 0]> (w)
    y = MatMul (c, x)
    z = Mul (y, y)
    loss = ReduceSum <keepdims = 0> (z)
}"""
    )
    w, x = rng.standard_normal((4, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    graph = bngrad.differentiate(proto(text), wrt=["w"])
    loss, gradient = run(graph, {"w": w, "x": x}).values()
    np.testing.assert_allclose(loss, ((w.T @ x) ** 2).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * np.outer(x, w.T @ x), rtol=1e-5, atol=1e-6)
