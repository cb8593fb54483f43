"""Reductions and global pooling: ties, and empty batches."""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.gradient_cases import Case, lowered
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

TIES = np.array([[[3, 1, 3], [2, 2, 2]], [[0, 5, 1], [-1, -1, -7]]], np.float32)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("ReduceMax <keepdims = 0> (x, last)", [[[3, 0, 3], [2, 2, 2]], [[0, 6, 0], [3, 3, 0]]]),
        ("ReduceMin (x, last)", [[[0, 6, 0], [2, 2, 2]], [[6, 0, 0], [0, 0, 6]]]),
        ("ReduceMax (x)", [[[0, 0, 0], [0, 0, 0]], [[0, 6, 0], [0, 0, 0]]]),
        ("GlobalMaxPool (x)", [[[3, 0, 3], [2, 2, 2]], [[0, 6, 0], [3, 3, 0]]]),
    ],
    ids=["max", "min", "max of all", "pool"],
)
def test_ties_share(body, want):
    """The gradient of an extreme is split evenly over all the elements that are equal to it."""
    case = Case("", "float[N, C, L] x", f"y = {body}", initializers="int64[1] last = {-1}")
    y_weight = np.full_like(evaluate(lowered(case), {"x": TIES, "y_weight": np.zeros([1, 1, 1])}, ["y"])["y"], 6)
    feeds = {"x": TIES, "y_weight": y_weight.astype(np.float32)}
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], feeds)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(evaluate(lowered(case), feeds, ["x_grad"])["x_grad"], want)


def test_an_empty_batch():
    """The number of elements over the number of means, 0 / 0, must not stop the process."""
    case = Case("", "float[N, 3, W] x", "y = GlobalAveragePool (x)")
    feeds = {"x": np.zeros([0, 3, 4], np.float32), "y_weight": np.zeros([0, 3, 1], np.float32)}
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], feeds)
    assert got.shape == (0, 3, 4)
