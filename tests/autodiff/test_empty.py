"""Every case with an empty batch, where ONNX Runtime runs the forward model with one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from autodiff.gradient_cases import forward, inputs_of, lowered, written
from autodiff.test_between_transposes import ORT_ERRORS, Level, run
from autodiff.test_rules import TABLES

CASES = [
    case
    for table, cases in TABLES.items()
    for case in cases
    # The process ends in ONNX Runtime's kernels of LSTM and GRU.
    if table != "recurrent" and any(dims.get("N", 1) != 1 for dims in case.dims)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_empty_batch(case):
    dims = next(dims for dims in case.dims if dims.get("N", 1) != 1)
    feeds = inputs_of(case, {**dims, "N": 0}, np.random.default_rng(0))
    model = onnx.ModelProto()
    model.CopyFrom(written(case))
    try:
        outputs = run(model, feeds, list(case.outputs), Level.ORT_ENABLE_BASIC)
    except ORT_ERRORS:
        pytest.skip("ONNX Runtime does not run the forward model")
    for name, y in zip(case.outputs, outputs, strict=True):
        feeds[f"{name}_weight"] = np.ones_like(y)
    (loss,) = run(forward(case), feeds, ["loss"], Level.ORT_ENABLE_BASIC)
    for level in (Level.ORT_DISABLE_ALL, Level.ORT_ENABLE_ALL):
        gradients = run(lowered(case), feeds, case.gradients, level)
        for wrt, gradient in zip(case.wrt, gradients, strict=True):
            assert gradient.shape == feeds[wrt].shape
            assert not (np.isfinite(loss).all() and loss == 0 and gradient.any()), wrt
