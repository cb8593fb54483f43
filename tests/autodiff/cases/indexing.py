"""Gradients of the ops that pick elements by position or put them somewhere."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Case, fixed

BACKWARDS = "ORT's SliceGrad fails on a negative step along the last axis"
EMPTY = "ORT's gradient of Mul fails where there are no elements"
NOT_DOUBLE = "ORT's builder makes a gradient of the loss in float"
END = 2**63 - 1
SIZES = ({"N": 2, "T": 5}, {"N": 3, "T": 4})


def below(limit, *, lowest=0):
    """Draws indices, with repetitions."""
    return lambda rng, shape: rng.integers(lowest, limit, shape)


def slices(name, x, starts, ends, axes=None, steps=None, **more):
    numbers = {"s": starts, "e": ends, "a": axes, "p": steps}
    constants = " ".join(f"{k} = Constant <value_ints = {v}> ()" for k, v in numbers.items() if v is not None)
    operands = ", ".join(k if v is not None else "" for k, v in numbers.items()).rstrip(", ")
    return Case(f"slice {name}", f"float[{x}] x", f"{constants} y = Slice (x, {operands})", **more)


def picks(op, name, x, indices, draw, attributes="", *, kind="int64", **more):
    draw = {"i": draw}
    return Case(
        f"{op} {name}", f"float[{x}] x, {kind}[{indices}] i", f"y = {op} {attributes} (x, i)", draw=draw, **more
    )


SLICES = [
    slices("leading axes", "4, 5", [1, 2], [3, 5]),
    slices("axis", "N, 5", [1], [3], [1]),
    slices("negative", "N, 5, 2", [-4], [-1], [-2]),
    slices("to the end", "N, 5", [2], [END], [1]),
    slices("beyond both ends", "N, 5", [-9], [9], [1]),
    slices("nothing", "N, 5", [3], [3], [1], oracle=EMPTY),
    slices("the end before the start", "N, 5", [4], [2], [1], oracle=EMPTY),
    slices("steps", "5, 6", [0, 1], [9, 9], [0, 1], [2, 3]),
    slices("a step and none", "N, 6", [1, 0], [9, 9], [1, 0], [2, 1], dims=({"N": 3},)),
    slices("backwards", "N, 5", [-1], [-9], [1], [-1], oracle=BACKWARDS),
    slices("backwards by two", "5, N", [3], [0], [0], [-2]),
    slices("steps of 1", "N, 5", [1], [4], [1], [1]),
    slices("symbolic axis", "N, T, 2", [1], [-1], [1], dims=SIZES),
    slices("symbolic axis, from the end", "N, T", [-3], [END], [1], dims=SIZES),
    slices("symbolic axis, beyond both ends", "N, T", [-9], [9], [1], dims=SIZES),
    slices("symbolic axis, nothing", "N, T", [9], [12], [1], dims=SIZES, oracle=EMPTY),
    slices("symbolic axes", "N, T", [0, 1], [1, 3], dims=SIZES),
    slices("symbolic axis, step", "N, T", [1], [END], [1], [2], dims=SIZES),
    slices("opset 13", "N, T", [1], [-1], [1], dims=SIZES, opset=13),
    slices("opset 26", "N, T", [1], [-1], [1], dims=SIZES, opset=26),
    Case(
        "slice computed",
        "float[N, T, 3] x, int64[K] s, int64[K] e",
        "a = Constant <value_ints = [1, 2]> () y = Slice (x, s, e, a)",
        dims=({"N": 2, "T": 5, "K": 2},),
        draw={"s": fixed(-4, 1), "e": fixed(-1, 3)},
    ),
    Case(
        "slice by int32",
        "float[N, T] x, int32[1] s, int32[1] e, int32[1] a",
        "y = Slice (x, s, e, a)",
        dims=SIZES,
        draw={"s": fixed(1), "e": fixed(3), "a": fixed(-1)},
    ),
    Case(
        "slice of computed axes and steps",
        "float[N, T, 3] x, int64[2] s, int64[2] e, int64[2] a, int64[2] p",
        "y = Slice (x, s, e, a, p)",
        dims=SIZES,
        draw={"s": fixed(-1, 0), "e": fixed(-9, 3), "a": fixed(1, 2), "p": fixed(-2, 2)},
    ),
    Case(
        "slice in double",
        "double[N, 5] x",
        "s = Constant <value_ints = [1]> () e = Constant <value_ints = [4]> () y = Slice (x, s, e, s)",
        element="double",
        oracle=NOT_DOUBLE,
    ),
]
GATHERS = [
    picks("Gather", "rows", "7, 3", "N", below(7, lowest=-7)),
    picks("Gather", "rows of an embedding", "7, 3", "N, T", below(7), dims=SIZES),
    picks("Gather", "columns", "N, 4, 3", "2, 5", below(4), "<axis = 1>"),
    picks("Gather", "last axis", "N, 4", "6", below(4, lowest=-4), "<axis = -1>"),
    picks("Gather", "int32", "7, 3", "N", below(7), kind="int32"),
    picks("Gather", "symbolic", "N, T, 2", "K", below(4), "<axis = -2>", dims=({"N": 2, "T": 4, "K": 7},)),
    picks(
        "Gather",
        "symbolic, many indices",
        "N, T, M",
        "K, 2",
        below(4),
        "<axis = 1>",
        dims=({"N": 2, "T": 4, "M": 3, "K": 3},),
    ),
    picks("Gather", "of a vector", "N", "T", below(2), dims=SIZES),
    picks("Gather", "opset 13", "7, 3", "N", below(7), opset=13),
    picks("Gather", "opset 26", "7, 3", "N", below(7), opset=26),
    Case("Gather one", "float[N, 4, 3] x", "i = Constant <value_int = -1> () y = Gather <axis = 1> (x, i)"),
    Case("Gather one row", "float[N, 3] x", "i = Constant <value_int = 0> () y = Gather (x, i)"),
    Case(
        "Gather in double",
        "double[5, 3] x, int64[N] i",
        "y = Gather (x, i)",
        draw={"i": below(5)},
        element="double",
        oracle=NOT_DOUBLE,
    ),
    picks("GatherElements", "rows", "4, 3", "6, 3", below(4)),
    picks("GatherElements", "columns", "N, 4", "N, 6", below(4, lowest=-4), "<axis = 1>"),
    picks("GatherElements", "fewer", "N, 4, 3", "1, 2, 3", below(4), "<axis = -2>"),
    picks("GatherElements", "int32", "N, 4", "N, 6", below(4), "<axis = -1>", kind="int32"),
    picks("GatherElements", "symbolic", "N, T", "N, K", below(4), "<axis = 1>", dims=({"N": 2, "T": 4, "K": 7},)),
    picks("GatherElements", "opset 13", "N, 4", "N, 6", below(4), "<axis = 1>", opset=13),
    picks("GatherND", "elements", "3, 4", "N, 2", below(3)),
    picks("GatherND", "rows", "3, 4", "N, 2, 1", below(3)),
    picks("GatherND", "negative", "3, 3, 2", "N, 2", below(3, lowest=-3)),
    picks("GatherND", "whole index", "2, 2, 2", "3", below(2)),
    picks("GatherND", "batch", "N, 4, 3", "N, 5, 1", below(4, lowest=-4), "<batch_dims = 1>"),
    picks("GatherND", "batch of elements", "N, 4", "N, 1", below(4), "<batch_dims = 1>"),
    picks("GatherND", "two batch axes", "N, 3, 4, 2", "N, 3, 5, 2", below(2), "<batch_dims = 2>"),
    picks("GatherND", "symbolic", "N, T, M", "K, 2", below(2), dims=({"N": 2, "T": 4, "M": 3, "K": 5},)),
    picks("GatherND", "opset 13", "3, 4", "N, 1", below(3), opset=13),
]
OTHERS = [
    Case(
        f"cum sum {attributes}",
        "float[N, 4] x",
        f"a = Constant <value_int = 1> () y = CumSum <{attributes}> (x, a)",
        oracle=NO_RULE,
    )
    for attributes in ("exclusive = 0", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1")
]
OTHERS += [
    Case(
        f"reverse sequence {name}",
        f"float[{x}] x, int64[N] l",
        f"y = ReverseSequence {attributes} (x, l)",
        draw={"l": below(5, lowest=1)},
        oracle=NO_RULE,
    )
    for name, x, attributes in [
        ("time first", "4, N, 2", ""),
        ("batch first", "N, 4, 2", "<batch_axis = 0, time_axis = 1>"),
    ]
]
OTHERS += [
    Case("trilu", "float[N, 4, 4] x", "y = Trilu (x)"),
    Case("trilu lower", "float[N, 3, 4] x", "k = Constant <value_int = -1> () y = Trilu <upper = 0> (x, k)"),
    Case("trilu, opset 14", "float[N, 4, 4] x", "k = Constant <value_int = 1> () y = Trilu (x, k)", opset=14),
]
KEPT = fixed(True, False, True, True)


def unique(name, x, attributes, **more):
    return Case(
        f"unique {name}",
        f"float[{x}] x",
        f"y = Unique {attributes} (x)",
        **{"dims": ({"N": 3},), "oracle": NO_RULE} | more,
    )


CHOICES = [
    Case("top k", "float[N, 5] x", "k = Constant <value_ints = [2]> () y, i = TopK (x, k)"),
    Case(
        "top k, smallest",
        "float[4, N] x",
        "k = Constant <value_ints = [1]> () y, i = TopK <axis = 0, largest = 0, sorted = 0> (x, k)",
        opset=24,
    ),
    Case("compress", "float[N, 5] x, bool[4] c", "y = Compress (x, c)", draw={"c": KEPT}, oracle=NO_RULE),
    Case(
        "compress slices",
        "float[N, 4, M] x, bool[4] c",
        "y = Compress <axis = -2> (x, c)",
        dims=({"N": 2, "M": 3},),
        draw={"c": KEPT},
        oracle=NO_RULE,
    ),
    unique("elements", "N, 2", ""),
    unique("elements in order", "N", "<sorted = 0>"),
    unique("slices", "2, N, 2", "<axis = 1>"),
]
CASES = [*SLICES, *GATHERS, *CHOICES, *OTHERS]
