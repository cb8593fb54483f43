"""Gradients of CumProd and Det, which are products of elements."""

from __future__ import annotations

from autodiff.cases.elementwise import few
from autodiff.gradient_cases import NO_RULE, Case, fixed

WAYS = {"": "", "exclusive": "exclusive = 1", "reverse": "reverse = 1", "both": "exclusive = 1, reverse = 1"}


def cum_prod(name, x="N, 5", attributes="", axis="int64 axis = {1}", **more):
    attributes = attributes and f"<{attributes}>"
    body = f"y = CumProd {attributes} (x, axis)"
    return Case(f"CumProd {name}", f"float[{x}] x", body, initializers=axis, opset=26, oracle=NO_RULE, **more)


def det(name, x, **more):
    return Case(f"Det {name}", f"float[{x}] x", "y = Det (x)", oracle=NO_RULE, **more)


CASES = [
    *(cum_prod(f"of small integers, {name}", attributes=way, draw={"x": few}) for name, way in WAYS.items()),
    cum_prod("of the first axis", "3, N, 2", axis="int32 axis = {-3}"),
    cum_prod("in the middle", "N, 4, 2", attributes="exclusive = 1"),
    cum_prod("of one element", "N, 1", is_long=True),
    Case(
        "CumProd along a fed axis",
        "float[N, 4] x, int64 axis",
        "y = CumProd <reverse = 1> (x, axis)",
        draw={"axis": lambda *_: 1},
        opset=26,
        oracle=NO_RULE,
    ),
    det("of matrices", "N, 3, 3"),
    det("of a matrix", "4, 4", dims=({},)),
    det("of one element", "2, N, 1, 1"),
    det("of symbols", "2, M, M", dims=({"M": 2}, {"M": 5})),
    # The first has a derivative although it has no inverse, and the second none.
    det(
        "of singular matrices",
        "3, 3, 3",
        dims=({},),
        draw={
            "x": fixed(
                ((1, 2, 3), (4, 5, 6), (5, 7, 9)),
                ((1, 2, 3), (2, 4, 6), (3, 6, 9)),
                ((1, 2, 0), (0, 1, 2), (2, 0, 1)),
            )
        },
    ),
]
