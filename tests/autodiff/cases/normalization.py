"""Gradients of batch norm and its relatives."""

from __future__ import annotations

from autodiff.gradient_cases import FLOAT_ALONE, NO_RULE, Case, positive

NEWER = "the op is newer than the oracle"
NO_BIAS = "ORT's builder asks for a bias"
REPEATED = "ORT's builder takes scales of the shape of X alone"
CONSTANTS = "ORT's builder takes new statistics for constants"
XSB = ("x", "s", "b")
XSBMV = (*XSB, "m", "v")
SIZES = ({"N": 3, "H": 2, "W": 4}, {"N": 1, "H": 3, "W": 3})
RANKS = ["N, 3", "N, 3, W", "N, 3, H, W", "N, 3, H, 2, W"]
STATISTICS = "float[3] m = {0.1, -0.2, 0.3}, float[3] v = {1.5, 0.5, 1}"


def norm(name, op, x, parameters="3", attributes="", inputs="x, s, b", element="float", **more):
    wrt = tuple(name for name in XSB if name in inputs.split(", "))
    types = [f"{element}[{x}] x", *(f"{element}[{parameters}] {name}" for name in wrt[1:])]
    # The statistics are for ORT's builder, which does not add them.
    outputs = "y, mean, inv_std" if op == "LayerNormalization" and not more.get("oracle") else "y"
    body = f"{outputs} = {op} <{attributes}> ({inputs})".replace("<> ", "")
    more = {"dims": SIZES, "element": element, **more}
    if element == "double":
        more = {"float_limit": 1e-12, "oracle": FLOAT_ALONE, **more}
    return Case(f"{op} {name}", ", ".join(types), body, wrt, **more)


def batch_norms():
    for what, attributes, least in [("frozen", "", 1), ("training", "training_mode = 1", 3)]:
        # A batch of one element per channel has no gradient in training mode.
        dims = tuple({**d, "N": max(d["N"], least)} for d in SIZES)
        more = {"initializers": STATISTICS, "dims": dims, "inputs": "x, s, b, m, v"}
        for shape in RANKS:
            yield norm(f"{what}, [{shape}]", "BatchNormalization", shape, attributes=attributes, **more)
        both = "epsilon = 0.01, momentum = 0.5" + (f", {attributes}" if attributes else "")
        yield norm(f"{what}, attributes", "BatchNormalization", RANKS[2], attributes=both, **more)
        yield norm(f"{what}, static", "BatchNormalization", "2, 3, 4, 5", attributes=attributes, **more)
        yield norm(f"{what}, opset 14", "BatchNormalization", RANKS[2], attributes=attributes, opset=14, **more)
        yield norm(f"{what}, newest", "BatchNormalization", RANKS[2], attributes=attributes, opset=26, **more)
        more["initializers"] = STATISTICS.replace("float", "double")
        more["oracle"] = FLOAT_ALONE
        yield norm(
            f"{what}, double", "BatchNormalization", RANKS[2], attributes=attributes, element="double", **more
        )


def batch_norms_by_x_alone():
    for mode in (0, 1):
        for shape in RANKS[::2]:
            yield Case(
                f"BatchNormalization {mode}, [{shape}], by x alone",
                f"float[{shape}] x, float[3] s, float[3] b",
                f"y = BatchNormalization <training_mode = {mode}> (x, s, b, m, v)",
                initializers=STATISTICS,
                dims=SIZES[:1],
            )


def batch_norms_with_statistics():
    """Cases in which the mean and the variance have gradients, or the loss reads the new running statistics."""
    inputs = "{0}[{1}] x, {0}[3] s, {0}[3] b, {0}[3] m, {0}[3] v"
    more = {"draw": {"v": positive}, "dims": SIZES}
    for shape in RANKS:
        body = "y = BatchNormalization (x, s, b, m, v)"
        yield Case(
            f"BatchNormalization frozen, [{shape}], by all", inputs.format("float", shape), body, XSBMV, **more
        )
    for wrt in ("m", "v"):
        body = "y = BatchNormalization <epsilon = 0.01> (x, s, b, m, v)"
        name = f"BatchNormalization frozen, by {wrt} alone"
        yield Case(name, inputs.format("float", RANKS[2]), body, (wrt,), **more)
    yield Case(
        "BatchNormalization frozen, double, by all",
        inputs.format("double", RANKS[2]),
        "y = BatchNormalization (x, s, b, m, v)",
        XSBMV,
        element="double",
        float_limit=1e-12,
        oracle=FLOAT_ALONE,
        **more,
    )
    for shape, axes in [("N, 3", "0"), ("N, 3, H, W", "0, 2, 3")]:
        yield Case(
            f"BatchNormalization with the statistics of its X, [{shape}]",
            f"float[{shape}] x, float[3] s, float[3] b",
            f"""a = Constant <value_ints = [{axes}]> () m = ReduceMean <keepdims = 0> (x, a)
            n = ReduceMean (x, a) d = Sub (x, n) e = Mul (d, d) v = ReduceMean <keepdims = 0> (e, a)
            y = BatchNormalization (x, s, b, m, v)""",
            XSB,
            dims=SIZES[:1],
        )
    for names in (["y", "m1", "v1"], ["y", "m1"], ["v1"], ["m1"]):
        for shape in RANKS[::2]:
            yield Case(
                f"BatchNormalization training, [{shape}], a loss of {', '.join(names)}",
                inputs.format("float", shape),
                "y, m1, v1 = BatchNormalization <training_mode = 1, momentum = 0.7> (x, s, b, m, v)",
                ("x", *(("s", "b") if "y" in names else ()), *(name[0] for name in names if name != "y")),
                tuple(names),
                oracle=CONSTANTS,
                **{**more, "dims": SIZES[:1]},
            )


def layer_norms():
    for what, x, scale, attributes in [
        ("of the last", "N, H, 5", "5", ""),
        ("of the last, symbols", "N, H, W", "W", "epsilon = 0.01"),
        ("of a row", "N, 5", "5", "axis = 1"),
        ("of two", "N, H, W", "H, W", "axis = 1"),
        ("of two, from behind", "N, H, 2, W", "2, W", "axis = -2"),
        ("of all", "N, H, W", "N, H, W", "axis = 0"),
        ("of a vector", "W", "W", ""),
        ("static", "2, 3, 4", "4", ""),
    ]:
        yield norm(what, "LayerNormalization", x, scale, attributes)
        yield norm(f"{what}, no bias", "LayerNormalization", x, scale, attributes, "x, s", oracle=NO_BIAS)
        yield norm(what, "RMSNormalization", x, scale, attributes, "x, s", opset=23, oracle=NEWER)
    yield norm("opset 17", "LayerNormalization", "N, H, 5", "5", opset=17)
    yield norm("without statistics", "LayerNormalization", "N, H, 5", "5", oracle="ORT's builder asks for them")
    yield norm("newest", "LayerNormalization", "N, H, 5", "5", opset=26)
    yield norm("newest", "RMSNormalization", "N, H, 5", "5", "", "x, s", opset=26, oracle=NEWER)
    yield norm("double", "RMSNormalization", "N, H, 5", "5", "", "x, s", "double", opset=23)
    yield norm("double", "LayerNormalization", "N, H, 5", "5", element="double", float_limit=1e-5)
    for names in (["y", "mean", "inv_std"], ["y", "inv_std"], ["mean"], ["inv_std"]):
        for axis, scale in [(-1, "5"), (1, "H, 5")]:
            yield Case(
                f"LayerNormalization from axis {axis}, a loss of {', '.join(names)}",
                f"float[N, H, 5] x, float[{scale}] s, float[{scale}] b",
                # Statistics are float for data in 16 bits.
                f"""y, a, c = LayerNormalization <axis = {axis}> (x, s, b)
                mean = CastLike (a, x) inv_std = CastLike (c, x)""",
                XSB if "y" in names else ("x",),
                tuple(names),
                dims=SIZES,
                oracle="ORT's builder drops what comes from its statistics",
            )
    for what, x, scale, axis in [
        ("of rank 3", "N, 3, 4", "1, 1, 4", -1),
        ("of more axes", "N, 3, 4", "3, 4", -1),
        ("of fewer axes", "N, 3, 4", "4", 1),
        ("of one axis", "N, 3, 4", "3, 1", 1),
        ("of one element", "N, H, W", "1", -1),
        ("of samples", "2, 3, 4", "2, 1, 4", -1),
        ("of symbols", "N, H, W", "H, W", 2),
        ("of another symbol", "N, H, W", "V", -1),
    ]:
        # A sum over all of Y cancels digits.
        dims = {"dims": tuple({**size, "V": size["W"]} for size in SIZES), "oracle": REPEATED, "float_limit": 1e-4}
        yield norm(f"with a scale {what}", "LayerNormalization", x, scale, f"axis = {axis}", **dims)
        yield norm(
            f"with a scale {what}", "RMSNormalization", x, scale, f"axis = {axis}", "x, s", opset=23, **dims
        )
    yield Case(
        "LayerNormalization with a scale of the shape of X and a bias of one element",
        "float[N, H, 5] x, float[5] s, float[1] b",
        "y = LayerNormalization (x, s, b)",
        XSB,
        dims=SIZES,
        oracle=REPEATED,
    )
    yield Case(
        "LayerNormalization with a repeated scale, a loss of y and inv_std",
        "float[N, H, 5] x, float[1] s, float[5] b",
        "y, m, c = LayerNormalization (x, s, b) inv_std = CastLike (c, x)",
        XSB,
        ("y", "inv_std"),
        dims=SIZES,
        oracle=REPEATED,
    )
    for wrt in XSB:
        yield Case(
            f"LayerNormalization by {wrt} alone",
            "float[N, H, 5] x, float[5] s, float[5] b",
            "y, mean, inv_std = LayerNormalization(x, s, b)",
            (wrt,),
            dims=SIZES,
        )
    yield Case(
        "LayerNormalization of a sum that is read again",
        "float[N, H, 5] x, float[N, H, 5] z, float[5] s, float[5] b",
        "t = Add(x, z) \n u, mean, inv_std = LayerNormalization(t, s, b) \n y = Add(t, u)",
        ("x", "z", "s", "b"),
        dims=SIZES,
    )


CASES = [
    *batch_norms(),
    *batch_norms_by_x_alone(),
    *batch_norms_with_statistics(),
    *layer_norms(),
    *(
        norm(what, "InstanceNormalization", x, attributes=attributes, oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of series", "N, 3, W", "", 18),
            ("of images", "N, 3, H, W", "epsilon = 0.01", 18),
            ("of volumes", "N, 3, H, 2, W", "", 18),
            ("of images, static", "2, 3, 4, 5", "", 18),
            ("opset 13", "N, 3, H, W", "", 13),
            ("newest", "N, 3, H, W", "", 26),
        ]
    ),
    *(
        norm(what, "GroupNormalization", x, "6", f"num_groups = {groups}{more}", oracle=NO_RULE, opset=opset)
        for what, x, groups, more, opset in [
            ("of series", "N, 6, W", 2, "", 21),
            ("of images", "N, 6, H, W", 3, ", epsilon = 0.01", 21),
            ("of volumes", "N, 6, H, 2, W", 2, "", 21),
            ("of rows", "N, 6", 2, "", 21),
            ("of one group", "N, 6, H, W", 1, "", 21),
            ("of a group for each channel", "N, 6, H, W", 6, "", 21),
            ("of images, static", "2, 6, 4, 5", 2, "", 21),
            ("newest", "N, 6, H, W", 2, "", 26),
        ]
    ),
    *(
        norm(what, "LRN", x, attributes=attributes, inputs="x", oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of 3", "N, 6, H, W", "size = 3, alpha = 0.5, bias = 1.5", 18),
            ("of 1", "N, 6, H, W", "size = 1, alpha = 0.5, beta = 0.25", 18),
            ("of more than all", "N, 3, H, W", "size = 9, alpha = 2.0", 18),
            ("of 5, static, defaults", "2, 7, 3, 4", "size = 5", 18),
            ("of 5, opset 13", "N, 7, H, W", "size = 5, alpha = 0.3", 13),
            ("of 5, newest", "N, 7, H, W", "size = 5, alpha = 0.3", 26),
        ]
    ),
    *(
        norm(what, "MeanVarianceNormalization", x, attributes=attributes, inputs="x", oracle=NO_RULE)
        for what, x, attributes in [
            ("of channels", "N, 3, H, W", ""),
            ("of two axes", "N, 4, H", "axes = [0, -1]"),
            ("of rows", "N, 5", "axes = [1]"),
        ]
    ),
    *(
        norm(what, "LpNormalization", x, attributes=attributes, inputs="x", oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of rows", "N, 4", "", 18),
            ("in the middle", "N, H, W", "axis = 1", 18),
            ("p = 1", "N, 4", "p = 1", 18),
            ("p = 1, in the middle", "N, H, W", "p = 1, axis = -2", 18),
            ("opset 13", "N, 4", "", 13),
            ("newest", "N, 4", "", 26),
        ]
    ),
    norm("double", "LpNormalization", "N, 4", inputs="x", element="double"),
    norm(
        "double",
        "GroupNormalization",
        "N, 6, H, W",
        "6",
        "num_groups = 2, stash_type = 11",
        element="double",
        opset=21,
    ),
]
