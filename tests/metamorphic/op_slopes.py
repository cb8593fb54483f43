"""What one op says of another: a gradient is the slope of its forward op, and a transpose of a linear map."""

from __future__ import annotations

import numpy as np

from metamorphic.dues import Due
from metamorphic.op_problems import OPS, term_sizes, with_own_statistics
from metamorphic.op_rounding import ROUNDINGS, precision_of


def differences(problem, op, rng):
    """The gradient is the slope of the forward op along random directions of X, scale and bias."""
    own = with_own_statistics(problem)
    got = own.run(op)
    forward, dy, step = OPS["training-biased"], own.arrays["dY"], 1e-5
    dues = []
    for name, gradient in (("X", "dX"), ("scale", "dscale"), ("bias", "dbias")):
        along = rng.standard_normal(own.arrays[name].shape)
        sides = [
            np.sum(own.but(**{name: own.arrays[name] + sign * step * along}).run(forward)["Y"] * dy)
            for sign in (1, -1)
        ]
        slope, due = (sides[0] - sides[1]) / (2 * step), np.sum(along * got[gradient])
        size = np.sum(np.abs(along * got[gradient]))
        dues.append(Due(gradient, np.asarray(due), np.asarray(slope), 1e-6 * size + 1e-8))
    return dues


def adjoint(problem, op, rng):
    """d_dY is the transpose of the gradient as a map of dY: <ddX, dX(u)> + ... = <d_dY, u> for every u."""
    first = OPS["grad-training" if op.options["training_mode"] else "grad-frozen"]
    u = problem.but(dY=rng.standard_normal(problem.arrays["X"].shape))
    dy, gradients, second = u.arrays["dY"].astype(np.float64), u.run(first), problem.run(op)
    pairs = (("ddX", "dX"), ("ddscale", "dscale"), ("ddbias", "dbias"))
    left = sum(np.sum(problem.arrays[a].astype(np.float64) * gradients[b].astype(np.float64)) for a, b in pairs)
    size = np.sum(np.abs(dy) * term_sizes(problem, op)["d_dY"])
    precision = precision_of(problem, gradients["dX"])
    got = np.sum(second["d_dY"].astype(np.float64) * dy)
    return [Due("<d_dY, u>", got, left, ROUNDINGS * precision * size)]


def second_slopes(problem, op, rng):
    """d_X and d_scale are the slopes of <ddX, dX> + <ddscale, dscale>; in training the statistics follow X."""
    training = bool(op.options["training_mode"])
    start = with_own_statistics(problem) if training else problem
    first, step = OPS["grad-training" if training else "grad-frozen"], 1e-5
    got, dues = start.run(op), []
    for name, gradient in (("X", "d_X"), ("scale", "d_scale")):
        along = rng.standard_normal(start.arrays[name].shape)
        sides = []
        for sign in (1, -1):
            moved = start.but(**{name: start.arrays[name] + sign * step * along})
            moved = with_own_statistics(moved) if training else moved
            gradients = moved.run(first)
            pairs = (("ddX", "dX"), ("ddscale", "dscale"), ("ddbias", "dbias"))
            sides.append(sum(np.sum(start.arrays[a] * gradients[b]) for a, b in pairs))
        slope, size = (sides[0] - sides[1]) / (2 * step), np.sum(np.abs(along * got[gradient]))
        dues.append(Due(gradient, np.sum(along * got[gradient]), slope, 1e-6 * size + 1e-8))
    return dues
