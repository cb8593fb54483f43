"""Resize along axes that are counted from the last."""

from __future__ import annotations

import numpy as np

from autodiff.cases.resampling import IMAGE, mode, resize
from autodiff.gradient_cases import lowered
from autodiff.gradient_checks import CheckedCase, run
from bngrad.runtime.session import session


def test_negative_axes_are_those_from_the_last():
    """ONNX Runtime takes them; onnx's evaluator does not."""
    positive, negative = (
        resize(f"by scales of axes {axes}", IMAGE, f"{mode('linear')}, axes = {axes}", scales=[2.0, 1.5])
        for axes in ([3, 2], [-1, -2])
    )
    for dims in positive.dims:
        feeds, exact = CheckedCase(positive).sample(dims)
        got = run(session(lowered(negative), "function", threads=1), feeds, exact)
        np.testing.assert_allclose(got["x_grad"], exact["x_grad"], rtol=1e-5, atol=1e-5)
