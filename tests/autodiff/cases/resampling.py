"""Gradients of Pad and Resize."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Case, fixed

CONSTANT_ONLY = "ORT's builder takes mode constant alone"
NO_AXES = "ORT's builder leaves out the axes"
VALUE = "ORT's builder takes the value for a constant"
SIZES = ({"N": 2, "H": 4, "W": 5}, {"N": 1, "H": 3, "W": 6})


def pad(name, x, pads, rest="", mode="constant", **more):
    """A case of Pad; ``rest`` has the inputs after pads, after the constants that they read."""
    constants, _, operands = rest.rpartition(";")
    body = f'p = Constant <value_ints = {pads}> () {constants} y = Pad <mode = "{mode}"> (x, p{operands})'
    if mode != "constant":
        more.setdefault("oracle", CONSTANT_ONLY)
    return Case(f"pad {name}", f"float[{x}] x", body, **more)


AXES = "a = Constant <value_ints = [1, -1]> () ;, , a"
PADS = [
    pad("both ends", "N, 3", [0, 1, 0, 2]),
    pad("with a value", "N, 3", [1, 0, 2, 3], "v = Constant <value_float = 7.0> () ;, v"),
    pad("takes away", "N, 5", [0, -1, 0, -2]),
    pad("adds and takes away", "N, 5", [2, -1, -1, 3], dims=({"N": 3},)),
    pad("axes", "N, 3, 2", [1, 2, 0, 3], AXES, oracle=NO_AXES),
    pad("symbolic", "N, H, W", [0, 1, 2, 0, 3, 0], dims=SIZES),
    pad("opset 13", "N, H, W", [0, 1, 2, 0, 3, 0], dims=SIZES, opset=13),
    pad("opset 26", "N, H, W", [0, 1, 2, 0, 3, 0], dims=SIZES, opset=26),
    *(
        Case(
            f"pad {name}, by its value too",
            f"float[N, 3] x, float{shape} v",
            f"p = Constant <value_ints = {pads}> () {'a = Constant <value_ints = [-1, 0]> ()' if axes else ''} "
            f"y = Pad (x, p, v{axes})",
            ("x", "v"),
            oracle=VALUE,
        )
        for name, shape, pads, axes in [
            ("both ends", "[1]", [0, 1, 2, 0], ""),
            ("a value of rank 0", "", [1, 1, 2, 0], ""),
            ("adds and takes away", "[1]", [-1, 1, 2, -1], ""),
            ("nothing", "[1]", [0, 0, 0, 0], ""),
            ("axes", "[1]", [1, 0, 2, 1], ", a"),
        ]
    ),
    Case(
        "pad by its value alone",
        "float[N, 3] x, int64[4] p, float[1] v",
        "y = Pad (x, p, v)",
        ("v",),
        oracle=VALUE,
        draw={"p": fixed(1, 0, 0, 2)},
    ),
    Case(
        "pad with a mean",
        "float[4] x, int64[2] p",
        "v = ReduceMean <keepdims = 0> (x) y = Pad (x, p, v)",
        draw={"p": fixed(1, 2)},
        oracle=VALUE,
    ),
    Case(
        "pad with a mean that is not used",
        "float[4] x, int64[2] p",
        'v = ReduceMean <keepdims = 0> (x) y = Pad <mode = "edge"> (x, p, v)',
        draw={"p": fixed(1, 2)},
        oracle=CONSTANT_ONLY,
    ),
    Case(
        "pad in double, by its value too",
        "double[N, 3] x, int64[4] p, double[1] v",
        "y = Pad (x, p, v)",
        ("x", "v"),
        draw={"p": fixed(1, 0, 0, 2)},
        element="double",
        float_limit=1e-13,
        oracle=VALUE,
    ),
    Case("pad computed", "float[N, 3] x, int64[4] p", "y = Pad (x, p)", draw={"p": fixed(1, -1, 0, 2)}),
]
for _mode in ("reflect", "edge", "wrap"):
    PADS += [
        pad(f"{_mode} {name}", x, pads, rest, _mode, **{"opset": 19, **more})
        for name, x, pads, rest, more in [
            ("image", "N, 2, 4, 5", [0, 0, 1, 2, 0, 0, 3, 1], "", {}),
            ("vector", "5", [2, 3], "", {}),
            ("one end", "N, 4", [0, 2, 0, 0], "", {}),
            ("first axis", "4, N, 2", [1, 0, 0, 2, 0, 0], "", {}),
            ("axes", "N, 4, 3", [1, 2, 2, 0], AXES, {}),
            ("symbolic", "N, 2, H, W", [0, 0, 1, 2, 0, 0, 2, 0], "", {"dims": SIZES}),
            ("nothing", "N, 4", [0, 0, 0, 0], "", {}),
            # wrap is ambiguous: removed elements may still be padding at the other end.
            ("that takes away", "N, 5", [0, -1, 0, 2], "", {"only": ("reflect", "edge")}),
            (
                "opset 13",
                "N, 2, H, W",
                [0, 0, 1, 2, 0, 0, 2, 0],
                "",
                {"dims": SIZES, "opset": 13, "only": ("reflect", "edge")},
            ),
        ]
        if _mode in more.pop("only", ("reflect", "edge", "wrap"))
    ]
    PADS.append(
        Case(
            f"pad {_mode}, computed",
            "float[N, 4] x, int64[4] p",
            f'y = Pad <mode = "{_mode}"> (x, p)',
            draw={"p": fixed(0, 1, 0, 2)},
            opset=19,
            oracle=CONSTANT_ONLY,
        )
    )


def resize(name, x, attributes="", *, scales=None, sizes=None, roi=None, **more):
    roi_constant = f"r = Constant <value_floats = {roi}> ()" if roi else ""
    target = f"s = Constant <value_floats = {scales}> ()" if scales else f"s = Constant <value_ints = {sizes}> ()"
    operands = f"x, {'r' if roi else ''}, {'s' if scales else ', s'}"
    return Case(
        f"resize {name}",
        f"float[{x}] x",
        f"{roi_constant} {target} y = Resize {f'<{attributes}>' if attributes else ''} ({operands})",
        **more,
    )


def mode(mode, coordinates="half_pixel", *others):
    return ", ".join([f'mode = "{mode}"', f'coordinate_transformation_mode = "{coordinates}"', *others])


def in_proportion(kind, policy, axes):
    return f'{mode(kind)}, keep_aspect_ratio_policy = "{policy}", axes = {axes}'


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
UP, DOWN = [1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 0.6, 0.5]
BOTH = [1.0, 1.0, 0.7, 1.6]
WHOLE = [1.0, 1.0, 0.8, 1.5]
"""Scales that give whole extents; for others align_corners and crops are ambiguous."""
ROI = [0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.9, 1.1]
IMAGE = "N, 2, 5, 4"
NO_SIZES = "ORT's gradient op of Resize gets no sizes, which decide the scale"
RESIZES = [
    *(
        resize(
            f"nearest {how} {rounding}",
            IMAGE,
            f'{mode("nearest", how)}, nearest_mode = "{rounding}"',
            scales=UP,
            opset=19,
            dims=({"N": 2},),
        )
        for how in COORDINATES
        for rounding in ROUNDINGS
    ),
    *(
        resize(f"{kind} {how} {what}", IMAGE, mode(kind, how), scales=scales, opset=19, dims=({"N": 2},))
        for kind in ("linear", "cubic")
        for how in COORDINATES
        for what, scales in (("up", UP), ("down", DOWN), ("both", WHOLE if how == "align_corners" else BOTH))
    ),
    *(
        resize(f"{kind} smoothed", IMAGE, f"{mode(kind)}, antialias = 1", scales=DOWN, opset=18)
        for kind in ("linear", "cubic")
    ),
    *(
        resize(
            f"{kind} of a crop",
            IMAGE,
            mode(kind, "tf_crop_and_resize"),
            sizes=[2, 2, 7, 3],
            roi=ROI,
            dims=({"N": 2},),
        )
        for kind in ("nearest", "linear", "cubic")
    ),
    resize(
        "of a crop with a value around",
        IMAGE,
        mode("linear", "tf_crop_and_resize", "extrapolation_value = 9.0"),
        scales=WHOLE,
        roi=ROI,
    ),
    resize("cubic, coefficient", IMAGE, mode("cubic", "half_pixel", "cubic_coeff_a = -0.5"), scales=BOTH),
    resize("cubic, nothing outside", IMAGE, mode("cubic", "half_pixel", "exclude_outside = 1"), scales=BOTH),
    resize("by default", IMAGE, scales=UP),
    resize("nearest down", IMAGE, mode("nearest", "asymmetric"), scales=DOWN),
    resize("to sizes", IMAGE, mode("linear"), sizes=[2, 2, 7, 3], dims=({"N": 2},)),
    resize("to sizes, whole factors", "2, 2, 5, 4", mode("nearest"), sizes=[2, 2, 10, 12]),
    resize("to sizes, some axes", IMAGE, f"{mode('linear')}, axes = [3, 2]", sizes=[3, 7]),
    resize(
        "to smaller sizes in proportion",
        IMAGE,
        in_proportion("linear", "not_larger", [2, 3]),
        sizes=[7, 3],
        dims=({"N": 2},),
        oracle=NO_SIZES,
    ),
    resize(
        "symbolic to larger sizes in proportion",
        "N, 2, H, W",
        in_proportion("nearest", "not_smaller", [3, 2]),
        sizes=[4, 7],
        dims=SIZES,
        oracle=NO_SIZES,
    ),
    resize("by scales of some axes", IMAGE, f"{mode('nearest')}, axes = [3]", scales=[2.0]),
    resize(
        "of a crop of some axes",
        IMAGE,
        f"{mode('linear', 'tf_crop_and_resize')}, axes = [2, 3]",
        scales=[1.6, 0.75],
        roi=[0.1, 0.0, 1.0, 0.8],
    ),
    resize("nothing", IMAGE, mode("linear"), scales=[1.0, 1.0, 1.0, 1.0]),
    resize(
        "symbolic, repeats",
        "N, C, H, W",
        f'{mode("nearest", "asymmetric")}, nearest_mode = "floor"',
        scales=[1.0, 1.0, 2.0, 2.0],
        dims=tuple({**d, "C": 2} for d in SIZES),
    ),
    resize("symbolic", "N, 2, H, W", mode("linear"), scales=BOTH, dims=SIZES),
    resize("symbolic to sizes", "N, 2, H, W", f"{mode('linear')}, axes = [2, 3]", sizes=[4, 7], dims=SIZES),
    resize("1-d", "N, 2, 5", mode("linear"), scales=[1.0, 1.0, 1.7]),
    resize("1-d repeats", "N, 2, 5", mode("nearest"), scales=[1.0, 1.0, 3.0]),
    resize("3-d", "N, 2, 3, 4, 2", mode("linear"), scales=[1.0, 1.0, 1.7, 0.5, 2.0]),
    resize("3-d repeats", "N, 2, 3, 4, 2", mode("nearest"), scales=[1.0, 1.0, 2.0, 1.0, 3.0]),
    resize("vector", "5", mode("nearest"), scales=[1.7]),
    resize("matrix", "4, 5", mode("linear"), scales=[0.6, 1.5]),
    resize("channels last", "N, 4, 3, 2", mode("linear"), scales=[1.0, 1.5, 0.7, 1.0]),
    resize("every axis", "2, 3, 4", mode("nearest"), scales=[1.5, 2.0, 0.5]),
    resize("opset 13", IMAGE, mode("linear", "pytorch_half_pixel"), scales=BOTH, opset=13),
    resize(
        "opset 13, repeats",
        IMAGE,
        mode("nearest", "asymmetric", 'nearest_mode = "floor"'),
        scales=[1.0, 1.0, 2.0, 2.0],
        opset=13,
    ),
    resize("opset 26", IMAGE, mode("linear"), sizes=[2, 2, 7, 3], dims=({"N": 2},), opset=26),
    Case(
        "resize by computed scales",
        "float[N, 2, H, W] x, float[4] s",
        f"y = Resize <{mode('linear')}> (x, , s)",
        draw={"s": fixed(1, 1, 1.4, 0.7)},
        dims=SIZES,
    ),
    Case(
        "resize to computed sizes",
        "float[N, 2, H, W] x, int64[2] k",
        f"h = Shape <end = 2> (x) s = Concat <axis = 0> (h, k) y = Resize <{mode('cubic')}> (x, , , s)",
        draw={"k": fixed(7, 3)},
        dims=SIZES,
    ),
    Case(
        "resize, opset 11 with empty scales",
        "float[N, 2, 4, 3] x",
        "r = Constant <value = float[0] {}> () c = Constant <value = float[0] {}> () "
        f"s = Constant <value = int64[4] {{2, 2, 6, 5}}> () y = Resize <{mode('linear')}> (x, r, c, s)",
        dims=({"N": 2},),
        opset=11,
    ),
]
CENTERED = [
    Case(
        f"center crop pad, {name}",
        f"float[{x}] x",
        f"s = Constant <value_ints = {shape}> () y = CenterCropPad {axes} (x, s)",
        oracle=NO_RULE,
        **more,
    )
    for name, x, shape, axes, more in [
        ("all axes", "N, 4, 5", [3, 7, 2], "", {"dims": ({"N": 2},)}),
        ("some axes", "N, H, W, 2", [4, 5], "<axes = [-2, 1]>", {"dims": SIZES}),
    ]
]
CASES = [*PADS, *RESIZES, *CENTERED]
