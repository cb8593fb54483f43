"""The two rules for the running variance: ONNX's, with the biased variance of a batch, and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from autodiff.small_models import summed
from bngrad.errors import InputError
from bngrad.runtime.session import IMPLEMENTATIONS
from bngrad.validation.float64 import evaluate

MOMENTUM = 0.75
OLD = np.array([0.5, 3], np.float32)
BODY = f"[bn] y, m_new, v_new = BatchNormalization <training_mode = 1, momentum = {MOMENTUM}> (x, s, b, m, v)"
VALUES = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0}, float[2] v = {0.5, 3}"
DDOF = {None: 0, "biased": 0, "unbiased": 1}


def forward(shape="N, 2"):
    return summed(f"float[{shape}] x", BODY, initializers=VALUES)


def expected(x, ddof):
    """In PyTorch's terms: its momentum is the weight of the new value."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    return MOMENTUM * OLD + (1 - MOMENTUM) * x.astype(np.float64).var(axes, ddof=ddof)


@pytest.mark.parametrize("shape", [(6, 2), (2, 2, 3), (3, 2, 2, 2)])
def test_against_numpy(shape, rng):
    x = (3 * rng.standard_normal(shape) + 5).astype(np.float32)
    model = forward(", ".join(["N", *map(str, shape[1:])]))
    training = {kind: bngrad.differentiate(model, running_variance=kind) for kind in DDOF}
    for implementation in IMPLEMENTATIONS:
        results = {
            kind: bngrad.session(training[kind], implementation).run(["v_new", "m_new", "s_grad"], {"x": x})
            for kind in DDOF
        }
        for kind, (variance, *others) in results.items():
            message = f"{kind}, {implementation}"
            np.testing.assert_allclose(variance, expected(x, DDOF[kind]), rtol=1e-6, err_msg=message)
            # Nothing else depends on it.
            for other, plain in zip(others, results[None][1:], strict=True):
                np.testing.assert_array_equal(other, plain, err_msg=message)


@pytest.mark.parametrize("target", ["stock", "training"])
@pytest.mark.parametrize("builder", ["bngrad", "ort"])
@pytest.mark.parametrize("kind", ["biased", "unbiased"])
def test_every_builder_and_target(kind, builder, target, rng):
    x = rng.standard_normal((6, 2)).astype(np.float32)
    model = bngrad.differentiate(forward(), running_variance=kind, builder=builder, target=target)
    got = evaluate(model, {"x": x}, ["v_new"])["v_new"]
    np.testing.assert_allclose(got, expected(x, DDOF[kind]), rtol=1e-6)


def test_a_batch_of_one_element_has_no_correction(rng):
    """Where PyTorch refuses to train: M / max(M - 1, 1) is 1, and the variance 0."""
    x = rng.standard_normal((1, 2)).astype(np.float32)
    model = bngrad.differentiate(forward(), running_variance="unbiased")
    (got,) = bngrad.session(model).run(["v_new"], {"x": x})
    np.testing.assert_allclose(got, MOMENTUM * OLD, rtol=1e-6)


def test_rewrite_leaves_it(rng):
    x = rng.standard_normal((6, 2)).astype(np.float32)
    model = bngrad.rewrite(bngrad.differentiate(forward(), running_variance="unbiased", target="training"))
    (got,) = bngrad.session(model).run(["v_new"], {"x": x})
    np.testing.assert_allclose(got, expected(x, 1), rtol=1e-6)


REFUSED = {
    "no such rule": (
        {"running_variance": "bessel"},
        "running variance is 'bessel'; expected one of bias",
    ),
    "ORT's dialect": (
        {"running_variance": "unbiased", "target": "ort"},
        "target 'ort' cannot have the unbiased running variance",
    ),
    "ORT's dialect, by ORT's builder": (
        {"running_variance": "unbiased", "target": "ort", "builder": "ort"},
        "target 'ort' cannot have the unbiased running variance",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        bngrad.differentiate(forward(), **options)


def test_the_biased_one_in_ort_dialect():
    model = bngrad.differentiate(forward(), running_variance="biased", target="ort")
    assert any(node.op_type == "BatchNormInternal" for node in model.graph.node)
