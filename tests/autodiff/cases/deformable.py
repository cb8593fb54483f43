"""Gradients of DeformConv."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import NO_RULE, Between, Case

ALL = ("x", "w", "o", "b", "m")
SIZES = ({"N": 2, "H": 3, "W": 4, "P": 3, "Q": 4}, {"N": 1, "H": 4, "W": 2, "P": 4, "Q": 2})


def convolved(name, x, w, offset, mask="", attributes="", **more):
    """Convolves x by w, with a bias and with a mask if its shape is stated."""
    outputs = w.split(",")[0]
    element = more.get("element", "float")
    inputs = f"{element}[{x}] x, {element}[{w}] w, {element}[{offset}] o, {element}[{outputs}] b"
    body = f"y = DeformConv <{attributes}> (x, w, o, b{', m' if mask else ''})".replace(" <>", "")
    return Case(
        f"DeformConv {name}",
        f"{inputs}, {element}[{mask}] m" if mask else inputs,
        body,
        more.pop("wrt", ALL if mask else ALL[:4]),
        **{"draw": {"o": Between(-1.4, 1.4)}, "oracle": NO_RULE, "opset": 19, "float_limit": 3e-5} | more,
    )


GROUPS = "group = 2, offset_group = 2, pads = [1, 0, 1, 1]"

CASES = [
    convolved("without attributes", "N, 2, 3, 4", "3, 2, 2, 2", "N, 8, 2, 3", is_long=True),
    convolved("in groups", "N, 4, 3, 4", "2, 2, 3, 2", "N, 24, 3, 4", "N, 12, 3, 4", GROUPS),
    convolved(
        "in groups, opset 22",
        "N, 4, 3, 4",
        "2, 2, 3, 2",
        "N, 24, 3, 4",
        "N, 12, 3, 4",
        GROUPS,
        opset=22,
        is_long=True,
    ),
    convolved(
        "strided, dilated",
        "N, 4, 7, 6",
        "2, 4, 2, 3",
        "N, 24, 3, 4",
        "N, 12, 3, 4",
        "offset_group = 2, strides = [2, 1], dilations = [2, 1], pads = [0, 0, 0, 0], kernel_shape = [2, 3]",
        opset=22,
        is_long=True,
    ),
    convolved(
        "symbolic", "N, 1, H, W", "2, 1, 3, 3", "N, 18, P, Q", "N, 9, P, Q", "pads = [1, 1, 1, 1]", dims=SIZES
    ),
    convolved("of the offsets", "N, 1, 2, 3", "1, 1, 1, 1", "N, 2, 2, 3", wrt=("o",), is_long=True),
    convolved("of the mask", "N, 1, 2, 3", "1, 1, 1, 1", "N, 2, 2, 3", "N, 1, 2, 3", wrt=("m",), is_long=True),
    # The derivative after a whole place: the one before differs.
    convolved(
        "of the data, by whole places",
        "N, 2, 3, 3",
        "2, 1, 1, 2",
        "N, 4, 3, 3",
        attributes="group = 2, pads = [0, 1, 0, 0]",
        wrt=("x", "w", "b"),
        draw={"o": lambda rng, shape: rng.integers(-1, 2, shape).astype(np.float64)},
    ),
]
