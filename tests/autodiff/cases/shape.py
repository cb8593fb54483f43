"""Gradients of the ops that only move or copy elements."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Case, fixed

DROPS_PIECES = (
    "ORT's builder leaves out the pieces that the loss does not depend on: the gradient has a wrong shape"
)
SIZES = ({"N": 2, "H": 3, "W": 4}, {"N": 1, "H": 4, "W": 2})


def reshape(name, x, shape, attributes="", **more):
    return Case(
        f"reshape {name}",
        f"float[{x}] x",
        f"s = Constant <value_ints = {shape}> () y = Reshape {attributes} (x, s)",
        **more,
    )


def axes(op, name, x, numbers, **more):
    body = f"a = Constant <value_ints = {numbers}> () y = {op} (x, a)" if numbers else f"y = {op} (x)"
    return Case(f"{op} {name}", f"float[{x}] x", body, **more)


def computed(op, name, x, number, values, **more):
    """A case whose second input is fed, so that only its length is known."""
    return Case(
        f"{op} {name}", f"float[{x}] x, int64[{number}] s", f"y = {op} (x, s)", draw={"s": fixed(*values)}, **more
    )


def concat(name, axis, *shapes, **more):
    inputs = [f"float[{shape}] x{i}" for i, shape in enumerate(shapes)]
    names = [f"x{i}" for i in range(len(shapes))]
    body = f"y = Concat <axis = {axis}> ({', '.join(names)})"
    return Case(f"concat {name}", ", ".join(inputs), body, wrt=more.pop("wrt", tuple(names)), **more)


def split(name, x, body, outputs, **more):
    return Case(f"split {name}", f"float[{x}] x", body, outputs=outputs, **more)


CASES = [
    reshape("to rows", "2, 3, 4", "[6, 4]"),
    reshape("what is left", "N, 3, 4", "[-1, 2, 6]"),
    reshape("zero copies", "N, 3, 4", "[0, 12]"),
    reshape("symbolic", "N, H, W", "[0, -1]", dims=SIZES),
    reshape("allowzero", "N, 3, 4", "[-1, 12]", "<allowzero = 1>"),
    reshape("to a scalar's shape", "1, 1", "[1]"),
    reshape("opset 13", "N, 3, 4", "[0, 12]", opset=13),
    reshape("opset 26", "N, 3, 4", "[0, 12]", opset=26),
    reshape("of an empty batch", "N, 3, 4", "[0, 12]", dims=({"N": 0},)),
    computed("Reshape", "to a computed shape", "N, 6", 3, (-1, 2, 3)),
    Case("flatten", "float[N, 3, 4] x", "y = Flatten (x)"),
    Case("flatten axis 0", "float[N, 3, 4] x", "y = Flatten <axis = 0> (x)"),
    Case("flatten negative axis", "float[N, 3, 4] x", "y = Flatten <axis = -1> (x)"),
    Case("flatten symbolic", "float[N, H, W] x", "y = Flatten <axis = 2> (x)", dims=SIZES),
    axes("Squeeze", "axes", "N, 1, 3, 1", "[1, 3]"),
    axes("Squeeze", "negative axis", "N, 1, 3", "[-2]"),
    axes("Squeeze", "all", "1, 3, 1", ""),
    axes("Squeeze", "all, symbolic", "1, N, 3", ""),
    axes("Squeeze", "opset 13", "N, 1, 3", "[1]", opset=13),
    axes("Squeeze", "opset 26", "N, 1, 3", "[1]", opset=26),
    computed("Squeeze", "computed axes", "N, 1, 3", 1, (1,)),
    axes("Unsqueeze", "axes", "N, 3", "[0, 3]"),
    axes("Unsqueeze", "negative axis", "N, 3", "[-1]"),
    axes("Unsqueeze", "out of order", "N, 3", "[2, 0]"),
    axes("Unsqueeze", "opset 13", "N, 3", "[1]", opset=13),
    Case(
        "Unsqueeze scalar axis",
        "float[N, 3] x",
        "a = Constant <value_int = 1> () y = Unsqueeze (x, a)",
        oracle="ORT's Squeeze takes no scalar",
    ),
    Case("transpose", "float[N, 3, 4] x", "y = Transpose <perm = [1, 2, 0]> (x)"),
    Case("transpose reversed", "float[N, 3, 4] x", "y = Transpose (x)"),
    Case("transpose 4-d", "float[N, H, W, 2] x", "y = Transpose <perm = [0, 3, 1, 2]> (x)", dims=SIZES),
    Case(
        "transpose of unknown rank",
        "float[N, 6] x, int64[3] s",
        "r = Reshape (x, s) t = Transpose (r) u = Sigmoid (t) y = Flatten (u)",
        draw={"s": fixed(-1, 2, 3)},
    ),
    axes("Expand", "new and repeated axes", "3, 1", "[2, 3, 4]"),
    axes("Expand", "nothing", "3, 4", "[1, 4]"),
    Case("Expand scalar", "float x", "s = Constant <value_ints = [2, 3]> () y = Expand (x, s)"),
    axes("Expand", "symbolic", "N, 1", "[1, 5]"),
    axes("Expand", "opset 13", "N, 1, 3", "[2, 1, 4, 1]", opset=13),
    computed("Expand", "computed shape", "N, 1", 3, (2, 1, 4)),
    axes("Tile", "two axes", "N, 3", "[2, 3]"),
    axes("Tile", "once", "N, 3", "[1, 1]"),
    axes("Tile", "symbolic", "N, H, W", "[1, 2, 3]", dims=SIZES),
    axes("Tile", "static", "2, 3, 2", "[3, 1, 2]"),
    computed("Tile", "computed repeats", "N, 3", 2, (2, 3)),
    concat("channels", 1, "N, 2, 3", "N, 4, 3", "N, 1, 3"),
    concat("negative axis", -1, "N, 2", "N, 3"),
    concat("axis of symbols", 0, "N, 3", "M, 3", dims=({"N": 2, "M": 3}, {"N": 1, "M": 1})),
    concat("last axis of symbols", -1, "3, N", "3, 2", "3, N"),
    concat("one input", 0, "N, 3"),
    concat("one gradient", 1, "N, 2", "N, 3", wrt=("x1",)),
    concat("opset 13", 1, "N, 2", "N, 3", opset=13),
    Case("concat with itself", "float[N, 2] x", "t = Tanh (x) y = Concat <axis = 1> (t, x, t)"),
    split("in halves", "N, 6", "y, z = Split <axis = 1, num_outputs = 2> (x)", ("y", "z")),
    split("last one smaller", "N, 5", "y, z, w = Split <axis = -1, num_outputs = 3> (x)", ("y", "z", "w")),
    split("first axis by default", "6, N", "y, z = Split <num_outputs = 2> (x)", ("y", "z")),
    split(
        "sizes",
        "N, 6",
        "s = Constant <value_ints = [1, 3, 2]> () y, z, w = Split <axis = 1> (x, s)",
        ("y", "z", "w"),
    ),
    split("opset 13", "N, 6", "y, z = Split <axis = 1> (x)", ("y", "z"), opset=13),
    split(
        "first piece alone", "N, 6", "y, z = Split <axis = 1, num_outputs = 2> (x)", ("y",), oracle=DROPS_PIECES
    ),
    split(
        "pieces in the middle",
        "N, 6",
        "s = Constant <value_ints = [1, 2, 1, 2]> () a, y, b, c = Split <axis = 1> (x, s)",
        ("y",),
        oracle=DROPS_PIECES,
    ),
    split(
        "pieces of symbolic size",
        "W, 3",
        "y, z = Split <num_outputs = 2> (x)",
        ("z",),
        dims=({"W": 4}, {"W": 5}),
        oracle=DROPS_PIECES,
    ),
    Case(
        "split, computed",
        "float[N, 6] x, int64[2] s",
        "y, z = Split <axis = 1> (x, s)",
        outputs=("y", "z"),
        draw={"s": fixed(2, 4)},
    ),
    Case("depth to space", "float[N, 8, 2, 3] x", "y = DepthToSpace <blocksize = 2> (x)", oracle=NO_RULE),
    Case(
        "depth to space, columns",
        "float[N, 8, 2, 3] x",
        'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)',
        oracle=NO_RULE,
    ),
    Case(
        "depth to space, symbolic",
        "float[N, 12, H, W] x",
        'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)',
        dims=SIZES,
        oracle=NO_RULE,
    ),
    Case("space to depth", "float[N, 2, 4, 6] x", "y = SpaceToDepth <blocksize = 2> (x)", oracle=NO_RULE),
    *(
        Case(
            f"{op} {mode}, opset 28",
            f"float[N, {8 if op == 'DepthToSpace' else 2}, 4, 6] x",
            f'y = {op} <blocksize = 2, mode = "{mode}"> (x)',
            opset=28,
            oracle=NO_RULE,
        )
        for op in ("DepthToSpace", "SpaceToDepth")
        for mode in ("DCR", "CRD")
    ),
    Case(
        "space to depth by 3",
        "float[N, C, 3, 6] x",
        "y = SpaceToDepth <blocksize = 3> (x)",
        dims=({"N": 2, "C": 2},),
        oracle=NO_RULE,
    ),
]
