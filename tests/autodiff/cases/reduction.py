"""Gradients of reductions and of global pooling."""

from __future__ import annotations

from autodiff.gradient_cases import FLOAT_ALONE, NO_RULE, Case, positive

INVALID = "ORT's builder makes an invalid model of it"
ALL_DIMS = ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 3, "W": 4})
N = ({"N": 1}, {"N": 3})


def with_zeros(rng, shape):
    """Draws numbers with no zero, one, or two in each row."""
    x = rng.uniform(0.5, 2, shape)
    for row, zeros in zip(x.reshape(-1, shape[-1]), (0, 1, 2) * x.size, strict=False):
        row[:zeros] = 0
    return x


# The forms of each reduction: (id, type of x, axes or None, attributes)
FORMS = [
    ("of all", "N, H, W", None, "keepdims = 0"),
    ("of all, dims kept", "N, H, W", None, ""),
    ("of all, no axes", "N, H, W", "", "keepdims = 0"),
    ("of the last", "N, H, W", "-1", ""),
    ("of the last, dropped", "N, H, W", "-1", "keepdims = 0"),
    ("of the first, dropped", "N, H, W", "0", "keepdims = 0"),
    ("of two", "N, H, W", "0, 2", ""),
    ("of two, dropped", "N, H, W", "-1, 0", "keepdims = 0"),
    ("of fixed extents", "N, 3, 4", "1, 2", "keepdims = 0"),
    ("of fixed extents, dims kept", "2, 3, 4", "1, 2", ""),
    ("of fixed extents, all", "2, 3, 4", None, "keepdims = 0"),
    ("of a vector", "H", "0", "keepdims = 0"),
]


def reduction(op, form, oracle="", opset=18, **more):
    what, shape, axes, attributes = form
    initializers = "" if axes is None else f"int64[{len(axes.split(',')) if axes else 0}] axes = {{{axes}}}"
    more = {"initializers": initializers, "oracle": oracle, "opset": opset, "dims": ALL_DIMS, **more}
    body = f"y = {op} <{attributes}> (x{'' if axes is None else ', axes'})"
    return Case(f"{op} {what}", f"float[{shape}] x", body.replace("<> ", ""), **more)


def reductions(op, *, oracle="", oracle_without_dims="", draw=None):
    draw = {} if draw is None else {"x": draw}
    for form in FORMS:
        reason = oracle or (oracle_without_dims if "keepdims = 0" in form[3] else "")
        yield reduction(op, form, reason, draw=draw)
    last = ("of the last, newest", "N, H, W", "-1", "keepdims = 0")
    yield reduction(op, last, oracle or oracle_without_dims, opset=26, draw=draw)
    body = f"y = {op} <axes = [-1, 1]> (x)"
    if op == "ReduceSum":
        body = f"axes = Constant <value_ints = [-1, 1]> () \n y = {op} (x, axes)"
    yield Case(f"{op} opset 13", "float[N, H, W] x", body, dims=ALL_DIMS, opset=13, oracle=oracle, draw=draw)
    computed = f"axes = Add(a, b) \n y = {op} <keepdims = 0> (x, axes)"
    yield Case(
        f"{op} of axes that are computed",
        "float[N, H, W] x",
        computed,
        initializers="int64[2] a = {1, 1}, int64[2] b = {-1, 1}",
        dims=ALL_DIMS,
        oracle=oracle or oracle_without_dims,
        draw=draw,
    )


CASES = [
    *reductions("ReduceSum"),
    *reductions("ReduceMean"),
    *reductions("ReduceMax", oracle=NO_RULE),
    *reductions("ReduceMin", oracle=NO_RULE),
    *reductions("ReduceProd", oracle=NO_RULE, draw=positive),
    *reductions("ReduceL1", oracle=NO_RULE),
    *reductions("ReduceL2", oracle_without_dims=INVALID),
    *reductions("ReduceSumSquare", oracle=NO_RULE),
    *reductions("ReduceLogSum", oracle=NO_RULE, draw=positive),
    *reductions("ReduceLogSumExp", oracle_without_dims=INVALID),
    *(
        reduction(
            op,
            (f"{prefix}of nothing", "N, H, W", axes, f"noop_with_empty_axes = 1, keepdims = {keepdims}"),
            why or kernel,
        )
        for op, why in [
            ("ReduceSum", ""),
            ("ReduceMean", ""),
            ("ReduceMax", NO_RULE),
            ("ReduceMin", NO_RULE),
            ("ReduceProd", NO_RULE),
        ]
        for prefix, axes, keepdims, kernel in [
            ("", None, 1, "its kernels want axes, if none"),
            ("of empty axes, ", "", 0, ""),
        ]
    ),
    reduction("ReduceProd", ("of zeros", "N, H, W", "-1", "keepdims = 0"), NO_RULE, draw={"x": with_zeros}),
    Case("ReduceMean, two consumers", "float[N, 3] x", "m = ReduceMean (x) \n y = Mul(x, m)", dims=N),
    Case(
        "ReduceMax, two consumers", "float[N, 3] x", "m = ReduceMax (x) \n y = Sub(x, m)", dims=N, oracle=NO_RULE
    ),
    *(
        Case(
            f"{op} of double",
            "double[N, H, W] x",
            f"y = {op} <keepdims = 0> (x, axes)",
            initializers="int64[1] axes = {1}",
            dims=ALL_DIMS,
            draw={"x": positive},
            element="double",
            float_limit=1e-13,
            oracle=FLOAT_ALONE,
        )
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceLogSumExp")
    ),
    *(
        Case(f"{op} {what}", f"float[{shape}] x", f"y = {op} (x)", dims=ALL_DIMS, opset=opset, oracle=oracle)
        for op, oracle in [("GlobalAveragePool", ""), ("GlobalMaxPool", NO_RULE)]
        for what, shape, opset in [
            ("of images", "N, 3, H, W", 18),
            ("of images, fixed extents", "N, 3, 4, 5", 18),
            ("of images, all fixed", "2, 3, 4, 5", 18),
            ("of series", "N, 2, W", 18),
            ("of volumes", "N, 2, H, 3, W", 18),
            ("opset 13", "N, 3, H, W", 13),
            ("newest", "N, 3, H, W", 26),
        ]
    ),
]
