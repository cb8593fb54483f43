"""Gradients of Conv and ConvTranspose: each attribute by itself, and in combinations that interact."""

from __future__ import annotations

from autodiff.gradient_cases import Case

IGNORES_AUTO_PAD = "ORT's ConvGrad takes SAME_* as no padding"
NO_KERNEL = "ORT-training has no CPU kernel of ConvTransposeGrad"


def conv(name, x, w, attributes="", *, op="Conv", wrt=("x", "w"), bias=0, **more):
    """A case with data [x], weights [w], and a bias of that many elements unless it is 0."""
    inputs = f"float[{x}] x, float[{w}] w" + (f", float[{bias}] b" if bias else "")
    body = f"y = {op} {f'<{attributes}>' if attributes else ''} (x, w{', b' if bias else ''})"
    more.setdefault("dims", ({"N": 2}, {"N": 3}))
    return Case(name, inputs, body, wrt=(*wrt, "b") if bias else wrt, **more)


def transposed(name, x, w, attributes="", **more):
    return conv(f"transpose {name}", x, w, attributes, op="ConvTranspose", oracle=NO_KERNEL, **more)


SIZES = ({"N": 2, "H": 7, "W": 6}, {"N": 1, "H": 8, "W": 9})

CASES = [
    conv("1x1", "N, 3, 5, 5", "4, 3, 1, 1"),
    conv("3x3", "N, 3, 6, 5", "4, 3, 3, 3", "pads = [1, 1, 1, 1]"),
    conv("bias", "N, 3, 6, 5", "4, 3, 3, 3", "pads = [1, 1, 1, 1]", bias=4),
    conv("only data", "N, 3, 6, 5", "4, 3, 3, 3", wrt=("x",)),
    conv("only weights", "N, 3, 6, 5", "4, 3, 3, 3", wrt=("w",)),
    conv("only bias", "N, 3, 6, 5", "4, 3, 3, 3", wrt=(), bias=4),
    conv("stride", "N, 3, 8, 8", "4, 3, 3, 3", "strides = [2, 2], pads = [1, 1, 1, 1]"),
    conv("stride divides", "N, 3, 7, 9", "4, 3, 3, 3", "strides = [2, 2], pads = [1, 1, 1, 1]"),
    conv("stride 3, two columns unread", "N, 2, 9, 10", "4, 2, 2, 2", "strides = [3, 4]"),
    conv("1x1 stride 2", "N, 3, 7, 8", "4, 3, 1, 1", "strides = [2, 2]"),
    conv("1x1 padded", "N, 3, 4, 5", "4, 3, 1, 1", "pads = [1, 0, 2, 1]"),
    conv("padding larger than kernel", "N, 2, 3, 4", "3, 2, 2, 2", "pads = [3, 2, 4, 3], strides = [1, 2]"),
    conv("pads differ", "N, 3, 6, 7", "4, 3, 3, 2", "pads = [0, 1, 2, 1], strides = [2, 1]"),
    conv("dilation", "N, 3, 9, 8", "4, 3, 3, 2", "dilations = [2, 3], pads = [2, 1, 1, 2]"),
    conv(
        "dilation and stride",
        "N, 2, 11, 12",
        "3, 2, 3, 3",
        "dilations = [2, 2], strides = [3, 2], pads = [1, 1, 2, 0]",
    ),
    conv("stride larger than kernel", "N, 2, 9, 9", "3, 2, 2, 1", "strides = [4, 3]"),
    conv("unread and dilated", "N, 2, 9, 12", "3, 2, 2, 3", "strides = [3, 4], dilations = [1, 2]"),
    conv("5x3", "N, 2, 9, 8", "3, 2, 5, 3", "pads = [2, 1, 2, 1], kernel_shape = [5, 3]"),
    conv("7x7 stride 2", "N, 3, 14, 14", "4, 3, 7, 7", "pads = [3, 3, 3, 3], strides = [2, 2]"),
    conv("group", "N, 6, 5, 6", "4, 3, 3, 3", "group = 2, pads = [1, 1, 1, 1]"),
    conv("group, 1x1", "N, 6, 5, 4", "9, 2, 1, 1", "group = 3", bias=9),
    conv("group, stride", "N, 6, 8, 7", "6, 2, 3, 3", "group = 3, strides = [2, 2], pads = [1, 1, 0, 1]"),
    conv("depthwise", "N, 5, 6, 6", "5, 1, 3, 3", "group = 5, pads = [1, 1, 1, 1]"),
    conv("depthwise, stride", "N, 4, 8, 7", "4, 1, 3, 3", "group = 4, pads = [1, 1, 1, 1], strides = [2, 2]"),
    conv("depthwise, dilation", "N, 4, 8, 7", "4, 1, 3, 2", "group = 4, pads = [1, 1, 1, 1], dilations = [2, 1]"),
    conv("channel multiplier", "N, 3, 6, 6", "6, 1, 3, 3", "group = 3, pads = [1, 1, 1, 1], strides = [1, 2]"),
    conv("fewer outputs", "N, 4, 6, 5", "2, 4, 3, 3", "pads = [1, 1, 1, 1]"),
    conv("group, fewer outputs", "N, 6, 6, 5", "4, 3, 3, 3", "group = 2, pads = [1, 1, 1, 1]", bias=4),
    conv("many weights, few windows", "N, 50, 2, 1", "48, 50, 1, 1", bias=48, float_limit=2e-5),
    conv("many windows", "N, 2, 16, 15", "2, 2, 3, 3", "pads = [1, 1, 1, 1]"),
    conv("depthwise, wide", "N, 2, 3, 130", "2, 1, 3, 3", "group = 2, pads = [1, 1, 1, 1]"),
    conv("depthwise, rows", "N, 2, 9, 10", "4, 1, 3, 3", "group = 2, pads = [1, 1, 1, 1]"),
    conv("one channel", "N, 1, 6, 6", "3, 1, 3, 3", "pads = [1, 1, 1, 1]"),
    conv("one by one", "N, 4, 1, 1", "3, 4, 1, 1"),
    conv("whole image", "N, 2, 4, 5", "3, 2, 4, 5"),
    conv("1-d", "N, 3, 11", "4, 3, 3", "pads = [1, 2], strides = [2]", bias=4),
    conv("1-d group", "N, 4, 10", "6, 2, 3", "group = 2, dilations = [2]"),
    conv("3-d", "N, 2, 5, 4, 6", "3, 2, 3, 2, 3", "pads = [1, 0, 1, 1, 1, 1], strides = [2, 1, 2]"),
    conv(
        "3-d depthwise", "N, 3, 4, 5, 4", "3, 1, 3, 3, 3", "pads = [1, 1, 1, 1, 1, 1], group = 3", dims=({"N": 2},)
    ),
    conv(
        "3-d, symbolic",
        "N, 2, D, H, W",
        "3, 2, 2, 3, 2",
        "pads = [1, 0, 1, 1, 1, 1], strides = [2, 1, 2]",
        dims=({"N": 2, "D": 4, "H": 5, "W": 6},),
    ),
    conv("3-d, dilation", "N, 2, 4, 5, 6", "3, 2, 2, 2, 2", "dilations = [1, 2, 3]", dims=({"N": 2},)),
    conv("1-d depthwise", "N, 3, 11", "6, 1, 3", "group = 3, pads = [1, 1], strides = [2]"),
    conv("symbolic, 3x3", "N, 3, H, W", "4, 3, 3, 3", "pads = [1, 1, 1, 1]", dims=SIZES),
    conv("symbolic, stride", "N, 3, H, W", "4, 3, 3, 3", "pads = [1, 1, 1, 1], strides = [2, 2]", dims=SIZES),
    conv("symbolic, 1x1 stride", "N, 3, H, W", "4, 3, 1, 1", "strides = [2, 3]", dims=SIZES),
    conv("symbolic, dilation", "N, 3, H, W", "4, 3, 2, 3", "dilations = [3, 2], strides = [2, 1]", dims=SIZES),
    conv(
        "symbolic, group",
        "N, 4, H, W",
        "6, 2, 3, 3",
        "group = 2, strides = [2, 1], pads = [1, 0, 1, 2]",
        dims=SIZES,
    ),
    conv("symbolic, depthwise", "N, 4, H, W", "4, 1, 3, 3", "group = 4, pads = [1, 1, 1, 1]", dims=SIZES),
    conv("symbolic height", "N, 3, H, 6", "4, 3, 3, 3", "pads = [1, 1, 1, 1], strides = [2, 2]", dims=SIZES),
    conv(
        "symbolic channels",
        "N, C, H, W",
        "M, C, 3, 3",
        "pads = [1, 1, 1, 1]",
        dims=({"N": 2, "C": 2, "M": 3, "H": 5, "W": 4},),
        bias="M",
    ),
    conv(
        "symbolic kernel",
        "N, C, H, W",
        "M, C, K, L",
        "strides = [2, 1], dilations = [1, 2]",
        dims=(
            {"N": 2, "C": 2, "M": 3, "H": 8, "W": 6, "K": 3, "L": 2},
            {"N": 1, "C": 1, "M": 2, "H": 5, "W": 6, "K": 2, "L": 1},
        ),
    ),
    conv(
        "symbolic group",
        "N, C, H, W",
        "M, D, 3, 3",
        "group = 2, strides = [2, 2], pads = [1, 1, 1, 1]",
        dims=({"N": 2, "C": 4, "D": 2, "M": 6, "H": 6, "W": 5},),
    ),
    *(
        conv(
            f"{mode.lower()}, {what}",
            x,
            w,
            f'auto_pad = "{mode}", {attributes}',
            oracle=IGNORES_AUTO_PAD,
            dims=dims,
        )
        for mode in ("SAME_UPPER", "SAME_LOWER")
        for what, x, w, attributes, dims in (
            ("even kernel", "N, 2, 6, 5", "3, 2, 2, 4", "strides = [1, 1]", ({"N": 2},)),
            ("stride", "N, 2, 8, 7", "3, 2, 3, 3", "strides = [2, 2]", ({"N": 2},)),
            ("stride larger than kernel", "N, 2, 8, 7", "3, 2, 2, 1", "strides = [3, 3]", ({"N": 2},)),
            ("group", "N, 4, 8, 7", "4, 2, 3, 2", "strides = [2, 1], group = 2", ({"N": 2},)),
            ("1-d", "N, 2, 8", "3, 2, 4", "strides = [3]", ({"N": 2},)),
            ("symbolic", "N, 2, H, W", "3, 2, 2, 3", "strides = [1, 1]", SIZES),
            ("symbolic, stride", "N, 2, H, W", "3, 2, 4, 3", "strides = [3, 2]", SIZES),
            ("symbolic, stride larger than kernel", "N, 2, H, W", "3, 2, 2, 1", "strides = [4, 3]", SIZES),
        )
    ),
    conv("valid", "N, 2, 8, 7", "3, 2, 3, 3", 'auto_pad = "VALID", strides = [2, 2]'),
    conv("symbolic, valid", "N, 2, H, W", "3, 2, 3, 2", 'auto_pad = "VALID", strides = [2, 3]', dims=SIZES),
    conv("opset 13", "N, 3, 6, 5", "4, 3, 3, 3", "pads = [1, 1, 1, 1], strides = [2, 2]", bias=4, opset=13),
    conv("opset 22", "N, 3, 6, 5", "4, 3, 3, 3", "pads = [1, 1, 1, 1], strides = [2, 2]", bias=4, opset=22),
    conv("opset 26", "N, 4, H, W", "4, 2, 3, 3", "group = 2, strides = [2, 2]", bias=4, opset=26, dims=SIZES),
    Case(
        "two consumers of one weight",
        "float[N, 3, 6, 6] x, float[3, 3, 3, 3] w",
        "a = Conv <pads = [1, 1, 1, 1]> (x, w)\nr = Relu(a)\ny = Conv <strides = [2, 2]> (r, w)",
        wrt=("x", "w"),
    ),
    transposed("2x2", "N, 3, 4, 5", "3, 4, 2, 2", "strides = [2, 2]"),
    transposed("3x3", "N, 3, 4, 5", "3, 4, 3, 3", "pads = [1, 1, 1, 1]", bias=4),
    transposed("pads differ", "N, 3, 4, 5", "3, 2, 3, 4", "pads = [0, 1, 2, 1], strides = [2, 1]"),
    transposed(
        "output padding",
        "N, 2, 4, 5",
        "2, 3, 3, 3",
        "strides = [2, 3], pads = [1, 1, 1, 1], output_padding = [1, 2]",
    ),
    transposed(
        "dilation", "N, 2, 4, 5", "2, 3, 3, 2", "strides = [2, 2], dilations = [2, 3], pads = [1, 0, 1, 2]"
    ),
    transposed("group", "N, 4, 4, 5", "4, 3, 3, 3", "group = 2, strides = [2, 2], pads = [1, 1, 1, 1]", bias=6),
    transposed("depthwise", "N, 3, 4, 5", "3, 1, 3, 3", "group = 3, strides = [2, 2], pads = [1, 1, 1, 1]"),
    transposed("1-d", "N, 3, 6", "3, 4, 3", "strides = [2], pads = [1, 0]", bias=4),
    transposed("3-d", "N, 2, 3, 2, 3", "2, 2, 2, 3, 2", "strides = [2, 1, 2]", dims=({"N": 2},)),
    transposed("same upper", "N, 2, 4, 5", "2, 3, 4, 3", 'strides = [2, 2], auto_pad = "SAME_UPPER"'),
    transposed("same lower", "N, 2, 4, 5", "2, 3, 3, 4", 'strides = [2, 1], auto_pad = "SAME_LOWER"'),
    transposed("valid", "N, 2, 4, 5", "2, 3, 3, 4", 'strides = [2, 1], auto_pad = "VALID"'),
    transposed("output shape", "N, 2, 4, 5", "2, 3, 3, 3", "strides = [2, 2], output_shape = [8, 10]"),
    transposed(
        "output shape, odd",
        "N, 2, 4, 5",
        "2, 3, 4, 4",
        'strides = [2, 2], output_shape = [7, 11], auto_pad = "SAME_UPPER"',
    ),
    transposed(
        "symbolic",
        "N, 2, H, W",
        "2, 3, 3, 3",
        "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
        dims=SIZES,
    ),
    transposed(
        "symbolic, same", "N, 2, H, W", "2, 3, 4, 3", 'strides = [2, 1], auto_pad = "SAME_UPPER"', dims=SIZES
    ),
    transposed("symbolic, group", "N, 4, H, W", "4, 1, 3, 3", "strides = [2, 1], group = 2", dims=SIZES),
    transposed(
        "symbolic, output shape",
        "N, 2, H, W",
        "2, 3, 3, 3",
        "strides = [2, 2], output_shape = [15, 16]",
        dims=({"N": 2, "H": 7, "W": 8}, {"N": 1, "H": 8, "W": 8}),
    ),
    transposed("opset 13", "N, 2, 4, 5", "2, 3, 3, 3", "strides = [2, 2]", opset=13),
    transposed("opset 22", "N, 2, 4, 5", "2, 3, 3, 3", "strides = [2, 2]", opset=22),
]
