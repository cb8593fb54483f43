"""The Hessian-vector product of each case of the gradient rules, against differences of its gradient."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from autodiff.cases import TABLES
from autodiff.gradient_cases import every, feeds_of, forward
from bngrad.errors import UnsupportedNodeError
from bngrad.validation.float64 import Evaluator

STEP = 1e-6
AT_KINKS = ("max-ties", "min-ties")
"""Cases whose gradient jumps at their inputs."""


@pytest.mark.long
@every(**{name: [case for case in cases if case.name not in AT_KINKS] for name, cases in TABLES.items()})
def test_second_derivatives(case):
    feeds = feeds_of(case, case.dims[0])
    rng = np.random.default_rng(3)
    vectors = {f"{name}_vector": rng.standard_normal(feeds[name].shape) for name in case.wrt}
    try:
        product = bngrad.hvp(forward(case), loss="loss", wrt=case.wrt)
    except UnsupportedNodeError as error:
        pytest.skip(str(error))
    evaluator = Evaluator(product)
    inputs = {value.name for value in product.graph.input}
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in product.graph.initializer if t.name in inputs}

    def at(sign, what):
        moved = {name: feeds[name].astype(float) + sign * STEP * vectors[f"{name}_vector"] for name in case.wrt}
        values = evaluator({**defaults, **feeds, **vectors, **moved}, [f"{name}_{what}" for name in case.wrt])
        return [values[f"{name}_{what}"] for name in case.wrt]

    gradients = at(0, "grad")
    for gradient, value, ahead, behind in zip(gradients, at(0, "hvp"), at(1, "grad"), at(-1, "grad"), strict=True):
        expected = (ahead - behind) / (2 * STEP)
        limit = 1e-5 * np.linalg.norm(expected) + 1e-7 * np.linalg.norm(gradient) + 1e-9
        assert np.linalg.norm(value - expected) <= limit
