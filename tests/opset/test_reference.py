"""Tests the float64 reference against central differences of batch norm as defined in the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.errors import InputError
from bngrad.opset import reference
from bngrad.opset.axes import normalize_axes
from op_models import EXTENTS, subsets

EPSILON = 0.1

PATTERNS = [(EXTENTS[:rank], axes) for rank in range(1, 6) for axes in subsets(rank)]
PATTERNS += [
    (EXTENTS[:6], axes) for axes in ((), (0, 2, 3, 4, 5), (0, 1, 2, 3, 4), (1, 3, 5), (0,), (0, 1, 2, 3, 4, 5))
]
PATTERNS += [((2, 1, 2, 1, 2, 2, 2), axes) for axes in ((0, 2, 3, 4, 5, 6), (1, 2, 5), (0, 6), (3,))]
PATTERNS += [
    ((2, 1, 2, 1, 2, 2, 1, 2), axes)
    for axes in ((0, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6), (0, 2, 4, 6), (1, 3, 5, 7), (7,), tuple(range(8)))
]
EDGES = {
    "m-is-1": ((1, 3, 1, 1), (0, 2, 3)),
    "one-channel": ((4, 1, 3), (0, 2)),
    "one-element": ((1,), (0,)),
    "one-element-rank-8": ((1,) * 8, tuple(range(8))),
    "negative-axes": ((2, 3, 2, 2), (-1, -4, -2)),
    "unsorted-axes": ((2, 3, 2, 2), (3, 0, 2)),
}


def pattern_id(pattern):
    shape, axes = pattern
    return "x".join(map(str, shape)) + "-over-" + ("".join(map(str, axes)) or "none")


def kept(shape, axes):
    return tuple(e for d, e in enumerate(shape) if d not in {a % len(shape) for a in axes})


def forward(x, scale, bias, axes, statistics=None):
    """Returns Y; statistics are the mean and inv_std, by default those of x."""
    axes = tuple(sorted(axis % x.ndim for axis in axes))
    if statistics is None:
        mean = np.mean(x, axis=axes, keepdims=True)
        inv_std = 1 / np.sqrt(np.var(x, axis=axes, keepdims=True) + EPSILON)
    else:
        mean, inv_std = (np.expand_dims(s, axes) for s in statistics)
    return np.expand_dims(scale, axes) * (x - mean) * inv_std + np.expand_dims(bias, axes)


def central_differences(loss, at, step=1e-5):
    gradient = np.empty_like(at)
    for index in np.ndindex(at.shape):
        moved = at.copy()
        moved[index] = at[index] + step
        above = loss(moved)
        moved[index] = at[index] - step
        gradient[index] = (above - loss(moved)) / (2 * step)
    return gradient


def check_gradients(shape, axes, training, rng):
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    scale, bias, mean = (rng.standard_normal(kept(shape, axes)) for _ in range(3))
    inv_std = rng.uniform(0.5, 2, kept(shape, axes))
    if training:
        mean, inv_std = reference.batch_normalization_statistics(x, axes, EPSILON)
    statistics = None if training else (mean, inv_std)
    got = reference.batch_normalization_grad(dy, x, scale, mean, inv_std, axes, training)
    by_x = central_differences(lambda v: np.sum(dy * forward(v, scale, bias, axes, statistics)), x)
    by_scale = central_differences(lambda v: np.sum(dy * forward(x, v, bias, axes, statistics)), scale)
    by_bias = central_differences(lambda v: np.sum(dy * forward(x, scale, v, axes, statistics)), bias)
    for name, actual, other in zip(got._fields, got, (by_x, by_scale, by_bias), strict=True):
        assert actual.shape == other.shape, name
        np.testing.assert_allclose(actual, other, rtol=1e-7, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize(("shape", "axes"), PATTERNS, ids=map(pattern_id, PATTERNS))
def test_gradients_are_the_central_differences(shape, axes, training, rng):
    check_gradients(shape, axes, training, rng)


@pytest.mark.parametrize("training", [True, False], ids=["training", "frozen"])
@pytest.mark.parametrize("edge", EDGES)
def test_gradients_at_the_edges(edge, training, rng):
    check_gradients(*EDGES[edge], training, rng)


@pytest.mark.parametrize(("shape", "axes"), PATTERNS, ids=map(pattern_id, PATTERNS))
@pytest.mark.parametrize("unbiased", [False, True], ids=["biased", "unbiased"])
def test_forward_is_the_textbook(shape, axes, unbiased, rng):
    x = rng.standard_normal(shape) + 2
    scale, bias, old_mean = (rng.standard_normal(kept(shape, axes)) for _ in range(3))
    old_var = rng.uniform(0.5, 2, kept(shape, axes))
    got = reference.batch_normalization_training(x, scale, bias, old_mean, old_var, axes, EPSILON, 0.8, unbiased)
    mean, var = np.mean(x, axis=axes), np.var(x, axis=axes)
    m = x.size // scale.size
    running_var = np.var(x, axis=axes, ddof=1) if unbiased and m > 1 else var
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(got.Y, forward(x, scale, bias, axes), **close)
    np.testing.assert_allclose(got.saved_mean, mean, **close)
    np.testing.assert_allclose(got.saved_inv_std, 1 / np.sqrt(var + EPSILON), **close)
    np.testing.assert_allclose(got.new_running_mean, 0.8 * old_mean + 0.2 * mean, **close)
    np.testing.assert_allclose(got.new_running_var, 0.8 * old_var + 0.2 * running_var, **close)
    statistics = reference.batch_normalization_statistics(x, axes, EPSILON)
    np.testing.assert_array_equal(statistics.mean, got.saved_mean)
    np.testing.assert_array_equal(statistics.inv_std, got.saved_inv_std)


def test_a_mean_far_from_zero_costs_no_digits(rng):
    x = rng.standard_normal((64, 2, 8))
    near, far = (reference.batch_normalization_statistics(x + m, (0, 2), 1e-5) for m in (0, 2.0**20))
    np.testing.assert_allclose(near.inv_std, far.inv_std, rtol=1e-9)
    np.testing.assert_allclose(far.mean - near.mean, 2.0**20, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, list])
def test_every_real_type_goes_in_and_float64_comes_out(dtype):
    x = [[1, 2], [3, 8]] if dtype is list else np.array([[1, 2], [3, 8]], dtype)
    mean, inv_std = reference.batch_normalization_statistics(x, [0], 0)
    assert mean.dtype == inv_std.dtype == np.float64
    np.testing.assert_array_equal(mean, [2, 5])
    np.testing.assert_allclose(inv_std, [1, 1 / 3])


def test_an_empty_batch_has_zero_sums_and_no_statistics():
    x, p = np.empty((0, 3, 2)), np.ones(3)
    gradients = reference.batch_normalization_grad(x, x, p, p, p, (0, 2), True)
    assert gradients.dX.shape == (0, 3, 2)
    np.testing.assert_array_equal(gradients.dscale, np.zeros(3))
    np.testing.assert_array_equal(gradients.dbias, np.zeros(3))
    normalized = reference.batch_normalization_training(x, p, p, p, p, (0, 2), EPSILON, 0.9, True)
    assert normalized.Y.shape == (0, 3, 2)
    for value in normalized[1:]:
        np.testing.assert_array_equal(value, np.full(3, np.nan))


def test_no_channels_at_all():
    x, p = np.empty((4, 0, 2)), np.empty(0)
    assert [g.shape for g in reference.batch_normalization_grad(x, x, p, p, p, (0, 2), True)] == [
        (4, 0, 2),
        (0,),
        (0,),
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("training", [True, False], ids=["training", "frozen"])
def test_what_is_not_finite_stays_in_its_channel(bad, training, rng):
    dy, x = rng.standard_normal((2, 4, 3, 2))
    x[1, 1, 0], dy[2, 1, 1] = bad, bad
    p = rng.uniform(0.5, 2, 3)
    clean = np.arange(3) != 1
    gradients = reference.batch_normalization_grad(dy, x, p, p, p, (0, 2), training)
    normalized = reference.batch_normalization_training(x, p, p, p, p, (0, 2), EPSILON, 0.9, True)
    for name, value in {**gradients._asdict(), **normalized._asdict()}.items():
        channels = np.moveaxis(value, 1, 0) if value.ndim == 3 else value
        assert np.isfinite(channels[clean]).all(), name
        assert not np.isfinite(channels[1]).all(), name


def test_a_frozen_gradient_does_not_see_the_sums():
    dy = np.full((4, 1), np.finfo(np.float64).max / 2)
    unit = np.ones(1)
    gradients = reference.batch_normalization_grad(
        dy, np.ones((4, 1)), unit, 0 * unit, unit, [0], training_mode=False
    )
    assert np.isinf(gradients.dbias).all()
    np.testing.assert_array_equal(gradients.dX, dy)


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=8)))
    axes = tuple(draw(st.sets(st.integers(0, len(shape) - 1))))
    order = draw(st.permutations(axes))
    signs = draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
    respelled = tuple(axis - len(shape) * negative for axis, negative in zip(order, signs, strict=True))
    return shape, axes, respelled, draw(st.integers(0, 2**32 - 1))


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_axes_mean_the_same_in_any_order_and_sign(problem):
    shape, axes, respelled, seed = problem
    rng = np.random.default_rng(seed)
    dy, x = rng.standard_normal((2, *shape))
    scale, mean, inv_std = rng.standard_normal((3, *kept(shape, axes)))
    first, other = (
        reference.batch_normalization_grad(dy, x, scale, mean, inv_std, a, True) for a in (axes, respelled)
    )
    for a, b in zip(first, other, strict=True):
        np.testing.assert_array_equal(a, b)


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_moving_the_dimensions_of_x_moves_those_of_the_answer(problem, random):
    """The result depends on the axes, not on the layout: axes 0, 2 of NCHW equal axes 0, 1 of NHWC."""
    shape, axes, _, seed = problem
    rng = np.random.default_rng(seed)
    order = list(range(len(shape)))
    random.shuffle(order)
    dy, x = rng.standard_normal((2, *shape))
    parameters = rng.standard_normal((3, *kept(shape, axes)))
    kept_order = [d for d in order if d not in axes]
    ranks = [sorted(kept_order).index(d) for d in kept_order]
    moved_axes = [order.index(axis) for axis in axes]
    want = reference.batch_normalization_grad(dy, x, *parameters, axes, True)
    got = reference.batch_normalization_grad(
        dy.transpose(order), x.transpose(order), *(p.transpose(ranks) for p in parameters), moved_axes, True
    )
    np.testing.assert_allclose(got.dX, want.dX.transpose(order), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.dscale, want.dscale.transpose(ranks), rtol=1e-9, atol=1e-12)


@given(problems())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_training_gradient_is_orthogonal_to_what_batch_norm_ignores(problem):
    """Adding a constant to a channel does not change Y, so dX must sum to 0 over the channel."""
    shape, axes, _, seed = problem
    rng = np.random.default_rng(seed)
    dy, x = rng.standard_normal((2, *shape))
    statistics = reference.batch_normalization_statistics(x, axes, 1e-3)
    dx = reference.batch_normalization_grad(dy, x, np.ones(kept(shape, axes)), *statistics, axes, True).dX
    np.testing.assert_allclose(dx.sum(axis=axes), 0, atol=1e-10)


C = np.ones(3)
X = np.ones((2, 3, 4))
REFUSED = {
    "dy-shape": (
        lambda: reference.batch_normalization_grad(X[:1], X, C, C, C, (0, 2), True),
        "dY has shape [1, 3, 4]; expected [2, 3, 4] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "scale-shape": (
        lambda: reference.batch_normalization_grad(X, X, np.ones(2), C, C, (0, 2), True),
        "scale has shape [2]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "scale-broadcastable": (
        lambda: reference.batch_normalization_grad(X, X, np.ones(1), C, C, (0, 2), True),
        "scale has shape [1]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "mean-keeps-dims": (
        lambda: reference.batch_normalization_grad(X, X, C, np.ones((1, 3, 1)), C, (0, 2), True),
        "mean has shape [1, 3, 1]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "inv-std-scalar": (
        lambda: reference.batch_normalization_grad(X, X, C, C, 1.0, (0, 2), True),
        "inv_std has shape []; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "bias-shape": (
        lambda: reference.batch_normalization_training(X, C, np.ones(4), C, C, (0, 2), 1e-5, 0.9, False),
        "bias has shape [4]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "running-var-shape": (
        lambda: reference.batch_normalization_training(X, C, C, C, np.ones((3, 1)), (0, 2), 1e-5, 0.9, False),
        "running_var has shape [3, 1]; expected [3] for X of shape [2, 3, 4] and axes [0, 2]",
    ),
    "per-activation-scale": (
        lambda: reference.batch_normalization_grad(X, X, C, C, C, (0,), True),
        "scale has shape [3]; expected [3, 4] for X of shape [2, 3, 4] and axes [0]",
    ),
    "axis-too-large": (
        lambda: reference.batch_normalization_statistics(X, (0, 3), 1e-5),
        "axis 3 is out of range for X of rank 3; expected -3 to 2",
    ),
    "axis-too-small": (
        lambda: reference.batch_normalization_statistics(X, (-4,), 1e-5),
        "axis -4 is out of range for X of rank 3; expected -3 to 2",
    ),
    "axis-twice": (
        lambda: reference.batch_normalization_statistics(X, (0, 0), 1e-5),
        "axes [0, 0] name a dimension of X twice; name each reduced dimension once",
    ),
    "axis-twice-by-sign": (
        lambda: reference.batch_normalization_statistics(X, (2, -1), 1e-5),
        "axes [2, -1] name a dimension of X twice; name each reduced dimension once",
    ),
    "rank-0": (
        lambda: reference.batch_normalization_statistics(np.float64(1), (), 1e-5),
        "X has 0 dimensions; expected 1 to 8",
    ),
    "rank-9": (
        lambda: reference.batch_normalization_statistics(np.ones((1,) * 9), (0,), 1e-5),
        "X has 9 dimensions; expected 1 to 8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_shapes(case):
    call, message = REFUSED[case]
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("axes", "rank", "expected"),
    [((), 1, ()), ((2, 0), 3, (0, 2)), ((-1, 0), 3, (0, 2)), ((-3, -2, -1), 3, (0, 1, 2)), (np.int64(1), 2, (1,))],
)
def test_normalize_axes(axes, rank, expected):
    assert normalize_axes(axes, rank) == expected
