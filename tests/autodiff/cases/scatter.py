"""Gradients of the ops that put updates into data."""

from __future__ import annotations

import numpy as np

from autodiff.cases.indexing import below
from autodiff.gradient_cases import NO_RULE, Case

IGNORED = "ORT's builder ignores the reduction"


def scatters(op, name, x, indices, updates, draw, attributes="", *, numbers=None, **more):
    inputs = f"float[{x}] x, int64[{indices}] i, float[{updates}] u"
    draws = {"i": draw} | ({"x": numbers, "u": numbers} if numbers else {})
    wrt = more.pop("wrt", ("x", "u"))
    return Case(f"{op} {name}", inputs, f"y = {op} {attributes} (x, i, u)", wrt=wrt, draw=draws, **more)


def zeros_and_ones(rng, shape):
    """Draws numbers of which many are 0."""
    return rng.choice([0, 0, 1, -2, 3], shape)


REPLACED = [
    scatters(
        "ScatterElements", "replaces", "4, N", "2, N", "2, N", lambda _r, s: np.array([[3], [1]]) * np.ones(s)
    ),
    scatters(
        "ScatterElements",
        "along the last axis",
        "N, 4",
        "N, 2",
        "N, 2",
        lambda _r, s: np.array([-1, 0]) * np.ones(s),
        "<axis = -1>",
    ),
    scatters(
        "ScatterElements",
        "adds",
        "N, 4",
        "N, 7",
        "N, 7",
        below(4),
        '<axis = 1, reduction = "add">',
        oracle=IGNORED,
    ),
    scatters(
        "ScatterElements",
        "into what needs no gradient",
        "N, 4",
        "N, 1",
        "N, 1",
        below(4),
        "<axis = 1>",
        wrt=("u",),
    ),
    scatters("ScatterElements", "opset 13", "4, N", "1, N", "1, N", below(4), opset=13),
    scatters("ScatterND", "replaces", "4, N", "2, 1", "2, N", lambda _r, _s: [[3], [-4]]),
    scatters("ScatterND", "replaces elements", "4, 3", "2, 2", "2", lambda _r, _s: [[3, 1], [0, 2]], wrt=("x",)),
    scatters(
        "ScatterND",
        "adds",
        "4, N",
        "5, 1",
        "5, N",
        below(4),
        '<reduction = "add">',
        oracle=IGNORED,
    ),
    scatters("ScatterND", "opset 13", "4, N", "1, 1", "1, N", below(4), opset=13),
]


def combines(op, reduction, name, x, indices, updates, attributes="", **more):
    return scatters(
        op,
        f"{reduction}, {name}",
        x,
        indices,
        updates,
        below(3, lowest=-3),
        f'<{attributes}reduction = "{reduction}">',
        **{"oracle": IGNORED, "dims": ({"N": 3},)} | more,
    )


COMBINED = [
    combines("ScatterElements", "mul", "some are 0", "3, N", "6, N", "6, N", numbers=zeros_and_ones),
    combines("ScatterElements", "max", "repeated", "N, 3", "N, 4", "N, 4", "axis = -1, "),
    combines("ScatterElements", "min", "of updates alone", "3, 2", "N, 1", "N, 1", wrt=("u",)),
    combines("ScatterND", "mul", "some are 0", "3, 3, N", "5, 2", "5, N", numbers=zeros_and_ones),
    combines("ScatterND", "max", "of data alone", "3, N", "2, 2, 1", "2, 2, N", wrt=("x",)),
    combines("ScatterND", "min", "repeated", "3, N", "7, 1", "7, N"),
]
CACHES = [
    Case(
        f"TensorScatter {name}",
        f"float[{x}] x, float[{u}] u, int64[N] w",
        f"y = TensorScatter {attributes} (x, u{w})",
        wrt,
        dims=({"N": 3, "T": 5},),
        draw={"w": lambda _rng, shape: np.arange(shape[0]) + 1},
        oracle=NO_RULE,
        opset=24,
    )
    for name, x, u, attributes, w, wrt in [
        ("at indices", "N, 5, 2", "N, 2, 2", "", ", w", ("x", "u")),
        ("in a circle", "N, 2, T", "N, 2, 4", '<axis = 2, mode = "circular">', ", w", ("x", "u")),
        ("at the begin, of the update", "N, T, 2", "N, 3, 2", "<axis = 1>", "", ("u",)),
    ]
]
CASES = [*REPLACED, *COMBINED, *CACHES]
