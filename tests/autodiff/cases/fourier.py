"""Gradients of DFT and STFT."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Case

COMPLEX = "N, 5, 2, 2"
REAL = "N, 5, 2, 1"
SIZES = ({"N": 2, "L": 5}, {"N": 3, "L": 4})


def dft(name, x, attributes="", *, length="", axis="", **more):
    """Transforms x along its second axis, of the newest version by an input."""
    opset = more.pop("opset", 20)
    initializers = [f"int64 n = {{{length}}}"] if length else []
    if opset >= 20:
        initializers.append(f"int64 a = {{{axis or 1}}}")
    inputs = f"x, {'n' if length else ''}{', a' if opset >= 20 else ''}".removesuffix(", ")
    body = f"y = DFT <{attributes}> ({inputs})"
    initializers = ", ".join([*initializers, *more.pop("initializers", [])])
    return Case(
        f"DFT {name}",
        f"float[{x}] x",
        body.replace("<> ", ""),
        initializers=initializers,
        oracle=NO_RULE,
        opset=opset,
        float_limit=3e-5,
        **more,
    )


DFTS = [
    dft("complex, cut", COMPLEX, length=3),
    dft("complex, inverse, filled", COMPLEX, "inverse = 1", length=8, axis=-3, is_long=True),
    dft("complex, inverse, opset 18", COMPLEX, "inverse = 1, axis = 2", length=4, opset=18),
    dft("complex, opset 18", COMPLEX, opset=18, is_long=True),
    dft("real, filled, opset 18", REAL, length=6, opset=18, is_long=True),
    dft("real, inverse, cut", REAL, "inverse = 1", length=4),
    dft("real, one-sided, dynamic", "N, L, 1", "onesided = 1", dims=SIZES),
    dft("real, one-sided, filled", REAL, "onesided = 1", length=8),
    dft("real, one-sided, cut", REAL, "onesided = 1", length=3, is_long=True),
    dft("inverse, one-sided, dynamic", "N, L, 2", "inverse = 1, onesided = 1", dims=SIZES),
    dft("inverse, one-sided, of all", COMPLEX, "inverse = 1, onesided = 1", length=9, is_long=True),
    dft("inverse, one-sided, of all, opset 18", "N, 3, 2, 2", "inverse = 1, onesided = 1", length=4, opset=18),
    *(
        Case(
            f"DFT by computed numbers, {name}",
            "float[N, L, C] x, int32 n, int64 a",
            f"y = DFT {attributes} (x, {n}, a)",
            dims=dims,
            draw={"n": lambda *_: 4, "a": lambda *_: -2},
            oracle=NO_RULE,
            opset=20,
            float_limit=3e-5,
        )
        for name, attributes, n, dims in (
            ("of each", "", "n", ({"N": 2, "L": 5, "C": 1}, {"N": 1, "L": 3, "C": 2})),
            ("one-sided", "<onesided = 1>", "n", ({"N": 2, "L": 5, "C": 1},)),
            ("inverse, one-sided", "<inverse = 1, onesided = 1>", "", ({"N": 2, "L": 4, "C": 2},)),
        )
    ),
]


def stft(name, body, x="N, 9, 1", *, window="", wrt=None, **more):
    return Case(
        f"STFT {name}",
        f"float[{x}] x{f', float[{window}] w' if window else ''}",
        body,
        wrt or (("x", "w") if window else ("x",)),
        initializers="int64 step = {2}, int64 length = {4}, int64[1] axes = {2}",
        oracle=NO_RULE,
        float_limit=3e-5,
        **more,
    )


STFTS = [
    stft("with a window", "y = STFT <onesided = 1> (x, step, w)", window="4"),
    stft("with a window and a length", "y = STFT <onesided = 1> (x, step, w, length)", window="4", is_long=True),
    stft("with a length", "y = STFT <onesided = 1> (x, step, , length)", is_long=True),
    # onnx infers the shape of the other default of the attribute.
    stft("by default", "s = STFT (x, step, , length) y = ReduceSumSquare <keepdims = 0> (s, axes)"),
    stft(
        "two-sided, dynamic",
        "y = STFT <onesided = 0> (x, step, w)",
        "N, L, 1",
        window="F",
        dims=({"N": 2, "L": 9, "F": 5}, {"N": 1, "L": 8, "F": 8}),
    ),
    stft("complex, to the window", "y = STFT <onesided = 0> (x, step, w)", "N, 6, 2", window="3", wrt=("w",)),
    stft("complex", "y = STFT <onesided = 0> (x, step, w, length)", "N, 6, 2", window="4"),
]

CASES = [*DFTS, *STFTS]
