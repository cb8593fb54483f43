"""Gradients of reductions and of global pooling."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import (
    Case,
    check_against_differences,
    check_against_oracle,
    check_in_float16,
    check_on_stock,
    forward,
    lowered,
)
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import UnsupportedNodeError
from bngrad.runtime import session
from bngrad.validation.float64 import evaluate

NO_RULE = "ORT's builder has no rule for it"
INVALID = "ORT's builder makes an invalid model of it"
ALL_DIMS = ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 3, "W": 4})
N = ({"N": 1}, {"N": 3})


def positive(rng, shape):
    return rng.uniform(0.5, 2, shape)


def with_zeros(rng, shape):
    """Numbers of which a row has no zero, one, or two."""
    x = rng.uniform(0.5, 2, shape)
    for row, zeros in zip(x.reshape(-1, shape[-1]), (0, 1, 2) * x.size, strict=False):
        row[:zeros] = 0
    return x


# What a reduction is tried with: (id, type of x, axes or None, attributes)
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
            op, ("of nothing", "N, H, W", axes, f"noop_with_empty_axes = 1, keepdims = {keepdims}"), why or kernel
        )
        for op, why in [
            ("ReduceSum", ""),
            ("ReduceMean", ""),
            ("ReduceMax", NO_RULE),
            ("ReduceMin", NO_RULE),
            ("ReduceProd", NO_RULE),
        ]
        for axes, keepdims, kernel in [(None, 1, "its kernels want axes, if none"), ("", 0, "")]
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
            oracle="it differentiates float alone",
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
EACH = pytest.mark.parametrize(
    ("case", "dims"), [pytest.param(c, d, id=f"{c}-{d}") for c in CASES for d in c.dims]
)


@EACH
def test_central_differences(case, dims):

    check_against_differences(case, dims)


@EACH
def test_stock(case, dims):
    check_on_stock(case, dims)


@EACH
def test_oracle(case, dims, oracle):
    if case.oracle:
        pytest.skip(case.oracle)
    check_against_oracle(case, dims, oracle)


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        pytest.param(c, c.dims[-1], id=str(c))
        for c in CASES
        if c.element == "float"
        and c.name.endswith(("of two, dropped", "of nothing", "of images", "of fixed extents"))
    ],
)
def test_float16(case, dims):
    check_in_float16(case, dims)


TIES = np.array([[[3, 1, 3], [2, 2, 2]], [[0, 5, 1], [-1, -1, -7]]], np.float32)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("ReduceMax <keepdims = 0> (x, last)", [[[3, 0, 3], [2, 2, 2]], [[0, 6, 0], [3, 3, 0]]]),
        ("ReduceMin (x, last)", [[[0, 6, 0], [2, 2, 2]], [[6, 0, 0], [0, 0, 6]]]),
        ("ReduceMax (x)", [[[0, 0, 0], [0, 0, 0]], [[0, 6, 0], [0, 0, 0]]]),
        ("GlobalMaxPool (x)", [[[3, 0, 3], [2, 2, 2]], [[0, 6, 0], [3, 3, 0]]]),
    ],
    ids=["max", "min", "max of all", "pool"],
)
def test_ties_share(body, want):
    """The gradient of an extreme is split evenly over all the elements that have it."""
    case = Case("", "float[N, C, L] x", f"y = {body}", initializers="int64[1] last = {-1}")
    y_weight = np.full_like(evaluate(lowered(case), {"x": TIES, "y_weight": np.zeros([1, 1, 1])}, ["y"])["y"], 6)
    feeds = {"x": TIES, "y_weight": y_weight.astype(np.float32)}
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], feeds)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(evaluate(lowered(case), feeds, ["x_grad"])["x_grad"], want)


def test_an_empty_batch():
    """The number of elements over the number of means, 0 / 0, must not stop the process."""
    case = Case("", "float[N, 3, W] x", "y = GlobalAveragePool (x)")
    feeds = {"x": np.zeros([0, 3, 4], np.float32), "y_weight": np.zeros([0, 3, 1], np.float32)}
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], feeds)
    assert got.shape == (0, 3, 4)


@pytest.mark.parametrize("what", ["axes left out", "empty axes", "computed axes"])
@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"])
def test_what_may_reduce_nothing_is_refused(op, what):
    """By some it is the identity then, by others all but the sum is still computed."""
    axes = {"axes left out": "", "empty axes": ", none", "computed axes": ", given"}[what]
    body = f"y = {op} <noop_with_empty_axes = 1> (x{axes})"
    case = Case("", "float[N, 3] x, int64[K] given", body, initializers="int64[0] none = {}")
    reason = f"{op} node '{op}_0'.*it has noop_with_empty_axes = 1 and no constant axes; expected axes"
    with pytest.raises(UnsupportedNodeError, match=reason):
        training_graph(ir.from_proto(forward(case)), loss="loss", wrt=case.wrt)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceMean"])
def test_a_number_of_elements_that_is_known_is_a_constant(op):
    axes = "" if op == "GlobalAveragePool" else ", axes"
    case = Case("", "float[N, C, 7, 7] x", f"y = {op} (x{axes})", initializers="int64[2] axes = {2, 3}")
    training, _ = training_graph(ir.from_proto(forward(case)), loss="loss", wrt=case.wrt)
    gradient = [node.op_type for node in training.graph if (node.name or "").startswith(f"{op}_0_Grad")]
    assert gradient == ["Constant", "Scale", "Shape", "Expand"]
