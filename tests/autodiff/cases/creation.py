"""Gradients of ops that create a tensor from a few numbers, and of ops that are piecewise constant."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import NO_RULE, Case, fixed

CONSTANTS = "ORT's builder takes what it is made of for constants"
N = ({"N": 1}, {"N": 4})


def between_jumps(rng, shape):
    """Numbers at which nothing is rounded up or down when they change a little."""
    return rng.integers(-3, 4, shape) + rng.uniform(0.1, 0.4, shape)


def number(value):
    """Draws one number of rank 0."""
    return lambda _rng, _shape: np.asarray(value)


def ranges():
    for name, start, limit, delta, wrt in [
        ("up", 0.5, 5.2, 0.75, ("s", "d")),
        ("down", 3, -2.2, -0.75, ("s", "d")),
        ("by start alone", -1, 2.1, 0.5, ("s",)),
        ("by delta alone", -1, 2.1, 0.5, ("d",)),
        ("of one", 1, 1.5, 2, ("s", "d")),
    ]:
        for opset in (18, 27):
            for element in ("float", "double"):
                limits = {"float_limit": 1e-13} if element == "double" else {}
                yield Case(
                    f"range {name}, {element}, opset {opset}",
                    f"{element} s, {element} l, {element} d",
                    "y = Range (s, l, d)",
                    wrt,
                    draw={"s": number(start), "l": number(limit), "d": number(delta)},
                    dims=({},),
                    element=element,
                    opset=opset,
                    oracle=CONSTANTS,
                    **limits,
                )


def one_hots():
    for name, shape, attributes, kind in [
        ("of labels", "N", "", "int64"),
        ("of labels in front", "N", "axis = 0", "int64"),
        ("of a matrix", "N, 3", "axis = 1", "int64"),
        ("of a matrix, from behind", "N, 3", "axis = -2", "int64"),
        ("of int32", "N", "", "int32"),
    ]:
        body = f"y = OneHot <{attributes}> (i, d, v)".replace("<> ", "")
        depth = "int32" if kind == "int32" else "int64"
        for opset in (18, 28):
            yield Case(
                f"one hot {name}, opset {opset}",
                f"{kind}[{shape}] i, {depth} d, float[2] v",
                body,
                ("v",),
                # Negative indices count from the last, and those beyond are off everywhere.
                draw={"i": lambda rng, shape: rng.integers(-4, 6, shape), "d": number(4)},
                dims=N,
                opset=opset,
                oracle=CONSTANTS,
            )
    yield Case(
        "one hot of values that are made of its data too",
        "float[N, 2] x, int64[N] i",
        """a = Constant <value_ints = [0]> () v = ReduceMean <keepdims = 0> (x, a) d = Constant <value_int = 2> ()
        h = OneHot (i, d, v) y = Mul (h, x)""",
        draw={"i": lambda rng, shape: rng.integers(0, 2, shape)},
        dims=N,
        oracle=CONSTANTS,
    )


JUMPS = [
    Case(
        f"{name} beside its data",
        "float[N, 3] x",
        f"{body} y = Mul (x, h)",
        draw={"x": between_jumps},
        oracle="" if name in ("a comparison", "integers") else NO_RULE,
        opset=opset,
    )
    for name, body, opset in [
        ("Ceil", "h = Ceil (x)", 18),
        ("Floor", "h = Floor (x)", 18),
        ("Floor, newest", "h = Floor (x)", 28),
        ("Round", "h = Round (x)", 18),
        ("Round, newest", "h = Round (x)", 28),
        ("Sign", "h = Sign (x)", 18),
        ("Hardmax", "h = Hardmax (x)", 18),
        ("EyeLike", "h = EyeLike (x)", 18),
        ("CastLike", "t = Exp (x) h = CastLike (x, t)", 18),
        ("a comparison", "t = Exp (x) c = Greater (t, x) h = Cast <to = 1> (c)", 18),
        ("integers", "i = Cast <to = 7> (x) h = Cast <to = 1> (i)", 18),
    ]
]
JUMPS.append(
    Case(
        "Range's limit beside its data",
        "float[3] x",
        """l = ReduceMax <keepdims = 0> (x) s = Constant <value_float = 0.0> () d = Constant <value_float = 1.0> ()
        r = Range (s, l, d) h = Cos (r) y = Mul (x, h)""",
        draw={"x": fixed(0.3, 1.2, 2.6)},
        dims=({},),
    )
)
CASES = [*ranges(), *one_hots(), *JUMPS]
