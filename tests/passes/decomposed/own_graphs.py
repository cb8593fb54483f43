"""Forward models that spell batch norm in primitives of ONNX, for `differentiate`.

`forward(form, rank)` has the inputs x, scale, bias and seed, and the outputs z and loss = sum(z * seed), so that
seed is the gradient with respect to z.
"""

from __future__ import annotations

import numpy as np
import onnx

EPSILON = 1e-3

MEANS = {
    "reduce_mean": "m = ReduceMean<keepdims=1> (x, axes)",
    "reduce_sum": "s = ReduceSum<keepdims=1> (x, axes)  m = Div (s, count)",
    "sum_times_reciprocal": "s = ReduceSum<keepdims=1> (x, axes)  m = Mul (reciprocal, s)",
    "einsum": 's = Einsum<equation="{x}->{c}"> (x)  s1 = Reshape (s, per_channel)  m = Mul (s1, reciprocal)',
    "pooled": "p = GlobalAveragePool (x)  m = ReduceMean<keepdims=1> (p, batch)",
    "squeezed": "m0 = ReduceMean<keepdims=0> (x, axes)  m = Unsqueeze (m0, axes)",
    "matmul": "s = MatMul (ones, x)  m = Div (s, count)",
}
VARIANCES = {
    "mul": "d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean<keepdims=1> (q, axes)",
    "pow": "d = Sub (x, m)  q = Pow (d, two)  v = ReduceMean<keepdims=1> (q, axes)",
    "sum_square": "d = Sub (x, m)  q = ReduceSumSquare<keepdims=1> (d, axes)  v = Div (q, count)",
    "einsum": 'd = Sub (x, m)  q = Einsum<equation="{x},{x}->{c}"> (d, d)  q1 = Reshape (q, per_channel)'
    "  v = Div (q1, count)",
    "of_squares": "d = Sub (x, m)  q = Mul (x, x)  q1 = ReduceMean<keepdims=1> (q, axes)  m2 = Mul (m, m)"
    "  v = Sub (q1, m2)",
    "clipped": "d = Sub (x, m)  q = Mul (x, x)  q1 = ReduceMean<keepdims=1> (q, axes)  m2 = Mul (m, m)"
    "  v1 = Sub (q1, m2)  v = Max (v1, zero)",
    "two_squares": "d = Sub (x, m)  q1 = ReduceSumSquare<keepdims=1> (x, axes)  q2 = Div (q1, count)"
    "  m2 = Pow (m, two)  v = Sub (q2, m2)",
}
INVERSES = {
    "div": "ve = Add (v, epsilon)  root = Sqrt (ve)  n = Div (d, root)",
    "reciprocal": "ve = Add (epsilon, v)  root = Sqrt (ve)  inv = Reciprocal (root)  n = Mul (d, inv)",
    "pow": "ve = Add (v, epsilon)  inv = Pow (ve, minus_half)  n = Mul (inv, d)",
    "one_over": "ve = Add (v, epsilon)  root = Sqrt (ve)  inv = Div (one, root)  n = Mul (d, inv)",
}
AFFINES = {
    "plain": "sn = Mul (n, scale1)  y = Add (sn, bias1)",
    "folded": "a = Mul (scale1, inv)  xa = Mul (x, a)  ma = Mul (m, a)  b = Sub (bias1, ma)  y = Add (xa, b)",
}
FORMS = {
    "keras": ("reduce_mean", "mul", "reciprocal", "folded"),
    "torch": ("reduce_mean", "mul", "reciprocal", "plain"),
    "flax": ("sum_times_reciprocal", "clipped", "one_over", "plain"),
    "sums": ("reduce_sum", "sum_square", "div", "plain"),
    "einsum": ("einsum", "einsum", "pow", "plain"),
    "einsum_folded": ("einsum", "einsum", "pow", "folded"),
    "squares": ("squeezed", "of_squares", "div", "plain"),
    "two_squares": ("reduce_sum", "two_squares", "reciprocal", "folded"),
    "pow": ("squeezed", "pow", "pow", "folded"),
    "pooled": ("pooled", "pow", "div", "plain"),
    "matmul": ("matmul", "mul", "div", "plain"),
}
SHAPES = {2: (6, 3), 3: (4, 3, 5), 4: (2, 3, 3, 2), 5: (2, 3, 2, 2, 3)}


def forms():
    """(form, rank) of each combination that exists."""
    return [
        (form, rank)
        for form in FORMS
        for rank in SHAPES
        if not (form == "pooled" and rank == 2) and not (form == "matmul" and rank != 2)
    ]


def forward(form, rank, *, relu=False):
    """The forward model; the channels are axis 1."""
    shape = SHAPES[rank]
    channels, count = shape[1], int(np.prod(shape)) // shape[1]
    parts = [table[key] for table, key in zip((MEANS, VARIANCES, INVERSES, AFFINES), FORMS[form], strict=True)]
    body = "\n".join(parts).format(x="ncdhw"[:2] + "dhw"[: rank - 2], c="c").replace(")  ", ")\n")
    dims = ",".join(map(str, shape))
    axes = [axis for axis in range(rank) if axis != 1]
    per_channel = [1, channels, *[1] * (rank - 2)]

    def ints(name, values):
        return f"int64[{len(values)}] {name} = {{{','.join(map(str, values))}}}"

    constants = ", ".join(
        [
            ints("axes", axes), ints("batch", [0]), ints("per_channel", per_channel),
            f"float count = {{{count}}}", f"float reciprocal = {{{1 / count!r}}}", "float two = {2}",
            "float one = {1}", "float zero = {0}", "float minus_half = {-0.5}", f"float epsilon = {{{EPSILON}}}",
            f"float[1,{shape[0]}] ones = {{{','.join(['1'] * shape[0])}}}",
        ]
    )  # fmt: skip
    last = "z = Relu (y)" if relu else "z = Identity (y)"
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        spelled (float[{dims}] x, float[{channels}] scale, float[{channels}] bias, float[{dims}] seed)
            => (float[{dims}] z, float loss) <{constants}> {{
            scale1 = Reshape (scale, per_channel)
            bias1 = Reshape (bias, per_channel)
            {body}
            {last}
            weighted = Mul (z, seed)
            loss = ReduceSum<keepdims=0> (weighted)
        }}
    """)


def feeds(rank, seed=0):
    rng = np.random.default_rng(seed)
    shape = SHAPES[rank]
    return {
        "x": (rng.normal(size=shape) * 2 + 1).astype(np.float32),
        "scale": rng.normal(size=shape[1]).astype(np.float32),
        "bias": rng.normal(size=shape[1]).astype(np.float32),
        "seed": rng.normal(size=shape).astype(np.float32),
    }


def expected(values, *, relu=False):
    """y, loss and the gradients with respect to x, scale and bias, by the closed form in float64."""
    x, scale, bias, seed = (values[name].astype(np.float64) for name in ("x", "scale", "bias", "seed"))
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    channel = (slice(None), *[None] * (x.ndim - 2))
    inv_std = 1 / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    normalized = (x - x.mean(axes, keepdims=True)) * inv_std
    y = normalized * scale[channel] + bias[channel]
    dy = seed * (y > 0) if relu else seed
    dbias, dscale = dy.sum(axes), (dy * normalized).sum(axes)
    count = x.size // x.shape[1]
    dx = scale[channel] * inv_std * (dy - (dbias[channel] + normalized * dscale[channel]) / count)
    z = np.maximum(y, 0) if relu else y
    return {"z": z, "loss": (z * seed).sum(), "x_grad": dx, "scale_grad": dscale, "bias_grad": dbias}
