"""Gradients of AffineGrid and GridSample."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Between, Case, fixed

ALL_MODES = [
    (mode, padding) for mode in ("nearest", "linear", "cubic") for padding in ("zeros", "border", "reflection")
]
AROUND = Between(-1.9, 1.9)
"""A draw of places in the data and around it."""


def sample(name, mode="linear", padding="zeros", align=0, *, x="N, 2, 4, 3", grid="N, 3, 2, 2", **more):
    attributes = f'mode = "{mode}", padding_mode = "{padding}", align_corners = {align}'
    element = more.get("element", "float")
    return Case(
        f"grid sample {name}",
        f"{element}[{x}] x, {element}[{grid}] g",
        f"y = GridSample <{attributes}> (x, g)",
        more.pop("wrt", ("x",) if mode == "nearest" else ("x", "g")),
        **{"draw": {"g": AROUND}, "oracle": NO_RULE, "opset": 20, "float_limit": 3e-5} | more,
    )


AFFINE = [
    Case(
        f"affine grid{name}",
        f"float[B, {theta}] t",
        f"s = Constant <value_ints = [{size}]> () y = AffineGrid <align_corners = {align}> (t, s)",
        ("t",),
        dims=({"B": 2},),
        oracle=NO_RULE,
        opset=20,
    )
    for name, theta, size, align in [
        ("", "2, 3", "2, 1, 3, 4", 0),
        (", corners aligned, 3-d", "3, 4", "2, 1, 2, 3, 4", 1),
    ]
]
CASES = [
    *AFFINE,
    Case(
        "affine grid of computed sizes",
        "float[B, 2, 3] t, int64[4] s",
        "y = AffineGrid (t, s)",
        ("t",),
        dims=({"B": 2},),
        draw={"s": fixed(2, 3, 1, 4)},
        oracle=NO_RULE,
        opset=20,
    ),
    *(sample(f"{mode}, {padding}", mode, padding) for mode, padding in ALL_MODES),
    *(sample(f"{mode}, {padding}, corners aligned", mode, padding, 1) for mode, padding in ALL_MODES),
    *(
        sample(f"{mode}, {padding}, 3-d", mode, padding, x="N, 2, 3, 2, 4", grid="N, 2, 1, 3, 3")
        for mode, padding in ALL_MODES
        if mode != "cubic"
    ),
    sample("of the data alone", wrt=("x",)),
    sample("of the grid alone", wrt=("g",)),
    sample(
        "symbolic",
        x="N, C, H, W",
        grid="N, P, Q, 2",
        dims=({"N": 2, "C": 3, "H": 3, "W": 4, "P": 2, "Q": 3}, {"N": 1, "C": 1, "H": 1, "W": 5, "P": 4, "Q": 1}),
    ),
    sample("one element, reflected", padding="reflection", x="N, 2, 1, 3"),
    sample("one element, reflected, corners aligned", padding="reflection", align=1, x="N, 2, 1, 3"),
    sample("opset 18", "bilinear", opset=18),
    sample("opset 18, cubic", "bicubic", "border", opset=18),
    sample("opset 22", "linear", "border", opset=22),
    Case(
        "grid sample without attributes",
        "float[N, 1, 3, 3] x, float[N, 2, 2, 2] g",
        "y = GridSample (x, g)",
        ("x", "g"),
        draw={"g": AROUND},
        oracle=NO_RULE,
        opset=20,
    ),
]
