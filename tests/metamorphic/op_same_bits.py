"""Relations of the ops that hold to the last bit: the same operations, in the same order."""

from __future__ import annotations

import numpy as np

from metamorphic.dues import exactly
from metamorphic.op_problems import EPSILON, OPS


def twice(problem, op, _rng):
    return exactly(problem.run(op), problem.run(op))


def threads(problem, op, _rng):
    one = problem.run(op, threads=1)
    return [due for n in (2, 5) for due in exactly(problem.run(op, threads=n), one, f"{n} threads")]


def permuted_columns(problem, op, rng):
    """Channels in another order, where each is summed in a lane of its own: what belongs to it goes with it."""
    return [due for moved, want in problem.permuted(op, rng) for due in exactly(moved.run(op), want)]


def scaled_gradient(problem, op, _rng):
    """Twice, and minus, the gradients that came give twice, and minus, those that go: 2 costs no digit."""
    linear = [name for name in ("dY", "dZ") if name in op.inputs]
    if "ddX" in op.inputs:
        linear = ["ddX", "ddscale", "ddbias"]
    got = problem.run(op)
    dues = []
    for factor in (2, -1, 0):
        scaled = problem.but(**{name: problem.arrays[name] * factor for name in linear}).run(op)
        want = {name: value.astype(np.float64) * factor for name, value in got.items()}
        dues += exactly(scaled, want, f"times {factor}")
    return dues


def scaled_dy_of_second(problem, op, _rng):
    """Without ddscale and ddbias, d_X and d_scale are multiples of dY, and d_dY does not depend on it."""
    none = {name: problem.arrays[name] * 0 for name in ("ddscale", "ddbias")}
    one = problem.but(**none)
    got, twice_as_much = one.run(op), one.but(dY=problem.arrays["dY"] * 2).run(op)
    want = {name: value.astype(np.float64) * 2 for name, value in got.items()} | {"d_dY": got["d_dY"]}
    return exactly(twice_as_much, want)


def other_units(problem, op, _rng):
    """X in units half as large: xhat is the same, and what is by X is half as much."""
    a = problem.arrays
    doubled = problem.but(X=a["X"] * 2, mean=a["mean"] * 2, inv_std=a["inv_std"] / 2)
    if "dX" in op.outputs:
        got = problem.run(op)
        return exactly(doubled.run(op), got | {"dX": got["dX"].astype(np.float64) / 2})
    if "d_X" in op.outputs:
        # ddX is by dX, of which there is half as much now.
        got = problem.run(op)
        want = {"d_dY": got["d_dY"], "d_X": got["d_X"].astype(np.float64) / 2, "d_scale": got["d_scale"]}
        return exactly(doubled.but(ddX=a["ddX"] * 2).run(op), want)
    got, four_times = problem.run(op), doubled.run(op, epsilon=EPSILON * 4)
    mean, inv_std = ("saved_mean", "saved_inv_std") if "Y" in got else ("mean", "inv_std")
    want = {mean: got[mean] * 2, inv_std: got[inv_std] / 2}
    return exactly(four_times, want | ({"Y": got["Y"]} if "Y" in got else {}))


def scaled_scale(problem, op, _rng):
    """Twice the scale is twice dX; the sums do not see it."""
    got, twice_as_much = problem.run(op), problem.but(scale=problem.arrays["scale"] * 2).run(op)
    return exactly(twice_as_much, got | {"dX": got["dX"].astype(np.float64) * 2})


def far_from_zero(problem, op, _rng):
    """X and its mean moved by 1024, where all of their digits still fit: D = X - mean is the same to the bit.

    Sums of products with X are, too, where X is no double and none of the products has lost digits.
    """
    a = problem.arrays
    names = ("X", "mean") if a["X"].dtype == np.float64 else ("X", "mean", "dY", "dZ", "ddX")
    grid = {name: np.round(a[name].astype(np.float64) * 16) / 16 for name in names if name in a}
    near = problem.but(**grid)
    far = near.but(X=grid["X"] + 1024, mean=grid["mean"] + 1024)
    assert np.array_equal(far.arrays["X"].astype(np.float64) - 1024, grid["X"]), "X has lost digits"
    return exactly(far.run(op), near.run(op))


def relu_is_a_mask(problem, op, _rng):
    """The gradient through a ReLU is the gradient of dZ where Z > 0, else 0."""
    a = problem.arrays
    masked = np.where(a["Z"] > 0, a["dZ"], np.zeros((), a["dZ"].dtype))
    plain = OPS["grad-training" if op.options["training_mode"] else "grad-frozen"]
    return exactly(problem.run(op), problem.but(dY=masked).run(plain))


def statistics_alone(problem, op, _rng):
    """Statistics are what training saves."""
    got, saved = problem.run(op), problem.run(OPS["training-biased"])
    return exactly(got, {"mean": saved["saved_mean"], "inv_std": saved["saved_inv_std"]})


def old_running_values(problem, op, _rng):
    """With all the weight on the old value it stays; with none it does not count."""
    a = problem.arrays
    kept, new = problem.run(op, momentum=1.0), problem.run(op, momentum=0.0)
    moved = problem.but(running_mean=a["running_mean"] + 3, running_var=a["running_var"] * 5)
    names = ("new_running_mean", "new_running_var")
    dues = exactly(kept, dict(zip(names, (a["running_mean"], a["running_var"]), strict=True)), "kept")
    return [*dues, *exactly(moved.run(op, momentum=0.0), new, "new")]
