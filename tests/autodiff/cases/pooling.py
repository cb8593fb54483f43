"""Gradients of MaxPool and AveragePool: each attribute by itself, and in combinations that interact."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import Case

IGNORES_AUTO_PAD = "ORT's AveragePoolGrad takes SAME_* as no padding"
WRONG_IN_3D = "ORT's AveragePoolGrad is wrong in three dimensions"
EMPTY_WINDOW = "ORT 1.19.2 makes one more window of ceil_mode, with nothing in it"
COUNTS_CEIL = "ORT's AveragePoolGrad counts what ceil_mode added"
NO_DILATION = "ORT's AveragePoolGrad knows no dilations"
SIZES = ({"N": 2, "H": 7, "W": 6}, {"N": 1, "H": 8, "W": 9})


def distinct(rng, shape):
    """Draws numbers whose order no step of a central difference changes."""
    return rng.permutation(int(np.prod(shape))).reshape(shape) / 10


def pool(op, name, x, attributes, **more):
    draw = {"x": distinct} if op == "MaxPool" else {}
    return Case(f"{op} {name}", f"float[{x}] x", f"y = {op} <{attributes}> (x)", draw=draw, **more)


GEOMETRIES = [
    ("2x2", "N, 2, 6, 8", "kernel_shape = [2, 2], strides = [2, 2]", {}),
    ("2x2, remainder", "N, 2, 7, 9", "kernel_shape = [2, 2], strides = [2, 2]", {}),
    ("3x3 stride 2", "N, 2, 7, 8", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]", {}),
    ("3x3 stride 1", "N, 2, 5, 6", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", {}),
    ("default strides", "N, 2, 5, 6", "kernel_shape = [3, 2]", {}),
    ("gaps", "N, 2, 8, 9", "kernel_shape = [2, 1], strides = [3, 4]", {}),
    ("whole image", "N, 3, 4, 5", "kernel_shape = [4, 5]", {}),
    ("1x1", "N, 3, 4, 5", "kernel_shape = [1, 1], strides = [2, 2]", {}),
    ("pads differ", "N, 2, 7, 8", "kernel_shape = [3, 4], strides = [2, 3], pads = [0, 2, 1, 1]", {}),
    ("pads, no overlap", "N, 2, 6, 7", "kernel_shape = [2, 3], strides = [2, 3], pads = [1, 1, 1, 1]", {}),
    ("1-d", "N, 2, 9", "kernel_shape = [3], strides = [2], pads = [1, 0]", {}),
    ("3-d", "N, 2, 4, 6, 4", "kernel_shape = [2, 2, 2], strides = [2, 2, 2]", {"3d": 1}),
    (
        "3-d, overlap",
        "N, 2, 4, 5, 3",
        "kernel_shape = [2, 3, 2], strides = [1, 2, 1], pads = [0, 1, 1, 1, 0, 0]",
        {"3d": 1},
    ),
    ("ceil", "N, 2, 6, 7", "kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1", {}),
    (
        "ceil, pads",
        "N, 2, 6, 7",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1",
        {},
    ),
    (
        "ceil, empty window",
        "N, 2, 4, 4",
        "kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 1], ceil_mode = 1",
        {"empty": 1, "opset": 22},  # below opset 22, onnx has windows that ONNX Runtime leaves out
    ),
    ("valid", "N, 2, 7, 8", 'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "VALID"', {}),
    ("same upper", "N, 2, 7, 8", 'kernel_shape = [4, 3], strides = [2, 2], auto_pad = "SAME_UPPER"', {"same": 1}),
    ("same lower", "N, 2, 7, 8", 'kernel_shape = [4, 3], strides = [2, 2], auto_pad = "SAME_LOWER"', {"same": 1}),
    ("same, stride 1", "N, 2, 4, 5", 'kernel_shape = [2, 4], auto_pad = "SAME_UPPER"', {"same": 1}),
    ("symbolic, 2x2", "N, 2, H, W", "kernel_shape = [2, 2], strides = [2, 2]", {"dims": SIZES}),
    (
        "symbolic, 3x3 stride 2",
        "N, 2, H, W",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
        {"dims": SIZES},
    ),
    ("symbolic, 3x3 stride 1", "N, 2, H, W", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", {"dims": SIZES}),
    ("symbolic, ceil", "N, 2, H, W", "kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1", {"dims": SIZES}),
    (
        "symbolic, ceil, pads",
        "N, 2, H, W",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 1, 1], ceil_mode = 1",
        {"dims": SIZES},
    ),
    (
        "symbolic, same",
        "N, 2, H, W",
        'kernel_shape = [4, 3], strides = [2, 2], auto_pad = "SAME_UPPER"',
        {"dims": SIZES, "same": 1},
    ),
    (
        "symbolic, same lower",
        "N, 2, H, W",
        'kernel_shape = [2, 3], strides = [3, 1], auto_pad = "SAME_LOWER"',
        {"dims": SIZES, "same": 1},
    ),
    (
        "symbolic channels",
        "N, C, H, W",
        "kernel_shape = [3, 3], strides = [2, 1]",
        {"dims": ({"N": 2, "C": 3, "H": 7, "W": 5},)},
    ),
    (
        "symbolic, 1-d",
        "N, 2, H",
        "kernel_shape = [3], strides = [2], pads = [1, 1]",
        {"dims": ({"N": 2, "H": 8}, {"N": 3, "H": 9})},
    ),
    ("opset 13", "N, 2, 7, 8", "kernel_shape = [3, 3], strides = [2, 2]", {"opset": 13}),
    ("opset 19", "N, 2, 7, 8", "kernel_shape = [3, 3], strides = [2, 2]", {"opset": 19}),
    ("opset 22", "N, 2, 7, 8", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", {"opset": 22}),
    (
        "opset 26",
        "N, 2, H, W",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
        {"opset": 26, "dims": SIZES},
    ),
]
DILATED = [
    ("dilation", "N, 2, 9, 8", "kernel_shape = [3, 2], dilations = [2, 3], pads = [1, 0, 2, 1]"),
    ("dilation and stride", "N, 2, 9, 8", "kernel_shape = [2, 2], dilations = [3, 2], strides = [2, 2]"),
]


def _cases():
    for name, x, attributes, notes in GEOMETRIES:
        more = {key: notes[key] for key in ("dims", "opset") if key in notes}
        empty = EMPTY_WINDOW if "empty" in notes else ""
        yield pool("MaxPool", name, x, attributes, **more, oracle=empty)
        wrong = IGNORES_AUTO_PAD if "same" in notes else WRONG_IN_3D if "3d" in notes else empty
        yield pool("AveragePool", name, x, attributes, **more, oracle=wrong)
        if "pads" in attributes or "SAME" in attributes:
            counts = COUNTS_CEIL if "ceil_mode" in attributes else wrong
            included = f"{attributes}, count_include_pad = 1"
            yield pool("AveragePool", f"{name}, include pad", x, included, **more, oracle=counts)
    for name, x, attributes in DILATED:
        yield pool("MaxPool", name, x, attributes)
        yield pool("AveragePool", name, x, attributes, opset=19, oracle=NO_DILATION)
        yield pool(
            "AveragePool",
            f"{name}, include pad",
            x,
            f"{attributes}, count_include_pad = 1",
            opset=19,
            oracle=NO_DILATION,
        )
    yield Case(
        "MaxPool, its indices read too",
        "float[N, 2, 6, 6] x",
        "p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)\nf = Cast <to = 1> (i)\ny = Mul(p, f)",
        draw={"x": distinct},
    )
    yield Case(
        "two pools of one value",
        "float[N, 2, 6, 6] x",
        "a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)\n"
        "b = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)\ny = Mul(a, b)",
        draw={"x": distinct},
    )


CASES = list(_cases())
