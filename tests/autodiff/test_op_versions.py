"""The gradient of each op in each version that its rule was written for: a case of the tables at that opset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from autodiff.cases import cases_of
from autodiff.gradient_checks import CheckedCase, against_differences, check_gradients
from autodiff.small_models import SUM, gradients, model
from bngrad.autodiff.prepare_forward import OPSET
from bngrad.autodiff.rules import RULES

NO_KERNEL = {("DequantizeLinear", 28), ("GlobalLpPool", 22), ("MaxRoiPool", 22), ("RoiAlign", 22)}
"""Definitions that ONNX Runtime has no kernel of: they are only compared with central differences."""
RANDOM = ("Bernoulli", "RandomNormalLike", "RandomUniformLike")


def newer_versions():
    """The versions that an op has at opsets above `OPSET`, the random ops aside."""
    newest = onnx.defs.onnx_opset_version()
    ops = [op for domain, op in RULES if domain == "" and op not in RANDOM]
    return [(op, version) for op in ops for version in RULES["", op].versions if OPSET < version <= newest]


@pytest.mark.parametrize(("op", "version"), newer_versions())
def test_every_version(op, version):
    case = replace(cases_of(op)[0], opset=version)
    if (op, version) in NO_KERNEL:
        CheckedCase(case).run(against_differences, case.dims[-1])
    else:
        check_gradients(case, case.dims[-1])


@pytest.mark.parametrize("op", RANDOM)
@pytest.mark.parametrize("opset", [OPSET, 22])
def test_random_numbers_do_not_change_with_what_they_are_like(op, opset):
    p = "Sigmoid" if op == "Bernoulli" else "Identity"
    nodes = f"p = {p} (x) h = {op} <seed = 1.0> (p) y = Mul (x, h) {SUM}"
    forward = model("float[40] x", nodes, outputs="float loss, float[40] h", opset=opset)
    result = gradients(forward, {"x": np.ones(40, np.float32)}, wrt=["x"])
    assert result["h"].any()
    np.testing.assert_array_equal(result["x_grad"], result["h"])
