"""Inputs of AdamUpdate, and the error bounds of a correct implementation.

With unit roundoff u, to first order in u, by the operations of the formula: an error of g propagates to
new_exp_avg and new_exp_avg_sq, and those to new_weight through the root and the quotient.
"""

from __future__ import annotations

import numpy as np

from bngrad.opset import reference

CASES = {
    "adam": [1, 0, 1, 0.1, 0.999, 0.001, 1e-3 / 0.1, np.sqrt(0.001), 1e-8],
    "adam, L2": [1, 0.01, 1, 0.1, 0.999, 0.001, 1e-3 / 0.1, np.sqrt(0.001), 1e-8],
    "adamw": [1, 0, 1 - 1e-5, 0.1, 0.999, 0.001, 1e-3, 1.0, 1e-8],
    "clipped": [0.125, 0.3, 0.9, 0.25, 0.9, 0.1, 0.5, 0.7, 1e-6],
}
"""The coefficients: of first and later steps, with and without decay."""

UNITS = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}


def adam_inputs(shape, dtype, seed=0):
    """weight, gradient, exp_avg and exp_avg_sq; gradients of several orders of magnitude, some zero."""
    rng = np.random.default_rng(seed)
    weight, gradient, exp_avg = (rng.standard_normal(shape) for _ in range(3))
    gradient = gradient * 10.0 ** rng.integers(-4, 3, shape) * (rng.random(shape) > 0.1)
    exp_avg_sq = np.square(rng.standard_normal(shape)) * 10.0 ** rng.integers(-6, 3, shape)
    return tuple(np.asarray(a, dtype) for a in (weight, gradient, exp_avg, exp_avg_sq))


def assert_adam_accurate(got, inputs, coefficients):
    """Asserts that the outputs are within the bounds, for coefficients rounded to the type of the inputs."""
    dtype = inputs[0].dtype
    unit = UNITS[dtype]
    rounded = np.asarray(coefficients).astype(dtype).astype(np.float64)
    w, gradient, e, e_sq = (a.astype(np.float64) for a in inputs)
    exact = reference.adam_update(w, gradient, e, e_sq, rounded)
    scale, penalty, shrink, c1, beta2, c2, step_size, root, eps = rounded
    size_of_g = np.abs(gradient * scale) + np.abs(penalty * w)
    g = gradient * scale + penalty * w
    of_g = 2 * unit * size_of_g
    of_m = c1 * (of_g + 2 * unit * np.abs(g - e)) + unit * np.abs(exact.new_exp_avg)
    # The reference has the textbook's form of the average, with its own beta1 = 1 - c1.
    of_m += 4 * 2.0**-53 * (np.abs(e) + np.abs(g))
    of_v = unit * beta2 * e_sq + c2 * (2 * np.abs(g) * of_g + 2 * unit * g**2) + unit * exact.new_exp_avg_sq
    v = np.maximum(exact.new_exp_avg_sq, np.finfo(np.float64).tiny)
    deviation = np.sqrt(v) / root + eps
    of_deviation = np.sqrt(v) / root * (of_v / (2 * v) + 2 * unit) + unit * deviation
    step = np.abs(step_size * exact.new_exp_avg) / deviation
    of_step = step_size * of_m / deviation + step * (of_deviation / deviation + 2 * unit)
    of_w = unit * np.abs(w * shrink) + of_step + unit * np.abs(exact.new_weight)
    smallest = np.finfo(dtype).smallest_normal
    for actual, want, bound in zip(got, exact, (of_w, of_m, of_v), strict=True):
        assert actual.dtype == dtype
        assert actual.shape == want.shape
        error = np.abs(actual.astype(np.float64) - want)
        assert (error <= 1.01 * bound + smallest).all(), np.max(error / (bound + smallest))
