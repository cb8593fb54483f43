"""Gradients of arithmetic, of functions of one operand, and of ops that select."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, SYMBOLS, Between, Case, positive

INTEGER = "ORT's builder subtracts a float from the exponent"
WHERE_SHAPE = "ORT's builder does not sum where Where broadcasts"
RANK = "ORT's builder gives it the rank of y"
EXPONENT = "ORT's builder has no gradient for the exponent"
CONSTANT = "ORT's builder has no gradient for the limits"
X = "float[N, 3] x"
TWO_SYMBOLS = ({"N": 1, "M": 2}, {"N": 2, "M": 1}, {"N": 2, "M": 2})


def wide(rng, shape):
    return 3 * rng.standard_normal(shape)


def coin(rng, shape):
    return rng.integers(0, 2, shape)


def few(rng, shape):
    """Draws numbers many of which are equal."""
    return rng.integers(0, 3, shape)


def of_rank(*shapes):
    """Draws the shape that has as many dimensions as an input has elements."""
    return lambda _, shape: {len(sizes): sizes for sizes in shapes}[shape[0]]


UNARY = [
    Case("neg", X, "y = Neg(x)"),
    Case("abs", X, "y = Abs(x)"),
    Case("reciprocal", X, "y = Reciprocal(x)", draw={"x": positive}),
    Case("sqrt", X, "y = Sqrt(x)", draw={"x": positive}),
    Case("exp", X, "y = Exp(x)"),
    Case("log", X, "y = Log(x)", draw={"x": positive}),
    Case("sin", X, "y = Sin(x)"),
    Case("cos", X, "y = Cos(x)"),
    Case("tan", X, "y = Tan(x)", draw={"x": Between(-1.2, 1.2)}, oracle=NO_RULE),
    Case("tan-beyond-a-pole", X, "y = Tan(x)", draw={"x": Between(1.8, 4.5)}, oracle=NO_RULE),
    Case("atan", X, "y = Atan(x)", oracle=NO_RULE),
    Case("erf", X, "y = Erf(x)"),
    Case("sinh", X, "y = Sinh(x)", oracle=NO_RULE),
    Case("cosh", X, "y = Cosh(x)", oracle=NO_RULE),
    Case("asin", X, "y = Asin(x)", draw={"x": Between(-0.9, 0.9)}, oracle=NO_RULE),
    Case("acos", X, "y = Acos(x)", draw={"x": Between(-0.9, 0.9)}, oracle=NO_RULE),
    Case("asinh", X, "y = Asinh(x)", draw={"x": wide}, oracle=NO_RULE),
    Case("acosh", X, "y = Acosh(x)", draw={"x": Between(1.2, 4)}, oracle=NO_RULE),
    Case("atanh", X, "y = Atanh(x)", draw={"x": Between(-0.9, 0.9)}, oracle=NO_RULE),
    Case("identity", X, "y = Identity(x)"),
    Case("unary-opset-13", X, "a = Neg(x) b = Abs(a) c = Exp(b) d = Sqrt(c) e = Log(d) y = Sin(e)", opset=13),
    Case("unary-opset-26", X, "a = Neg(x) b = Abs(a) c = Exp(b) d = Sqrt(c) e = Log(d) y = Cos(e)", opset=26),
    Case("cast", X, "h = Cast <to = 11> (x) w = Mul(h, h) y = Cast <to = 1> (w)", oracle="it is float32 only"),
    Case("cast-like", X, "h = CastLike(x, x) y = Mul(h, h)", oracle=NO_RULE),
    Case("twice", X, "y = Mul(x, x)", oracle="ORT's builder gives both gradients one name"),
    Case("several-consumers", X, "a = Exp(x) b = Sin(x) c = Mul(a, b) y = Add(c, x)"),
]

SHAPES = {
    "same": ("N, 3", "N, 3"),
    "vector": ("N, 3", "3"),
    "outer": ("N, 1", "1, 3"),
    "scalar": ("N, 3", ""),
    "leading": ("2, N, 3", "N, 1"),
    "both": ("N, 1, 3", "2, 1"),
}
EXTENTS = tuple({"x": x, "z": z} for x in [(1, 3), (2, 3), (2, 1)] for z in [(2, 3), (1, 3)])
RANKS = (
    {"K": 6, "R": 2, "L": 3, "Q": 1},
    {"K": 3, "R": 3, "L": 2, "Q": 3},
    {"K": 3, "R": 1, "L": 1, "Q": 0},
)
"""Extents of x and z, and their ranks after a Reshape."""
OPERATORS = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean"]
NO_ORACLE = {"Pow": EXPONENT, "Mean": NO_RULE}


def binary(op, what, x, z, **options):
    inputs = ", ".join(f"float{f'[{shape}]' if shape else ''} {name}" for name, shape in (("x", x), ("z", z)))
    options = {"dims": ({"N": 2}, {"N": 1}), "draw": dict.fromkeys("xz", positive), **options}
    options["oracle"] = NO_ORACLE.get(op) or options.get("oracle", "")
    return Case(f"{op.lower()}-{what}", inputs, f"y = {op}(x, z)", ("x", "z"), **options)


BROADCASTING = [
    *(binary(op, what, x, z) for op in OPERATORS for what, (x, z) in SHAPES.items()),
    *(binary(op, "vector-opset-13", "N, 3", "3", opset=13) for op in OPERATORS),
    *(binary(op, "vector-opset-26", "N, 3", "3", opset=26) for op in OPERATORS),
    *(binary(op, "symbols", "N, 3", "M, 3", dims=TWO_SYMBOLS, oracle=SYMBOLS) for op in OPERATORS),
    *(binary(op, "unknown-extents", "?, ?", "?, 3", dims=EXTENTS) for op in ("Add", "Mul", "Div")),
    *(
        Case(
            f"{op.lower()}-unknown-rank",
            "float[K] x, int64[R] r, float[L] z, int64[Q] q",
            f"a = Reshape(x, r) b = Reshape(z, q) y = {op}(a, b)",
            ("x", "z"),
            dims=RANKS,
            draw={"z": positive, "r": of_rank((3,), (2, 3), (1, 1, 3)), "q": of_rank((), (3,), (2, 1, 1))},
        )
        for op in ("Add", "Sub", "Mul", "Div", "Max")
    ),
    *(
        Case(
            f"{op.lower()}-three",
            f"{X}, float[3] z, float[N, 1] w",
            f"y = {op}(x, z, w)",
            ("x", "z", "w"),
            oracle=reason,
        )
        for op, reason in (("Sum", ""), ("Mean", NO_RULE), ("Max", ""), ("Min", ""))
    ),
    *(
        Case(f"{op.lower()}-one", X, f"y = {op}(x)", oracle=reason)
        for op, reason in (("Sum", ""), ("Mean", NO_RULE), ("Max", ""), ("Min", ""))
    ),
    Case("max-ties", f"{X}, float[3] z", "y = Max(x, z)", ("x", "z"), draw={"x": few, "z": few}),
    Case("min-ties", f"{X}, float[N, 1] z", "y = Min(x, z)", ("x", "z"), draw={"x": few, "z": few}),
    Case("div-numerator", f"{X}, float[3] z", "y = Div(x, z)", draw={"z": positive}),
    Case("div-denominator", f"{X}, float[3] z", "y = Div(x, z)", ("z",), draw={"z": positive}),
    Case(
        "mod-toward-zero",
        f"{X}, float[3] z",
        "y = Mod <fmod = 1> (x, z)",
        ("x", "z"),
        draw={"x": wide, "z": Between(0.5, 1)},
        oracle=NO_RULE,
    ),
    Case(
        "mod-down",
        f"float[3] x, {X.replace(' x', ' z')}",
        "y = Mod(x, z)",
        ("x", "z"),
        draw={"x": wide, "z": Between(-1, -0.5)},
        oracle=NO_RULE,
        opset=28,
    ),
    # Nothing repeats the dimension of unknown extent: the gradient needs no sum.
    Case("mul-unknown-alone", "float[?, 3] x, float[3] z", "y = Mul(x, z)", ("x", "z"), dims=({"x": (2, 3)},)),
]

EXPONENTS = ("0.0", "1.0", "2.0", "3.0", "0.5", "-1.0", "-2.5")
POWERS = [
    *(
        Case(f"pow-{number}", X, "y = Pow(x, p)", initializers=f"float p = {{{number}}}", draw={"x": positive})
        for number in EXPONENTS
    ),
    *(
        Case(f"pow-of-negative-{number}", X, "y = Pow(x, p)", initializers=f"float p = {{{number}}}")
        for number in ("2.0", "3.0")
    ),
    Case("pow-int64", X, "y = Pow(x, p)", initializers="int64 p = {3}", oracle=INTEGER),
    Case("pow-int32-tensor", f"{X}, int32[3] p", "y = Pow(x, p)", draw={"p": few}, oracle=INTEGER),
    Case("pow-double", f"{X}, double[3] p", "y = Pow(x, p)", ("x", "p"), draw={"x": positive}, oracle=EXPONENT),
    Case("pow-exponent-only", f"{X}, float[3] p", "y = Pow(x, p)", ("p",), draw={"x": positive}, oracle=EXPONENT),
    Case("pow-of-lower-rank", X, "y = Pow(x, p)", initializers="float[1, 1, 1] p = {2.0}", oracle=RANK),
]

LIMITS = "float low = {-1}, float high = {0.5}"
RELU6 = "float low = {0}, float high = {6}"
CLIPS = [
    Case("clip", X, "y = Clip(x, low, high)", initializers=LIMITS),
    Case("clip-relu6", X, "y = Clip(x, low, high)", initializers=RELU6, draw={"x": wide}),
    Case("clip-low", X, "y = Clip(x, low)", initializers="float low = {-1}"),
    Case("clip-high", X, "y = Clip(x, , high)", initializers="float high = {0.5}"),
    Case("clip-nothing", X, "y = Clip(x)"),
    Case("clip-opset-10", X, "y = Clip <min = -1.0, max = 0.5> (x)", opset=10),
    Case("clip-opset-13", X, "y = Clip(x, low, high)", initializers=LIMITS, opset=13),
    Case("clip-opset-26", X, "y = Clip(x, low, high)", initializers=LIMITS, opset=26),
    Case(
        "clip-limits",
        f"{X}, float low, float high",
        "y = Clip(x, low, high)",
        ("x", "low", "high"),
        draw={"x": wide, "low": lambda rng, _: -rng.uniform(0, 1), "high": lambda rng, _: rng.uniform(0, 1)},
        oracle=CONSTANT,
    ),
    Case("clip-lower-limit", f"{X}, float low", "y = Clip(x, low)", ("low",), oracle=CONSTANT),
    Case("clip-upper-limit", f"{X}, float high", "y = Clip(x, , high)", ("high",), oracle=CONSTANT),
    Case(
        "clip-crossed",
        f"{X}, float low, float high",
        "y = Clip(x, low, high)",
        ("x", "low", "high"),
        draw={"low": lambda *_: 0.5, "high": lambda *_: -0.5},
        oracle=CONSTANT,
    ),
]

WHERES = [
    Case(f"where-{what}", inputs, "y = Where(c, x, z)", wrt, draw={"c": coin}, oracle=reason, **options)
    for what, inputs, wrt, reason, options in (
        ("same", f"bool[N, 3] c, {X}, float[N, 3] z", ("x", "z"), "", {}),
        ("one", f"bool[N, 3] c, {X}, float[N, 3] z", ("z",), "", {}),
        ("condition", f"bool[N, 1] c, {X}, float[3] z", ("x", "z"), WHERE_SHAPE, {}),
        ("scalars", "bool[N, 3] c, float x, float z", ("x", "z"), WHERE_SHAPE, {}),
        ("opset-13", f"bool[N, 3] c, {X}, float[3] z", ("x", "z"), WHERE_SHAPE, {"opset": 13}),
        ("opset-26", f"bool[N, 3] c, {X}, float[3] z", ("x", "z"), WHERE_SHAPE, {"opset": 26}),
        ("symbols", f"bool[M, 3] c, {X}, float[M, 1] z", ("x", "z"), WHERE_SHAPE, {"dims": TWO_SYMBOLS}),
    )
]

DROPPING = "ORT's kernel drops in inference mode too"
DROPOUTS = [
    Case("dropout-alone", X, "y = Dropout(x)"),
    Case("dropout-opset-10", X, "y = Dropout <ratio = 0.4> (x)", opset=10),
    Case("dropout-ratio", X, "y = Dropout(x, r)", initializers="float r = {0.4}"),
    Case("dropout-off", X, "y, mask = Dropout(x, r, t)", initializers="float r = {0.4}, bool t = {0}"),
    Case(
        "dropout-fed-off",
        f"{X}, float r, bool t",
        "y = Dropout(x, r, t)",
        draw={"r": lambda *_: 0.3, "t": lambda *_: 0},
        oracle=DROPPING,
    ),
]

CASES = [*UNARY, *BROADCASTING, *POWERS, *CLIPS, *WHERES, *DROPOUTS]
