"""Relations of the ops that hold within rounding: sums in another order, and properties of the results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metamorphic.comparisons import Comparison, exactly
from metamorphic.op_problems import EPSILON, MOMENTUM, OPS, term_sizes, with_own_statistics
from metamorphic.op_rounding import ROUNDINGS, nearly, precision_of
from ort_values import TypedSession
from typed_ops import typed_model


def permuted_batch(problem, op, rng):
    """Permuting the elements of a reduced dimension permutes the data outputs and keeps the sums."""
    axis = problem.reduced[0]
    order = rng.permutation(problem.arrays["X"].shape[axis])
    moved = problem.map_arrays(lambda a: a.take(order, axis), lambda a: a)
    got, expected = moved.run(op), problem.run(op)
    expected = {
        name: value.take(order, axis) if problem.is_data(name) else value for name, value in expected.items()
    }
    return nearly(moved, op, got, expected)


def transposed_layout(problem, op, rng):
    """The result does not depend on the layout: NHWC, NCHW or any other order of the dimensions."""
    rank, comparisons = problem.arrays["X"].ndim, []
    for _ in range(2):
        order = [int(i) for i in rng.permutation(rank)]
        kept = [axis for axis in order if axis in problem.kept]
        parameter_order = [problem.kept.index(axis) for axis in kept]
        moved = problem.map_arrays(
            lambda a, o=order: a.transpose(o),
            lambda a, o=parameter_order: a.transpose(o) if a.ndim > 1 else a,
        )
        # One axis is negative.
        axes = [order.index(axis) for axis in problem.reduced]
        moved = replace(moved, axes=(axes[0] - rank, *axes[1:]))
        expected = {
            name: value.transpose(order) if problem.is_data(name) else value.transpose(parameter_order)
            for name, value in problem.run(op).items()
        }
        comparisons += nearly(moved, op, moved.run(op), expected)
    return comparisons


def permuted_channels(problem, op, rng):
    """Permuting the channels permutes the outputs; channels may be summed in other vector lanes."""
    return [
        comparison
        for moved, expected in problem.permuted(op, rng)
        for comparison in nearly(moved, op, moved.run(op), expected)
    ]


def half_of_the_channels(problem, op, _rng):
    """The results of some channels do not depend on the others."""
    axis = problem.kept[-1]
    some = slice(1, problem.arrays["X"].shape[axis] // 2 + 2)
    place = len(problem.kept) - 1

    def cut(along):
        return lambda a: a[(slice(None),) * along + (some,)]

    alone = problem.map_arrays(cut(axis), cut(place))
    expected = {
        name: cut(axis if problem.is_data(name) else place)(value) for name, value in problem.run(op).items()
    }
    return nearly(alone, op, alone.run(op), expected)


def halves(problem, op, _rng):
    """If frozen, dscale, dbias and d_scale are sums over the halves of a batch, and dX is their concatenation."""
    axis = problem.reduced[0]
    middle = problem.arrays["X"].shape[axis] // 2
    parts = [
        problem.map_arrays(lambda a, half=half: a.take(half, axis), lambda a: a).run(op)
        for half in (range(middle), range(middle, problem.arrays["X"].shape[axis]))
    ]
    expected = {
        name: np.concatenate([part[name] for part in parts], axis)
        if problem.is_data(name)
        else sum(part[name].astype(np.float64) for part in parts)
        for name in op.outputs
    }
    return nearly(problem, op, problem.run(op), expected)


def doubled_batch(problem, op, _rng):
    """A batch concatenated with itself has the same statistics and means, and sums twice as large."""
    axis = problem.reduced[0]
    doubled = problem.map_arrays(lambda a: np.concatenate([a, a], axis), lambda a: a)
    expected = {
        name: np.concatenate([value, value], axis) if problem.is_data(name) else value.astype(np.float64)
        for name, value in problem.run(op).items()
    }
    for name in ("dscale", "dbias", "d_scale"):
        if name in expected:
            expected[name] = expected[name] * 2
    if "new_running_var" in expected and op.options["unbiased_running_var"]:
        del expected["new_running_var"]  # the divisor is M - 1
    return nearly(doubled, op, doubled.run(op), expected)


def far_forward(problem, op, _rng):
    """Adding 1024 to X changes Y only within the rounding of the original X, if no digit of X is lost."""
    near = problem.with_arrays(X=_on_a_grid(problem, "X"))
    got, expected = near.with_arrays(X=near.arrays["X"] + 1024).run(op), near.run(op)
    return nearly(near, op, got, {name: expected[name] for name in ("Y", "saved_inv_std")})


def constant_channels(problem, op, _rng):
    """A constant channel has its own value as the mean, however large it is; for the rest it is one of zeros."""
    comparisons = []
    shape, scale = problem.arrays["X"].shape, problem.arrays["scale"].astype(np.float64)
    zeros = problem.with_arrays(X=np.zeros(shape), mean=np.zeros(scale.shape))
    expected = {name: value for name, value in zeros.run(op).items() if name != "new_running_mean"}
    for size in (1e3, 3e4) if problem.arrays["X"].itemsize == 2 else (1e3, 3e4, 1e6):
        far = problem.with_arrays(X=np.broadcast_to(problem.over_x(size * scale), shape))
        own = far.arrays["X"].astype(np.float64).max(axis=problem.reduced)
        far = far.with_arrays(mean=far.run(OPS["training-biased"])["saved_mean"])
        want = expected | {name: own for name in ("saved_mean", "mean") if name in expected}
        # The rounding of sums in double, whose terms are as large as the value.
        sizes = term_sizes(far, op)
        comparisons += [
            comparison._replace(tolerance=comparison.tolerance + 2.0**-48 * sizes[comparison.name])
            for comparison in nearly(zeros, op, far.run(op), want)
        ]
    return comparisons


def shifted_gradient(problem, op, _rng):
    """In training, adding a constant to dY or ddX changes only dbias, because sum xhat is 0.

    For an exact 0, X is a batch followed by its negative, with mean 0.
    """
    axis, comparisons = problem.reduced[0], []
    doubled = problem.map_arrays(lambda a: np.concatenate([a, a], axis), lambda a: a)
    x = problem.arrays["X"]
    doubled = doubled.with_arrays(X=np.concatenate([x, -x], axis), mean=np.zeros(problem.arrays["mean"].shape))
    for name in sorted({"dY", "ddX"} & set(op.inputs)):
        near = doubled.with_arrays(**{name: _on_a_grid(doubled, name)})
        got, expected = near.with_arrays(**{name: near.arrays[name] + 1024}).run(op), near.run(op)
        unmoved = {output: expected[output] for output in op.outputs if output != "dbias"}
        # The rounding of sums whose terms are as large as the constant.
        own = 1024 * near.count * near.precision_of_sums
        comparisons += [
            comparison._replace(name=f"{name}: {comparison.name}", tolerance=comparison.tolerance + own)
            for comparison in nearly(near, op, got, unmoved)
        ]
    return comparisons


def _on_a_grid(problem, name):
    return np.round(problem.arrays[name].astype(np.float64) * 16) / 16


def far_statistics(problem, op, _rng):
    """Adding 2^53 to even numbers keeps Y and inv_std within rounding, although their mean may not be a double."""
    near = problem.with_arrays(X=np.round(problem.arrays["X"] * 8) * 2)
    got, expected = near.with_arrays(X=near.arrays["X"] + 2.0**53).run(op), near.run(op)
    names = {"Y", "saved_inv_std", "inv_std"} & expected.keys()
    return nearly(near, op, got, {name: expected[name] for name in sorted(names)})


def non_temporal_stores(problem, op, _rng):
    """Large outputs use non-temporal stores; those of ONNX Runtime are aligned to cache lines, NumPy's not."""
    model = typed_model(op.op_type, problem.types, **op.options)
    return exactly(TypedSession(model, "native")(problem.feeds(op)), problem.run(op))


def interfaces(problem, op, _rng):
    """The C interface, the custom op in ONNX Runtime and the op's function agree."""
    model = typed_model(op.op_type, problem.types, **op.options)
    got, native = problem.run(op), TypedSession(model, "native")(problem.feeds(op))
    function = replace(problem, implementation="function").run(op)
    return [*exactly(native, got, "native"), *nearly(problem, op, function, got)]


def orthogonal(problem, op, _rng):
    """In training, dX is orthogonal to constants and, apart from epsilon, to xhat: such changes of X keep Y."""
    own = with_own_statistics(problem).with_arrays(running_var=problem.arrays["running_var"])
    a, dx = own.arrays, own.run(op)["dX"].astype(np.float64)
    xhat = (a["X"].astype(np.float64) - own.over_x(a["mean"])) * own.over_x(a["inv_std"])
    sizes = term_sizes(own, op)["dX"]
    precision = ROUNDINGS * precision_of(own, own.run(op)["dX"])
    # sum dX xhat = scale inv_std dscale (1 - sum xhat^2 / M), where the last factor is epsilon inv_std^2.
    left = own.total(dx * xhat)
    dscale = own.total((a["dZ"] if "dZ" in op.inputs else a["dY"]).astype(np.float64) * 0)
    dscale = dscale + own.run(op)["dscale"].astype(np.float64)
    gain = a["scale"].astype(np.float64) * a["inv_std"].astype(np.float64)
    expected = gain * dscale * (1 - own.total(xhat * xhat) / own.count)
    return [
        Comparison("sum dX", own.total(dx), np.zeros_like(left), precision * own.total(sizes)),
        Comparison("sum dX xhat", left, expected, precision * own.total(sizes * (1 + np.abs(xhat)))),
    ]


def normalized(problem, op, _rng):
    """Y has mean bias and variance scale^2 (1 - epsilon inv_std^2)."""
    got, a = problem.run(op), problem.arrays
    y = (got["Y"].astype(np.float64) - problem.over_x(a["bias"])) / problem.over_x(a["scale"])
    inv_std = got["saved_inv_std"].astype(np.float64)
    size = problem.total(term_sizes(problem, op)["Y"] / problem.over_x(a["scale"]) * (1 + np.abs(y)))
    tolerance = 2 * ROUNDINGS * precision_of(problem, got["Y"]) * size
    return [
        Comparison("sum Y", problem.total(y), np.zeros_like(inv_std), tolerance),
        Comparison("sum Y^2", problem.total(y * y), problem.count * (1 - EPSILON * inv_std**2), tolerance),
    ]


def running_values(problem, op, _rng):
    """The new running values are weighted means of the old ones and the batch's saved statistics."""
    got, a = problem.run(op), problem.arrays
    variance = 1 / got["saved_inv_std"].astype(np.float64) ** 2 - EPSILON
    if op.options["unbiased_running_var"]:
        variance = variance * problem.count / (problem.count - 1)
    expected = {
        "new_running_mean": MOMENTUM * a["running_mean"].astype(np.float64)
        + (1 - MOMENTUM) * got["saved_mean"].astype(np.float64),
        "new_running_var": MOMENTUM * a["running_var"].astype(np.float64) + (1 - MOMENTUM) * variance,
    }
    return nearly(problem, op, {name: got[name] for name in expected}, expected)
