"""Tests second-order gradients: the reference against central differences, the function against the reference."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.errors import InputError
from bngrad.opset import reference
from op_models import EXTENTS, subsets
from ort_values import IMPLEMENTATIONS, TypedSession
from pairwise import pairwise
from typed_ops import TYPE_NAMES, assert_accurate, typed_feeds, typed_model

GRAD_GRAD = "BatchNormalizationGradGrad"
EPSILON = 0.1

PATTERNS = [(EXTENTS[:rank], axes) for rank in range(1, 5) for axes in subsets(rank)]
PATTERNS += [(EXTENTS[:5], axes) for axes in ((0, 2, 3, 4), (0, 1, 2, 3), (0,), (1, 3), (2, 4), (0, 1, 2, 3, 4))]
PATTERNS += [(EXTENTS[:6], axes) for axes in ((0, 2, 3, 4, 5), (1, 3, 5), (0, 5), (3,))]
PATTERNS += [((2, 3, 2, 2), (-1, -4, -2)), ((2, 3, 2, 2), (3, 0, 2))]
MODE_NAMES = {"training": 1, "frozen": 0}
MODES = pytest.mark.parametrize("training", MODE_NAMES.values(), ids=MODE_NAMES)


def pattern_id(pattern):
    shape, axes = pattern
    return "x".join(map(str, shape)) + "-over-" + ("".join(map(str, axes)) or "none")


def kept(shape, axes):
    return tuple(e for d, e in enumerate(shape) if d not in {a % len(shape) for a in axes})


def problem(shape, axes, training, rng, epsilon=EPSILON):
    """Returns all inputs; in training mode mean and inv_std are those of X."""
    parameter = kept(shape, axes)
    inputs = {name: rng.standard_normal(shape) for name in ("ddX", "dY", "X")}
    inputs |= {name: rng.standard_normal(parameter) for name in ("ddscale", "ddbias", "scale", "mean")}
    inputs["inv_std"] = rng.uniform(0.5, 2, parameter)
    if training:
        inputs["mean"], inputs["inv_std"] = reference.batch_normalization_statistics(inputs["X"], axes, epsilon)
    return inputs


def second_order(inputs, axes, training):
    return reference.batch_normalization_grad_grad(**inputs, axes=axes, training_mode=bool(training))


def first_order(inputs, axes, training):
    names = ("dY", "X", "scale", "mean", "inv_std")
    return reference.batch_normalization_grad(
        **{n: inputs[n] for n in names}, axes=axes, training_mode=bool(training)
    )


def functional(inputs, axes, training):
    """Returns the linear functional of dX, dscale and dbias with coefficients ddX, ddscale and ddbias."""
    if training:
        mean, inv_std = reference.batch_normalization_statistics(inputs["X"], axes, EPSILON)
        inputs = {**inputs, "mean": mean, "inv_std": inv_std}
    gradients = first_order(inputs, axes, training)
    return sum(np.sum(inputs[name] * g) for name, g in zip(("ddX", "ddscale", "ddbias"), gradients, strict=True))


def central_differences(inputs, name, axes, training, step=1e-5):
    at = inputs[name]
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        sides = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] += sign * step
            sides.append(functional({**inputs, name: moved}, axes, training))
        gradient[index] = (sides[0] - sides[1]) / (2 * step)
    return gradient


# ---- the reference ----


@MODES
@pytest.mark.parametrize(("shape", "axes"), PATTERNS, ids=map(pattern_id, PATTERNS))
def test_the_reference_is_the_central_differences(shape, axes, training, rng):
    inputs = problem(shape, axes, training, rng)
    got = second_order(inputs, axes, training)
    for value, name in zip(got, ("dY", "X", "scale"), strict=True):
        want = central_differences(inputs, name, axes, training)
        assert value.shape == want.shape, name
        assert np.max(np.abs(value - want)) <= 1e-7 * max(1, np.max(np.abs(want))), name


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    axes = tuple(draw(st.sets(st.integers(0, len(shape) - 1))))
    return shape, axes, draw(st.booleans()), draw(st.integers(0, 2**32 - 1))


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_d_dy_is_the_adjoint_of_the_first_order(drawn):
    """The first order is linear in dY, so <d_dY, t> is the functional of the gradients at dY = t."""
    shape, axes, training, seed = drawn
    rng = np.random.default_rng(seed)
    inputs = problem(shape, axes, training, rng)
    t = rng.standard_normal(shape)
    want = functional({**inputs, "dY": t}, axes, training)
    np.testing.assert_allclose(np.sum(second_order(inputs, axes, training).d_dY * t), want, rtol=1e-9, atol=1e-9)


def projected(inputs, axes, t):
    """Returns P(t) of the reference: d_dY for scale * inv_std = 1 is P(ddX)."""
    nothing = np.zeros(kept(inputs["X"].shape, axes))
    only = {**inputs, "ddX": t, "ddscale": nothing, "ddbias": nothing, "scale": 1 / inputs["inv_std"]}
    return second_order(only, axes, training=True).d_dY


def mean_over(t, axes):
    return np.mean(t, axis=axes, keepdims=True)


def standardized(inputs, axes):
    return (inputs["X"] - np.expand_dims(inputs["mean"], axes)) * np.expand_dims(inputs["inv_std"], axes)


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_identities_of_p(drawn):
    shape, axes, _, seed = drawn
    rng = np.random.default_rng(seed)
    inputs = problem(shape, axes, True, rng)
    t, other = rng.standard_normal((2, *shape))
    p, xhat = projected(inputs, axes, t), standardized(inputs, axes)
    close = {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(p, t - mean_over(t, axes) - xhat * mean_over(t * xhat, axes), **close)
    np.testing.assert_allclose(mean_over(p, axes), 0, atol=1e-11)
    np.testing.assert_allclose(projected(inputs, axes, np.ones(shape)), 0, atol=1e-11)
    # P is self-adjoint and, up to epsilon, orthogonal to xhat: mean(xhat^2) is var / (var + epsilon), not 1.
    np.testing.assert_allclose(np.sum(p * other), np.sum(t * projected(inputs, axes, other)), **close)
    left = 1 - mean_over(xhat * xhat, axes)
    np.testing.assert_allclose(mean_over(p * xhat, axes), mean_over(t * xhat, axes) * left, **close)
    np.testing.assert_allclose(left, EPSILON * np.expand_dims(inputs["inv_std"], axes) ** 2, **close)


def test_p_projects_if_epsilon_is_0(rng):
    axes = (0, 2)
    inputs = problem((4, 3, 5), axes, True, rng, epsilon=0.0)
    p = projected(inputs, axes, inputs["dY"])
    np.testing.assert_allclose(projected(inputs, axes, p), p, rtol=1e-9, atol=1e-12)


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_identities_of_k(drawn):
    """K = mean(U * dY) - mean(U) mean(dY) - mean(U * xhat) mean(dY * xhat) is symmetric in U and dY."""
    shape, axes, _, seed = drawn
    inputs = problem(shape, axes, True, np.random.default_rng(seed))
    u, dy, xhat = inputs["ddX"], inputs["dY"], standardized(inputs, axes)
    k = mean_over(u * dy, axes) - mean_over(u, axes) * mean_over(dy, axes)
    k = k - mean_over(u * xhat, axes) * mean_over(dy * xhat, axes)
    reduced = u.size // max(inputs["scale"].size, 1)
    want = (np.expand_dims(inputs["inv_std"], axes) * k * reduced).squeeze(axes)
    close = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(second_order(inputs, axes, True).d_scale, want, **close)
    swapped = {**inputs, "ddX": dy, "dY": u}
    np.testing.assert_allclose(second_order(swapped, axes, True).d_scale, want, **close)


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_no_first_gradient_sees_a_constant_added_to_x(drawn):
    shape, axes, _, seed = drawn
    inputs = problem(shape, axes, True, np.random.default_rng(seed))
    np.testing.assert_allclose(second_order(inputs, axes, True).d_X.sum(axis=axes), 0, atol=1e-9)


@MODES
def test_it_is_linear_in_what_comes_from_behind(training, rng):
    axes = (0, 2)
    first, other = (problem((4, 3, 5), axes, training, rng) for _ in range(2))
    behind = ("ddX", "ddscale", "ddbias")
    other = {**first, **{name: other[name] for name in behind}}
    both = {**first, **{name: first[name] + 3 * other[name] for name in behind}}
    results = [second_order(inputs, axes, training) for inputs in (first, other, both)]
    for a, b, c in zip(*results, strict=True):
        np.testing.assert_allclose(a + 3 * b, c, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("ddX", (1, 3, 4), "ddX has shape [1, 3, 4]; expected [2, 3, 4] for X of shape [2, 3, 4] and axes [0, 2]"),
        ("dY", (2, 3), "dY has shape [2, 3]; expected [2, 3, 4] for X of shape [2, 3, 4] and axes [0, 2]"),
        ("ddscale", (4,), "ddscale has shape [4]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]"),
        ("ddbias", (1,), "ddbias has shape [1]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]"),
        ("scale", (), "scale has shape []; expected [3] for X of shape [2, 3, 4] and axes [0, 2]"),
    ],
)
def test_refusals_name_the_shapes(name, shape, message, rng):
    inputs = {**problem((2, 3, 4), (0, 2), True, rng), name: np.ones(shape)}
    with pytest.raises(InputError) as error:
        second_order(inputs, (0, 2), True)
    assert str(error.value) == message


# ---- the function ----

LAYOUTS = {
    "NCHW": ((4, 3, 5, 6), (0, 2, 3)),
    "NHWC": ((4, 5, 6, 3), (0, 1, 2)),
    "NC": ((16, 3), (0,)),
    "per-activation": ((8, 3, 2, 2), (0,)),
    "mixed": ((3, 8, 2, 7), (1, 3)),
    "NCDHW": ((2, 3, 4, 3, 2), (0, 2, 3, 4)),
    "all": ((4, 5, 6), (0, 1, 2)),
    "none": ((2, 3), ()),
    "negative": ((4, 3, 5), (-1, 0)),
    "rank-1": ((17,), (0,)),
    "rank-6": ((2, 3, 2, 2, 2, 2), (0, 2, 3, 4, 5)),
}


@pairwise(types=TYPE_NAMES, training=MODE_NAMES, implementation=IMPLEMENTATIONS)
def test_the_function_in_every_type(types, training, implementation, rng):
    """A mean of 1000 costs few digits."""
    attributes = {"training_mode": training}
    run = TypedSession(typed_model(GRAD_GRAD, types, **attributes), implementation)
    far = 1e-14 if types[0] == "double" else 1e-5
    for (mean, tolerance), (shape, axes) in product(((0, None), (1000, far)), LAYOUTS.values()):
        feeds = typed_feeds(GRAD_GRAD, types, shape, axes, rng, mean=mean)
        assert_accurate(GRAD_GRAD, types, run(feeds), feeds, attributes, tolerance)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@MODES
def test_an_empty_batch(training, implementation):
    types = ("float", "float", "float")
    attributes = {"training_mode": training}
    feeds = typed_feeds(GRAD_GRAD, types, (0, 3, 2), (0, 2), np.random.default_rng(0))
    got = TypedSession(typed_model(GRAD_GRAD, types, **attributes), implementation)(feeds)
    assert got["d_dY"].shape == got["d_X"].shape == (0, 3, 2)
    np.testing.assert_array_equal(got["d_scale"], np.zeros(3))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_frozen_statistics_do_not_see_an_infinity_of_the_sums(implementation, rng):
    types = ("float", "float", "float")
    feeds = typed_feeds(GRAD_GRAD, types, (4, 1), (0,), rng)
    feeds["dY"][:] = np.finfo(np.float32).max / 2
    feeds["ddscale"][:] = feeds["inv_std"][:] = 1
    got = TypedSession(typed_model(GRAD_GRAD, types, training_mode=0), implementation)(feeds)
    np.testing.assert_array_equal(got["d_X"], feeds["dY"])
    assert np.isfinite(got["d_dY"]).all()
