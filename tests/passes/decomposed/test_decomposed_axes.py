"""Logical axes: through changes of shape, and where values meet."""

from __future__ import annotations

import pytest

from bngrad.passes.imports.decomposed.axes import Axes


def sizes(axes, layout):
    return [[axes.size(axis) for axis in dimension] for dimension in axes.resolve(layout)]


RESHAPES = {
    "merge": ([2, 3, 4], [6, 4], [[2, 3], [4]]),
    "merge the last": ([2, 3, 4], [2, 12], [[2], [3, 4]]),
    "merge all": ([2, 3, 4], [24], [[2, 3, 4]]),
    "split": ([6, 4], [2, 3, 4], [[2], [3], [4]]),
    "split the last": ([2, 12], [2, 3, 4], [[2], [3], [4]]),
    "units come and go": ([2, 1, 3], [1, 2, 3, 1], [[], [2], [3], []]),
    "a symbol stays": (["N", 3, 4], ["N", 12], [["N"], [3, 4]]),
    "one unknown dimension takes the rest": (["N", 3, 4], [None, 3], None),
    "an unknown dimension in front": (["N", 4, 3], [None, 3], [["N", 4], [3]]),
    "merge and split across": ([4, 6], [8, 3], None),
    "another number of elements": ([2, 3], [7], None),
}


@pytest.mark.parametrize("case", RESHAPES)
def test_reshape(case):
    before, after, expected = RESHAPES[case]
    axes = Axes()
    layout = axes.reshape(axes.layout(before), after)
    if expected is None:
        assert layout is None or sizes(axes, layout) != [[size] for size in after]
    else:
        assert layout is not None
        assert sizes(axes, layout) == expected


def test_a_split_axis_is_split_everywhere():
    axes = Axes()
    whole = axes.layout([6, 4])
    parts = axes.reshape(whole, [2, 3, 4])
    assert axes.resolve(whole) == (parts[0] + parts[1], parts[2])


BROADCASTS = {
    "equal": (([2, 3], [2, 3]), [[2], [3]]),
    "fewer dimensions": (([2, 3], [3]), [[2], [3]]),
    "units": (([2, 3], [1, 3]), [[2], [3]]),
    "both ways": (([2, 1], [1, 3]), [[2], [3]]),
    "scalar": (([2, 3], []), [[2], [3]]),
    "one symbol": ((["N", 3], ["N", 3]), [["N"], [3]]),
    "two symbols": ((["N", 3], ["M", 3]), None),
    "unknown": (([None, 3], [2, 3]), None),
    "other sizes": (([2, 3], [2, 4]), None),
}


@pytest.mark.parametrize("case", BROADCASTS)
def test_broadcast(case):
    shapes, expected = BROADCASTS[case]
    axes = Axes()
    layout = axes.broadcast([axes.layout(shape) for shape in shapes])
    assert (None if layout is None else sizes(axes, layout)) == expected


def test_axes_that_meet_are_one():
    axes = Axes()
    x, y = axes.layout([2, 3]), axes.layout([2, 3])
    assert axes.resolve(x) != axes.resolve(y)
    axes.broadcast([x, y])
    assert axes.resolve(x) == axes.resolve(y)


def test_a_flat_value_meets_one_that_was_flattened():
    axes = Axes()
    flattened, flat = axes.reshape(axes.layout([4, 5, 3]), [20, 3]), axes.layout([20, 3])
    assert axes.broadcast([flattened, flat]) is not None
    assert sizes(axes, flat) == [[4, 5], [3]]
