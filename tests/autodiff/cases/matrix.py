"""Gradients of matrix products."""

from __future__ import annotations

from autodiff.gradient_cases import FLOAT_ALONE, SYMBOLS, Case

BOTH = ("a", "b")
ALL = ("a", "b", "c")
TWICE = "ORT's builder names both gradients alike where a node reads a value twice"
VECTORS = "ORT's builder fails on a vector"


def matmul(name, a, b, dims=({},), **more):
    return Case(f"matmul {name}", f"float[{a}] a, float[{b}] b", "y = MatMul(a, b)", BOTH, dims=dims, **more)


def gemm(name, a, b, c="", dims=({},), attributes="", **more):
    inputs = [f"float[{shape}] {x}" for x, shape in (("a", a), ("b", b), ("c", c)) if x != "c" or c]
    attributes = f"<{attributes}>" if attributes else ""
    body = f"y = Gemm {attributes} (a, b{', c' if c else ''})"
    return Case(f"gemm {name}", ", ".join(inputs), body, ALL if c else BOTH, dims=dims, **more)


N = ({"N": 1}, {"N": 3})
BATCH = ({"B": 1, "N": 3, "K": 2, "M": 4}, {"B": 3, "N": 1, "K": 5, "M": 2})
CASES = [
    matmul("of matrices", "2, 3", "3, 4"),
    matmul("of matrices, one row", "1, 3", "3, 1"),
    matmul("of matrices, symbols", "N, K", "K, M", dims=({"N": 2, "K": 3, "M": 4}, {"N": 1, "K": 1, "M": 1})),
    matmul("of matrices, opset 13", "2, 3", "3, 4", opset=13),
    matmul("of matrices, newest", "2, 3", "3, 4", opset=26),
    matmul("of a batch with a matrix", "2, 3, 4", "4, 5"),
    matmul("of a batch with a matrix, symbols", "B, N, K", "K, M", dims=BATCH),
    matmul("of a batch of batches with a matrix", "2, N, 3, 4", "4, 5", dims=N),
    matmul("of a matrix with a batch", "3, 4", "2, 4, 5"),
    matmul("of a matrix with a batch, symbols", "N, K", "B, K, M", dims=BATCH),
    matmul("of batches", "2, 3, 4", "2, 4, 5"),
    matmul("of batches, symbols", "B, N, K", "B, K, M", dims=BATCH),
    matmul("of batches, opset 13", "B, N, K", "B, K, M", dims=BATCH, opset=13),
    matmul("of batches, newest", "B, N, K", "B, K, M", dims=BATCH, opset=26),
    matmul("of batches, the left repeated", "1, 3, 4", "2, 4, 5"),
    matmul("of batches, the right repeated", "2, 3, 4", "1, 4, 5"),
    matmul("of batches, both repeated", "2, 1, 3, 4", "1, 3, 4, 5"),
    matmul("of batches of different ranks", "2, 3, 3, 4", "3, 4, 5"),
    matmul("of batches of different ranks, repeated", "1, 3, 4", "2, 3, 4, 5"),
    matmul(
        "of batches, repeated as it comes",
        "B, 3, 4",
        "D, 4, 5",
        dims=({"B": 1, "D": 3}, {"B": 3, "D": 1}, {"B": 2, "D": 2}),
    ),
    matmul(
        "of batches of different ranks, repeated as it comes",
        "B, N, 3, 4",
        "D, 4, 5",
        dims=({"B": 2, "N": 1, "D": 3}, {"B": 2, "N": 3, "D": 1}, {"B": 1, "N": 2, "D": 2}),
    ),
    matmul(
        "of unknown extents",
        "?, ?, 3, ?",
        "?, ?, 4",
        dims=({"a": (2, 1, 3, 2), "b": (3, 2, 4)}, {"a": (1, 3, 3, 2), "b": (1, 2, 4)}),
    ),
    matmul("of unknown extents with a matrix", "?, ?, ?", "?, 4", dims=({"a": (2, 3, 5), "b": (5, 4)},)),
    matmul("of heads", "B, 2, N, K", "B, 2, K, M", dims=BATCH),
    matmul("of vectors", "4", "4", oracle=VECTORS),
    matmul("of vectors, symbols", "K", "K", dims=({"K": 1}, {"K": 3}), oracle=VECTORS),
    matmul("of a vector with a matrix", "4", "4, 5"),
    matmul("of a matrix with a vector", "3, 4", "4", oracle=VECTORS),
    matmul("of a vector with a batch", "K", "B, K, M", dims=BATCH, oracle=VECTORS),
    matmul("of a batch with a vector", "B, N, K", "K", dims=BATCH, oracle=VECTORS),
    matmul("of a batch of batches with a vector", "2, B, N, 3", "3", dims=BATCH, oracle=VECTORS),
    matmul("of an empty batch", "B, N, 3", "3, 4", dims=({"B": 0, "N": 2},), oracle="its kernels refuse it"),
    Case("matmul, left alone", "float[N, 3] a, float[3, 4] b", "y = MatMul(a, b)", ("a",)),
    Case("matmul, right alone", "float[B, N, 3] a, float[3, 4] b", "y = MatMul(a, b)", ("b",), dims=BATCH),
    Case("matmul with itself", "float[3, 3] a", "y = MatMul(a, a)", ("a",), dims=({},), oracle=TWICE),
    Case("matmul, a square of a batch", "float[B, 3, 3] a", "y = MatMul(a, a)", ("a",), dims=BATCH, oracle=TWICE),
    Case(
        "matmul, two consumers",
        "float[B, N, 4] a, float[4, 4] b",
        "t = MatMul(a, b) \n y = MatMul(t, b)",
        BOTH,
        dims=BATCH,
    ),
    *(
        Case(
            f"matmul in double, {what}",
            f"double[{a}] a, double[{b}] b",
            "y = MatMul(a, b)",
            BOTH,
            dims=BATCH,
            element="double",
            float_limit=1e-13,
            oracle=FLOAT_ALONE,
        )
        for what, a, b in [
            ("matrices", "N, 4", "4, 5"),
            ("batch and matrix", "B, N, 4", "4, 5"),
            ("batches", "B, N, K", "B, K, M"),
            ("a batch that may be empty", "N, 3, 2", "N, 2, 3"),
            ("a sum that may be empty", "2, 3, N", "2, N, 3"),
            ("repeated", "2, 1, N, 3", "B, 3, 2"),
            ("vector and batch", "3", "B, 3, 2"),
        ]
    ),
    gemm("plain", "2, 3", "3, 4"),
    gemm("alpha", "N, 3", "3, 4", dims=N, attributes="alpha = 0.5"),
    *(
        gemm(
            f"transA {a}, transB {b}",
            "3, N" if a else "N, 3",
            "4, 3" if b else "3, 4",
            "4",
            dims=N,
            attributes=f"transA = {a}, transB = {b}, alpha = 1.5, beta = 0.25",
        )
        for a in (0, 1)
        for b in (0, 1)
    ),
    *(gemm(f"C [{c}]", "N, 3", "3, 4", c, dims=N) for c in ("4", "1, 4", "N, 1", "N, 4", "1", "1, 1")),
    Case(
        "gemm C [], beta",
        "float[N, 3] a, float[3, 4] b, float[1] d",
        "c = ReduceSum <keepdims = 0> (d) \n y = Gemm <beta = 2.0> (a, b, c)",
        ("a", "d"),
        dims=N,
    ),
    gemm(
        "C [M] as it comes",
        "N, 3",
        "3, K",
        "M",
        dims=({"N": 2, "K": 4, "M": 1}, {"N": 2, "K": 4, "M": 4}),
        oracle=SYMBOLS,
    ),
    gemm(
        "beta 0",
        "N, 3",
        "3, 4",
        "4",
        dims=N,
        attributes="beta = 0.0",
        oracle="ORT's builder asks for a beta that is not 0",
    ),
    gemm("opset 13", "N, 3", "4, 3", "4", dims=N, attributes="transB = 1", opset=13),
    gemm("newest", "N, 3", "4, 3", "4", dims=N, attributes="transB = 1", opset=26),
    gemm("of symbols", "N, K", "M, K", "M", dims=BATCH, attributes="transB = 1"),
    Case("gemm, C alone", "float[N, 3] a, float[3, 4] b, float[4] c", "y = Gemm(a, b, c)", ("c",), dims=N),
    Case("gemm, B alone", "float[N, 3] a, float[3, 4] b, float[4] c", "y = Gemm(a, b, c)", ("b",), dims=N),
    Case("gemm with itself", "float[3, 3] a", "y = Gemm <transB = 1> (a, a, a)", ("a",), dims=({},), oracle=TWICE),
    Case(
        "gemm in double",
        "double[N, 3] a, double[3, 4] b, double[4] c",
        "y = Gemm <alpha = 0.5, beta = 0.1> (a, b, c)",
        ALL,
        dims=N,
        element="double",
        float_limit=1e-13,
        oracle=FLOAT_ALONE,
    ),
]
