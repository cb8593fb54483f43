"""Relations of the ops that hold but for rounding: the same sums in another order, and what they have to be."""

from __future__ import annotations

import numpy as np

from metamorphic.dues import Due, exactly
from metamorphic.op_problems import EPSILON, MOMENTUM, TYPES, term_sizes, with_own_statistics
from metamorphic.op_rounding import ROUNDINGS, nearly, precision_of
from ort_values import TypedSession
from typed_ops import typed_model


def permuted_batch(problem, op, rng):
    """Elements in another order: sums are the same, what belongs to an element goes with it."""
    axis = problem.reduced[0]
    order = rng.permutation(problem.arrays["X"].shape[axis])
    moved = problem.each(lambda a: a.take(order, axis), lambda a: a)
    got, want = moved.run(op), problem.run(op)
    want = {name: value.take(order, axis) if problem.is_data(name) else value for name, value in want.items()}
    return nearly(moved, op, got, want)


def transposed_layout(problem, op, rng):
    """Another layout of the same data: NHWC for NCHW, and every other order of the dimensions."""
    rank, dues = problem.arrays["X"].ndim, []
    for _ in range(2):
        order = [int(i) for i in rng.permutation(rank)]
        kept = [axis for axis in order if axis in problem.kept]
        parameter_order = [problem.kept.index(axis) for axis in kept]
        moved = problem.each(
            lambda a, o=order: a.transpose(o),
            lambda a, o=parameter_order: a.transpose(o) if a.ndim > 1 else a,
        )
        # One of them counted from the end.
        axes = [order.index(axis) for axis in problem.reduced]
        moved = type(problem)(moved.arrays, (axes[0] - rank, *axes[1:]))
        want = {
            name: value.transpose(order) if problem.is_data(name) else value.transpose(parameter_order)
            for name, value in problem.run(op).items()
        }
        dues += nearly(moved, op, moved.run(op), want)
    return dues


def permuted_channels(problem, op, rng):
    """Channels in another order: what belongs to a channel goes with it, but for the lanes that its sums take."""
    return [due for moved, want in problem.permuted(op, rng) for due in nearly(moved, op, moved.run(op), want)]


def half_of_the_channels(problem, op, _rng):
    """Channels alone have what they had among the others."""
    axis = problem.kept[-1]
    some = slice(1, problem.arrays["X"].shape[axis] // 2 + 2)
    place = len(problem.kept) - 1

    def cut(along):
        return lambda a: a[(slice(None),) * along + (some,)]

    alone = problem.each(cut(axis), cut(place))
    want = {name: cut(axis if problem.is_data(name) else place)(value) for name, value in problem.run(op).items()}
    return nearly(alone, op, alone.run(op), want)


def halves(problem, op, _rng):
    """Frozen, the halves of a batch make the whole: dscale, dbias and d_scale are sums, dX is put together."""
    axis = problem.reduced[0]
    middle = problem.arrays["X"].shape[axis] // 2
    parts = [
        problem.each(lambda a, p=part: a.take(p, axis), lambda a: a).run(op)
        for part in (range(middle), range(middle, problem.arrays["X"].shape[axis]))
    ]
    want = {
        name: np.concatenate([part[name] for part in parts], axis)
        if problem.is_data(name)
        else sum(part[name].astype(np.float64) for part in parts)
        for name in op.outputs
    }
    return nearly(problem, op, problem.run(op), want)


def doubled_batch(problem, op, _rng):
    """A batch and itself again: its statistics and means are the same, its sums twice as large."""
    axis = problem.reduced[0]
    doubled = problem.each(lambda a: np.concatenate([a, a], axis), lambda a: a)
    want = {
        name: np.concatenate([value, value], axis) if problem.is_data(name) else value.astype(np.float64)
        for name, value in problem.run(op).items()
    }
    for name in ("dscale", "dbias", "d_scale"):
        if name in want:
            want[name] = want[name] * 2
    if "new_running_var" in want and op.options["unbiased_running_var"]:
        del want["new_running_var"]  # its divisor is M - 1
    return nearly(doubled, op, doubled.run(op), want)


def far_forward(problem, op, _rng):
    """X moved by 1024, where all of its digits still fit: Y is as near to what it was as if X had not moved."""
    near = problem.but(X=_on_a_grid(problem, "X"))
    got, want = near.but(X=near.arrays["X"] + 1024).run(op), near.run(op)
    return nearly(near, op, got, {name: want[name] for name in ("Y", "saved_inv_std")})


def shifted_gradient(problem, op, _rng):
    """In training the same number more in all of dY, or ddX, has a part in dbias alone: sum xhat is 0.

    To be so exactly, X is a batch and then minus that batch, with the mean 0.
    """
    axis, dues = problem.reduced[0], []
    doubled = problem.each(lambda a: np.concatenate([a, a], axis), lambda a: a)
    x = problem.arrays["X"]
    doubled = doubled.but(X=np.concatenate([x, -x], axis), mean=np.zeros(problem.arrays["mean"].shape))
    for name in sorted({"dY", "ddX"} & set(op.inputs)):
        near = doubled.but(**{name: _on_a_grid(doubled, name)})
        got, want = near.but(**{name: near.arrays[name] + 1024}).run(op), near.run(op)
        unmoved = {output: want[output] for output in op.outputs if output != "dbias"}
        # Of sums in double, of terms as large as this.
        own = 1024 * near.count * 2.0**-48
        dues += [
            due._replace(what=f"{name}: {due.what}", allowed=due.allowed + own)
            for due in nearly(near, op, got, unmoved)
        ]
    return dues


def _on_a_grid(problem, name):
    return np.round(problem.arrays[name].astype(np.float64) * 16) / 16


def far_statistics(problem, op, _rng):
    """Even numbers about 2^53, where no mean of them need be a double: what is computed of the rest of them."""
    near = problem.but(X=np.round(problem.arrays["X"] * 8) * 2)
    got, want = near.but(X=near.arrays["X"] + 2.0**53).run(op), near.run(op)
    names = {"Y", "saved_inv_std", "inv_std"} & want.keys()
    return nearly(near, op, got, {name: want[name] for name in sorted(names)})


def past_the_cache(problem, op, _rng):
    """Outputs so large that they are written past the cache; ONNX Runtime's begin at a cache line."""
    model, feeds = _as_a_model(problem, op)
    return exactly(TypedSession(model, "native")(feeds), problem.run(op))


def doors(problem, op, _rng):
    """ONNX Runtime's door to the kernels, and the op's own definition."""
    model, feeds = _as_a_model(problem, op)
    got, ours = problem.run(op), TypedSession(model, "native")(feeds)
    defined = TypedSession(model, "function")(feeds)
    return [*exactly(ours, got, "native"), *nearly(problem, op, defined, got)]


def _as_a_model(problem, op):
    """The op as a model, and its inputs with one of the axes counted from the end."""
    types = {
        name: type_name
        for type_name, dtype in TYPES.items()
        for name in problem.arrays
        if dtype == problem.arrays[name].dtype
    }
    model = typed_model(op.op_type, (types["X"], types["scale"], types["mean"]), **op.options)
    first, *others = problem.axes
    axes = np.array([*others, first - problem.arrays["X"].ndim])
    feeds = {name: problem.arrays[name] for name in op.inputs} | {"axes": axes}
    return model, feeds


def orthogonal(problem, op, _rng):
    """In training no step of X along the mean or along xhat changes Y: dX has no part in them, but for epsilon."""
    own = with_own_statistics(problem).but(running_var=problem.arrays["running_var"])
    a, dx = own.arrays, own.run(op)["dX"].astype(np.float64)
    xhat = (a["X"].astype(np.float64) - own.over_x(a["mean"])) * own.over_x(a["inv_std"])
    sizes = term_sizes(own, op)["dX"]
    precision = ROUNDINGS * precision_of(own, own.run(op)["dX"])
    # sum dX xhat = scale inv_std dscale (1 - sum xhat^2 / M), where the last factor is epsilon inv_std^2.
    left = own.total(dx * xhat)
    dscale = own.total((a["dZ"] if "dZ" in op.inputs else a["dY"]).astype(np.float64) * 0)
    dscale = dscale + own.run(op)["dscale"].astype(np.float64)
    gain = a["scale"].astype(np.float64) * a["inv_std"].astype(np.float64)
    due = gain * dscale * (1 - own.total(xhat * xhat) / own.count)
    return [
        Due("sum dX", own.total(dx), np.zeros_like(left), precision * own.total(sizes)),
        Due("sum dX xhat", left, due, precision * own.total(sizes * (1 + np.abs(xhat)))),
    ]


def normalized(problem, op, _rng):
    """Y has the mean bias, and the variance scale^2 (1 - epsilon inv_std^2): what the statistics are for."""
    got, a = problem.run(op), problem.arrays
    y = (got["Y"].astype(np.float64) - problem.over_x(a["bias"])) / problem.over_x(a["scale"])
    inv_std = got["saved_inv_std"].astype(np.float64)
    size = problem.total(term_sizes(problem, op)["Y"] / problem.over_x(a["scale"]) * (1 + np.abs(y)))
    allowed = 2 * ROUNDINGS * precision_of(problem, got["Y"]) * size
    return [
        Due("sum Y", problem.total(y), np.zeros_like(inv_std), allowed),
        Due("sum Y^2", problem.total(y * y), problem.count * (1 - EPSILON * inv_std**2), allowed),
    ]


def running_values(problem, op, _rng):
    """The new running values are the weighted means of the old and the batch's, which inv_std and mean tell."""
    got, a = problem.run(op), problem.arrays
    variance = 1 / got["saved_inv_std"].astype(np.float64) ** 2 - EPSILON
    if op.options["unbiased_running_var"]:
        variance = variance * problem.count / (problem.count - 1)
    want = {
        "new_running_mean": MOMENTUM * a["running_mean"].astype(np.float64)
        + (1 - MOMENTUM) * got["saved_mean"].astype(np.float64),
        "new_running_var": MOMENTUM * a["running_var"].astype(np.float64) + (1 - MOMENTUM) * variance,
    }
    return nearly(problem, op, {name: got[name] for name in want}, want)
