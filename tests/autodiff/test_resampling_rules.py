"""Pad and Resize, whose gradients are adjoint to them; and ORT's own ResizeGrad."""

from __future__ import annotations

import numpy as np

from autodiff.cases.resampling import CASES, IMAGE, RESIZES, mode, resize
from autodiff.gradient_cases import each, feeds_of, forward, in_standard_onnx, lowered
from bngrad.oracle import prepare_forward
from bngrad.runtime.session import session

POSITIVE, NEGATIVE = (
    resize(f"by scales of axes {axes}", IMAGE, f"{mode('linear')}, axes = {axes}", scales=[2.0, 1.5])
    for axes in ([3, 2], [-1, -2])
)
"""The same to ONNX Runtime; onnx's evaluator knows no negative axes."""


@each(resampling=[*(case for case in CASES if "x" in case.wrt), NEGATIVE])
def test_adjoint_of_the_forward_on_stock(case, dims):
    """The loss is linear in x: it changes by the product of the gradient and the change of x."""
    feeds = feeds_of(POSITIVE if case is NEGATIVE else case, dims)
    runner = session(lowered(case), "function", threads=1)
    rng = np.random.default_rng(3)
    change = rng.standard_normal(feeds["x"].shape).astype(np.float32)
    (before, gradient), (after, _) = (
        runner.run(["loss", "x_grad"], {**feeds, "x": feeds["x"] + shift}) for shift in (0, change)
    )
    longest = np.linalg.norm(gradient) * np.linalg.norm(change) + abs(before)
    assert abs((after - before) - np.sum(gradient * change)) <= 1e-5 * longest


@each(resampling=[case for case in RESIZES if case.opset <= 21])
def test_resize_grad_of_orts_builder(case, dims, oracle):
    """Its kernel is for CUDA alone; lowered, its graph is ours."""
    prepared = prepare_forward(forward(case), "loss", case.wrt)
    theirs = in_standard_onnx(oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model)
    got, want = (
        session(model, "function", threads=1).run(["x_grad"], {**feeds_of(case, dims), **values})[0]
        for model, values in ((theirs, prepared.values), (lowered(case), {}))
    )
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
