"""Gradients of LpPool, GlobalLpPool, MaxUnpool, Col2Im, and MaxPool with column-major indices."""

from __future__ import annotations

from autodiff.cases.pooling import SIZES, distinct
from autodiff.gradient_cases import NO_RULE, Case


def pool(name, x, attributes, op="LpPool", **more):
    return Case(f"{op} {name}", f"float[{x}] x", f"y = {op} <{attributes}> (x)", oracle=NO_RULE, **more)


LP_POOLS = [
    pool("2x2", "N, 2, 6, 8", "kernel_shape = [2, 2], strides = [2, 2]"),
    pool("p = 1, pads", "N, 2, 5, 6", "kernel_shape = [3, 3], pads = [1, 0, 1, 2], p = 1"),
    pool("p = 3", "N, 2, H, W", "kernel_shape = [3, 2], strides = [2, 1], p = 3", dims=SIZES),
    pool("p = 4, 1-d", "N, 2, 9", "kernel_shape = [3], strides = [2], pads = [1, 0], p = 4", is_long=True),
    pool("3-d", "N, 2, 3, 4, 3", "kernel_shape = [2, 3, 2], pads = [0, 1, 1, 1, 0, 0]", is_long=True),
    pool("dilation", "N, 2, 9, 8", "kernel_shape = [3, 2], dilations = [2, 3], pads = [1, 0, 2, 1], p = 3"),
    pool("ceil", "N, 2, H, W", "kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1, p = 3", dims=SIZES),
    pool(
        "ceil, pads",
        "N, 2, 6, 7",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1",
        opset=22,
    ),
    pool("same upper", "N, 2, 7, 8", 'kernel_shape = [4, 3], strides = [2, 2], auto_pad = "SAME_UPPER", p = 3'),
    pool("same lower", "N, 2, H, W", 'kernel_shape = [4, 3], auto_pad = "SAME_LOWER"', dims=SIZES, is_long=True),
    pool("opset 11", "N, 2, 7, 8", "kernel_shape = [3, 3], strides = [2, 2]", opset=11, is_long=True),
    pool("of all", "N, 2, H, W", "p = 2", op="GlobalLpPool", dims=SIZES),
    pool("of all, p = 1", "N, 2, 5", "p = 1", op="GlobalLpPool", is_long=True),
    pool("of all, p = 3", "N, 2, 3, 2, 4", "p = 3", op="GlobalLpPool"),
]

X, Z = "float[N, 2, 2, 3] x", "float[N, 2, 5, 6] z"
HALVES = "kernel_shape = [2, 2], strides = [2, 2]"


def unpool(name, attributes=HALVES, x=X, z=Z, **more):
    """Unpools x to where the largest elements of z are."""
    body = f"p, i = MaxPool <{attributes}> (z) y = MaxUnpool <{attributes}> (x, i)"
    return Case(f"MaxUnpool {name}", f"{x}, {z}", body, draw={"z": distinct}, oracle=NO_RULE, **more)


UNPOOLINGS = [
    unpool("2x2", z="float[N, 2, 4, 6] z"),
    unpool("2x2, opset 22", z="float[N, 2, 4, 6] z", opset=22, is_long=True),
    unpool("1-d", "kernel_shape = [3], strides = [3]", "float[N, 1, 2] x", "float[N, 1, 6] z"),
    unpool("3-d", "kernel_shape = [1, 2, 1]", "float[N, 1, 2, 2, 2] x", "float[N, 1, 2, 3, 2] z", is_long=True),
    unpool("pads", f"{HALVES}, pads = [1, 0, 1, 1]", "float[N, 1, 3, 3] x", "float[N, 1, 4, 5] z"),
    # Windows overlap: an element of z is the largest of several.
    unpool("the same indices", "kernel_shape = [3, 3]", "float[N, 2, 2, 3] x", "float[N, 2, 4, 5] z"),
    Case(
        "MaxUnpool to a shape",
        f"{X}, float[N, 2, 4, 6] z",
        f"p, i = MaxPool <{HALVES}> (z) s = Shape (z) y = MaxUnpool <{HALVES}> (x, i, s)",
        draw={"z": distinct},
        oracle=NO_RULE,
    ),
]

COLUMN_MAJOR = [
    Case(
        f"MaxPool, column-major, {name}",
        f"float[{x}] x",
        f"p, i = MaxPool <{attributes}, storage_order = 1> (x) {rest}",
        draw={"x": distinct},
        oracle="ORT's MaxPoolGrad takes the indices for row-major",
        is_long=is_long,
    )
    for name, x, attributes, rest, is_long in (
        ("its indices read too", "N, 2, 4, 6", HALVES, "f = Cast <to = 1> (i) y = Mul(p, f)", False),
        ("alone", "N, 2, 5, 6", "kernel_shape = [3, 2], pads = [1, 0, 1, 1]", "y = Identity(p)", False),
        ("3-d", "N, 2, 3, 4, 3", "kernel_shape = [2, 2, 2]", "f = Cast <to = 1> (i) y = Mul(p, f)", True),
    )
]


def col2im(name, x, image, block, attributes="", **more):
    initializers = (
        f"int64[{len(image)}] image = {{{str(image)[1:-1]}}}, int64[{len(block)}] k = {{{str(block)[1:-1]}}}"
    )
    body = f"y = Col2Im {attributes and f'<{attributes}>'} (x, image, k)"
    more = {"initializers": initializers, "oracle": NO_RULE, **more}
    return Case(f"Col2Im {name}", f"float[{x}] x", body, **more)


IMAGES = [
    col2im("2-d", "N, 8, 12", [4, 5], [2, 2]),
    col2im("1-d", "N, 6, 4", [6], [3], is_long=True),
    col2im(
        "all attributes", "N, 12, 8", [7, 6], [3, 2], "dilations = [2, 3], pads = [1, 0, 2, 1], strides = [3, 1]"
    ),
    col2im("3-d", "N, 8, 8", [3, 3, 3], [2, 2, 2], is_long=True),
    Case(
        "Col2Im to a computed shape",
        "float[N, 4, 6] x, float[N, 1, 3, 4] like",
        "s = Shape <start = 2> (like) one = Constant <value_ints = [1, 1]> () k = Add(one, one) "
        "e = Shape <start = 1> (like) c, h, w = Split <axis = 0, num_outputs = 3> (e) "
        "t = Concat <axis = 0> (h, w) y = Col2Im (x, t, k)",
        oracle=NO_RULE,
    ),
]

CASES = [*LP_POOLS, *UNPOOLINGS, *COLUMN_MAJOR, *IMAGES]
