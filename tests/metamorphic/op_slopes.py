"""Relations between ops: a gradient is the slope of its forward op, and its own gradient is its transpose."""

from __future__ import annotations

import numpy as np

from metamorphic.comparisons import Comparison
from metamorphic.op_problems import OPS, term_sizes, with_own_statistics
from metamorphic.op_rounding import ROUNDINGS, precision_of


def differences(problem, op, rng):
    """The gradient is the slope of the forward op along random directions in X, scale and bias."""
    own = with_own_statistics(problem)
    got = own.run(op)
    forward, dy, step = OPS["training-biased"], own.arrays["dY"], 1e-5
    comparisons = []
    for name, gradient in (("X", "dX"), ("scale", "dscale"), ("bias", "dbias")):
        along = rng.standard_normal(own.arrays[name].shape)
        sides = [
            np.sum(own.with_arrays(**{name: own.arrays[name] + sign * step * along}).run(forward)["Y"] * dy)
            for sign in (1, -1)
        ]
        slope, projection = (sides[0] - sides[1]) / (2 * step), np.sum(along * got[gradient])
        size = np.sum(np.abs(along * got[gradient]))
        comparisons.append(Comparison(gradient, np.asarray(projection), np.asarray(slope), 1e-6 * size + 1e-8))
    return comparisons


def adjoint(problem, op, rng):
    """d_dY is the transpose of the gradient as a linear map of dY: <ddX, dX(u)> + ... = <d_dY, u> for every u."""
    first = OPS["grad-training" if op.options["training_mode"] else "grad-frozen"]
    u = problem.with_arrays(dY=rng.standard_normal(problem.arrays["X"].shape))
    dy, gradients, second = u.arrays["dY"].astype(np.float64), u.run(first), problem.run(op)
    pairs = (("ddX", "dX"), ("ddscale", "dscale"), ("ddbias", "dbias"))
    left = sum(np.sum(problem.arrays[a].astype(np.float64) * gradients[b].astype(np.float64)) for a, b in pairs)
    size = np.sum(np.abs(dy) * term_sizes(problem, op)["d_dY"])
    precision = precision_of(problem, gradients["dX"])
    got = np.sum(second["d_dY"].astype(np.float64) * dy)
    return [Comparison("<d_dY, u>", got, left, ROUNDINGS * precision * size)]


def second_slopes(problem, op, rng):
    """d_X and d_scale are slopes of <ddX, dX> + <ddscale, dscale>; in training the statistics depend on X."""
    training = bool(op.options["training_mode"])
    start = with_own_statistics(problem) if training else problem
    first, step = OPS["grad-training" if training else "grad-frozen"], 1e-5
    got, comparisons = start.run(op), []
    for name, gradient in (("X", "d_X"), ("scale", "d_scale")):
        along = rng.standard_normal(start.arrays[name].shape)
        sides = []
        for sign in (1, -1):
            moved = start.with_arrays(**{name: start.arrays[name] + sign * step * along})
            moved = with_own_statistics(moved) if training else moved
            gradients = moved.run(first)
            pairs = (("ddX", "dX"), ("ddscale", "dscale"), ("ddbias", "dbias"))
            sides.append(sum(np.sum(start.arrays[a] * gradients[b]) for a, b in pairs))
        slope, size = (sides[0] - sides[1]) / (2 * step), np.sum(np.abs(along * got[gradient]))
        comparisons.append(Comparison(gradient, np.sum(along * got[gradient]), slope, 1e-6 * size + 1e-8))
    return comparisons
