"""The nodes that are emitted for a forward node: no more than its shapes and attributes require."""

from __future__ import annotations

import pytest

from autodiff.cases.matrix import gemm, matmul
from autodiff.cases.resampling import RESIZES
from autodiff.gradient_cases import Case, differentiated, lowered


def emitted(case: Case) -> list[str]:
    """The ops that the node of y was differentiated into."""
    training = differentiated(case)
    (node,) = (node for node in training.graph if node.outputs[0].name == "y")
    return [new.op_type for new in training.graph if (new.name or "").startswith(f"{node.name}_Grad/")]


# name: (inputs, nodes, what is emitted, constants aside)
ELEMENTWISE = {
    "same-shape": ("float[N, 3] x, float[N, 3] z", "y = Mul(x, z)", ["Mul"]),
    "missing-dimension": ("float[3] x, float[N, 3] z", "y = Mul(x, z)", ["Mul", "ReduceSum"]),
    "repeated-dimension": ("float[1, 3] x, float[N, 3] z", "y = Mul(x, z)", ["Mul", "ReduceSum"]),
    "both": ("float[1] x, float[N, 3] z", "y = Mul(x, z)", ["Mul", "ReduceSum", "Squeeze"]),
    "unknown-extent-alone": ("float[?, 3] x, float[3] z", "y = Mul(x, z)", ["Mul"]),
    "unknown-extents": (
        "float[?, 3] x, float[?, 3] z",
        "y = Mul(x, z)",
        ["Mul", "Shape", "Shape", "BroadcastGradientArgs", "ReduceSum", "Reshape"],
    ),
    "quotient": ("float[N] x, float[N] z", "y = Div(x, z)", ["Div", "Equal", "Where"]),
    "quotient by a constant": ("float[N] x", "c = Constant <value_float = 3.0> () y = Div(x, c)", ["Div"]),
    "quotient by what is positive": (
        "float[N] x, float[N] z",
        "e = Constant <value_float = 0.1> () q = Mul (z, z) v = Add (q, e) d = Sqrt (v) y = Div(x, d)",
        ["Div"],
    ),
    "root": ("float[N] x", "y = Sqrt(x)", ["Mul", "Div", "Equal", "Where"]),
    "root of what is positive": (
        "float[N] x",
        "e = Constant <value_float = 0.1> () q = Abs (x) v = Add (q, e) y = Sqrt (v)",
        ["Mul", "Div"],
    ),
    "relu": ("float[N] x", "y = Relu(x)", ["ReluGrad"]),
    "product with a reciprocal": (
        "float[N] x, float[N] z",
        "r = Reciprocal(z) y = Mul(x, r)",
        ["Mul", "Equal", "Where"],
    ),
    "square": ("float[N] x", "two = Constant <value_float = 2.0> () y = Pow(x, two)", ["Mul", "Mul"]),
    "idle-dropout": ("float[N] x", "y = Dropout(x)", []),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    inputs, body, want = ELEMENTWISE[name]
    op_types = emitted(Case(name, inputs, body))
    assert [op_type for op_type in op_types if op_type not in ("Constant", "Identity")] == want


def test_a_relu_in_front_of_a_singular_node():
    """dY may be infinite, so the gradient is not a product with a mask."""
    training = differentiated(Case("", "float[N] x", "r = Relu(x) y = Sqrt(r)"))
    op_types = [node.op_type for node in training.graph if (node.name or "").startswith("Relu_0_Grad/")]
    assert [op_type for op_type in op_types if op_type != "Constant"] == ["Greater", "Where"]


@pytest.mark.parametrize(
    ("case", "ops"),
    [
        (matmul("", "N, K", "K, M"), ["Gemm", "Gemm"]),
        (matmul("", "B, N, K", "K, M"), ["Transpose", "MatMul", "Flatten", "Flatten", "Gemm"]),
        (matmul("", "B, N, K", "B, K, M"), ["Transpose", "MatMul", "Transpose", "MatMul"]),
        (Case("", "float[N, K] a, float[K, M] b", "y = MatMul(a, b)", ("b",)), ["Gemm"]),
        (gemm("", "N, K", "M, K", "M", attributes="transB = 1"), ["Gemm", "Gemm", "Constant", "ReduceSum"]),
        (gemm("", "N, K", "M, K", attributes="transB = 1, beta = 2.0"), ["Gemm", "Gemm"]),
    ],
    ids=["matrices", "batch and matrix", "batches", "right alone", "gemm", "gemm without C"],
)
def test_costs_two_products(case, ops):
    """Where the shapes are known, only the products are emitted, and only those that are needed."""
    assert emitted(case) == ops


@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceMean"])
def test_a_number_of_elements_that_is_known_is_a_constant(op):
    axes = "" if op == "GlobalAveragePool" else ", axes"
    case = Case("", "float[N, C, 7, 7] x", f"y = {op} (x{axes})", initializers="int64[2] axes = {2, 3}")
    assert emitted(case) == ["Constant", "Scale", "Shape", "Expand"]


# name of a nearest: whether each gradient is the sum of whole blocks
REPEATS = {
    "nearest half_pixel round_prefer_floor": True,
    "nearest asymmetric floor": True,
    "to sizes, whole factors": True,
    "symbolic, repeats": True,
    "1-d repeats": True,
    "3-d repeats": True,
    "nearest asymmetric ceil": False,
    "nearest half_pixel floor": False,
    "nearest align_corners floor": False,
    "nearest down": False,
    "every axis": False,
}


@pytest.mark.parametrize("name", REPEATS)
def test_repeats_are_summed_by_a_pool(name):
    """Any other nearest is a product."""
    (case,) = (case for case in RESIZES if case.name == f"resize {name}")
    assert [node.op_type for node in lowered(case).graph.node].count("AveragePool") == REPEATS[name]
