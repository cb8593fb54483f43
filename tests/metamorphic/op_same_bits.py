"""Relations of the ops that hold bit for bit: the same operations in the same order."""

from __future__ import annotations

import numpy as np

from metamorphic.comparisons import exactly
from metamorphic.op_problems import EPSILON, OPS


def twice(problem, op, _rng):
    return exactly(problem.run(op), problem.run(op))


def threads(problem, op, _rng):
    single = problem.run(op, threads=1)
    return [
        comparison for n in (2, 5) for comparison in exactly(problem.run(op, threads=n), single, f"{n} threads")
    ]


def permuted_columns(problem, op, rng):
    """Permuting the channels permutes the outputs, if each channel has its own vector lane."""
    return [
        comparison
        for moved, expected in problem.permuted(op, rng)
        for comparison in exactly(moved.run(op), expected)
    ]


def scaled_gradient(problem, op, _rng):
    """Multiplying the incoming gradients by 2, -1 or 0 multiplies the outgoing ones, without rounding."""
    linear = [name for name in ("dY", "dZ") if name in op.inputs]
    if "ddX" in op.inputs:
        linear = ["ddX", "ddscale", "ddbias"]
    got = problem.run(op)
    comparisons = []
    for factor in (2, -1, 0):
        scaled = problem.with_arrays(**{name: problem.arrays[name] * factor for name in linear}).run(op)
        expected = {name: value.astype(np.float64) * factor for name, value in got.items()}
        comparisons += exactly(scaled, expected, f"times {factor}")
    return comparisons


def scaled_dy_of_second(problem, op, _rng):
    """Without ddscale and ddbias, d_X and d_scale are multiples of dY, and d_dY does not depend on it."""
    none = {name: problem.arrays[name] * 0 for name in ("ddscale", "ddbias")}
    plain = problem.with_arrays(**none)
    got, twice_as_much = plain.run(op), plain.with_arrays(dY=problem.arrays["dY"] * 2).run(op)
    expected = {name: value.astype(np.float64) * 2 for name, value in got.items()} | {"d_dY": got["d_dY"]}
    return exactly(twice_as_much, expected)


def other_units(problem, op, _rng):
    """Doubling X keeps xhat and halves the gradients with respect to X."""
    a = problem.arrays
    doubled = problem.with_arrays(X=a["X"] * 2, mean=a["mean"] * 2, inv_std=a["inv_std"] / 2)
    if "dX" in op.outputs:
        got = problem.run(op)
        return exactly(doubled.run(op), got | {"dX": got["dX"].astype(np.float64) / 2})
    if "d_X" in op.outputs:
        # ddX is the gradient with respect to dX, which is half as large.
        got = problem.run(op)
        expected = {"d_dY": got["d_dY"], "d_X": got["d_X"].astype(np.float64) / 2, "d_scale": got["d_scale"]}
        return exactly(doubled.with_arrays(ddX=a["ddX"] * 2).run(op), expected)
    got, four_times = problem.run(op), doubled.run(op, epsilon=EPSILON * 4)
    mean, inv_std = ("saved_mean", "saved_inv_std") if "Y" in got else ("mean", "inv_std")
    expected = {mean: got[mean] * 2, inv_std: got[inv_std] / 2}
    return exactly(four_times, expected | ({"Y": got["Y"]} if "Y" in got else {}))


def scaled_scale(problem, op, _rng):
    """Doubling the scale doubles dX and does not change the sums."""
    got, twice_as_much = problem.run(op), problem.with_arrays(scale=problem.arrays["scale"] * 2).run(op)
    return exactly(twice_as_much, got | {"dX": got["dX"].astype(np.float64) * 2})


def far_from_zero(problem, op, _rng):
    """Adding 1024 to X and its mean keeps D = X - mean bit for bit, if no digit of X is lost.

    The same holds for sums of products with X, if X is not double and the products are exact.
    """
    a = problem.arrays
    names = ("X", "mean") if a["X"].dtype == np.float64 else ("X", "mean", "dY", "dZ", "ddX")
    grid = {name: np.round(a[name].astype(np.float64) * 16) / 16 for name in names if name in a}
    near = problem.with_arrays(**grid)
    far = near.with_arrays(X=grid["X"] + 1024, mean=grid["mean"] + 1024)
    assert np.array_equal(far.arrays["X"].astype(np.float64) - 1024, grid["X"]), "X has lost digits"
    return exactly(far.run(op), near.run(op))


def relu_is_a_mask(problem, op, _rng):
    """The fused gradient with a ReLU equals the gradient for dY = dZ where Z > 0, else 0."""
    a = problem.arrays
    masked = np.where(a["Z"] > 0, a["dZ"], np.zeros((), a["dZ"].dtype))
    plain = OPS["grad-training" if op.options["training_mode"] else "grad-frozen"]
    return exactly(problem.run(op), problem.with_arrays(dY=masked).run(plain))


def statistics_alone(problem, op, _rng):
    """BatchNormalizationStatistics returns the statistics that BatchNormalizationTraining saves."""
    got, saved = problem.run(op), problem.run(OPS["training-biased"])
    return exactly(got, {"mean": saved["saved_mean"], "inv_std": saved["saved_inv_std"]})


def old_running_values(problem, op, _rng):
    """With momentum 1 the running values stay; with momentum 0 the old ones do not matter."""
    a = problem.arrays
    kept, new = problem.run(op, momentum=1.0), problem.run(op, momentum=0.0)
    moved = problem.with_arrays(running_mean=a["running_mean"] + 3, running_var=a["running_var"] * 5)
    names = ("new_running_mean", "new_running_var")
    comparisons = exactly(kept, dict(zip(names, (a["running_mean"], a["running_var"]), strict=True)), "kept")
    return [*comparisons, *exactly(moved.run(op, momentum=0.0), new, "new")]
