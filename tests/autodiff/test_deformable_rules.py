"""DeformConv at whole places, and where its kernel is not known."""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.gradient_cases import Case, differentiated
from autodiff.small_models import gradients, summed
from bngrad.errors import UnsupportedNodeError


@pytest.mark.parametrize(("column", "slope"), [(0, 1), (1, 2), (2, -4)])
def test_the_slope_at_a_whole_place_is_that_after_it(column, slope):
    """So PyTorch has it: offsets begin at 0."""
    x = np.array([[[[1, 2, 4]]]], np.float32)
    offset = np.zeros((1, 2, 1, 3), np.float32)
    weights = np.eye(3, dtype=np.float32)[column]
    model = summed(
        "float[1, 1, 1, 3] x, float[1, 2, 1, 3] o, float[3] m",
        "z = DeformConv (x, w, o) y = Mul (z, m)",
        initializers="float[1, 1, 1, 1] w = {1}",
        opset=19,
    )
    grad = gradients(model, {"x": x, "o": offset, "m": weights}, wrt=["o"])["o_grad"]
    assert grad[0, 1, 0, column] == slope
    assert grad[0, 0, 0, column] == -x[0, 0, 0, column]


def test_a_kernel_of_unknown_size_is_refused():
    inputs = "float[N, 2, 3, 3] x, float[2, 2, K, K] w, float[N, P, Q, Q] o"
    with pytest.raises(
        UnsupportedNodeError, match=r"DeformConv node 'DeformConv_0'.*size of its kernel is not known"
    ):
        differentiated(Case("refused", inputs, "y = DeformConv (x, w, o)", opset=19))
