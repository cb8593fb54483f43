"""Decides numerically whether an expression is a batch norm in any reading; a near miss is not.

A reading of the forward pass is y = scale * (w - mean w) / sqrt(var w + e) + bias over any axes with the batch,
for any value w without a reduction under it, any e, and any scale and bias that do not depend on the data.
A reading of the backward pass is dX = k * (g - mean g - (x - m) * sum(g * (x - m)) * r / M), for the mean of x or
any given m, such as 0, and any factors k and r > 0 of each channel.
"""

from __future__ import annotations

import warnings
from functools import wraps
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np

from spellings.expressions import topological

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spellings.expressions import Node, Space

    Leaves = Mapping[str, np.ndarray]

DRAWS = 5
FEWEST_DRAWS = 3
GRADIENTS = ("dy", "dy2")
DIFFERENT = 1e-3
"""The relative distance above which something is not a reading."""


def _quiet(function):
    """Silences NumPy's warnings in a function: a near miss may divide by zero."""

    @wraps(function)
    def run(*args, **kwargs):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of polyfit
            return function(*args, **kwargs)

    return run


def finite(space: Space, roots: Sequence[Node], leaves: Leaves) -> bool:
    return all(np.isfinite(value).all() and np.abs(value).max() < 1e6 for value in space.evaluate(roots, leaves))


@_quiet
def reads_forward(space: Space, roots: Sequence[Node], draw: Callable[[set[str]], Leaves]) -> bool:
    """Returns whether any value of data under the roots is the forward pass.

    Args:
        space: Of the expressions.
        roots: They.
        draw: Draws leaves, those of these names anew.
    """
    inputs, results = _data(space, roots, gradients=False)
    runs = [draw({"x", "x2", "other", "mean", "mean2", "var", "var2"}) for _ in range(DRAWS)]
    values = _evaluated(space, [*inputs, *results], runs)
    if not all(np.isfinite(value).all() for value in values):
        return True
    ys = np.stack(values[len(inputs) :])
    for w, axes in product(values[: len(inputs)], _axes(space)):
        along = tuple(axis - w.ndim + 1 for axis in axes)
        mean, var = w.mean(axis=along, keepdims=True), w.var(axis=along, keepdims=True)
        live = var.reshape(DRAWS, -1).min(axis=1) > 1e-9  # A ReLU may leave nothing of a channel.
        if live.sum() < FEWEST_DRAWS or _is_any_normalized(ys[:, live], (w - mean)[live], var[live], along):
            return True
    return False


def _evaluated(space: Space, nodes: Sequence[Node], runs: Sequence[Leaves]) -> list[np.ndarray]:
    """The values of nodes in all draws."""
    leaves = {name: np.stack([run[name] for run in runs]) for name in runs[0]}
    size = len(space.sizes)
    return [
        value if value.ndim > size else np.broadcast_to(value, (len(runs), *value.shape))
        for value in space.evaluate(nodes, leaves)
    ]


def _is_any_normalized(ys: np.ndarray, centered: np.ndarray, var: np.ndarray, along: tuple[int, ...]) -> bool:
    middle = ys.mean(axis=along, keepdims=True)
    slope = (ys * centered).mean(axis=along, keepdims=True) / var
    size = _largest(ys - middle)
    apart = _largest(ys - middle - slope * centered) > DIFFERENT * size
    moved = _largest(middle - middle[:, :1]) > DIFFERENT * np.maximum(1e-3, _largest(ys))
    return any(_is_inverse_root(candidate, var) for candidate in slope[~((size == 0) | apart | moved)])


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest number of each value."""
    return np.abs(values).reshape(len(values), -1).max(axis=1)


def _is_inverse_root(slope: np.ndarray, var: np.ndarray) -> bool:
    """Returns whether slope = s / sqrt(var + e) for any s and e of each channel."""
    slope, var = slope.reshape(len(slope), -1), var.reshape(len(slope), -1)
    for slopes, variances in zip(slope.T, var.T, strict=True):
        a, v = slopes[np.isfinite(slopes)], variances[np.isfinite(slopes)]
        if len(a) < FEWEST_DRAWS:
            continue
        if np.abs(a).min() == 0 or np.ptp(np.sign(a)):
            return False
        inverse = 1 / a**2
        rise, start = np.polyfit(v, inverse, 1)
        if np.abs(rise * v + start - inverse).max() > DIFFERENT * inverse.min():
            return False
        if rise * np.ptp(v) < 0.01 * inverse.max():
            return False
    return True


@_quiet
def reads_backward(space: Space, roots: Sequence[Node], draw: Callable[[set[str]], Leaves]) -> bool:
    """Returns whether any value of data under the roots is the backward pass, with the batch's or a given mean.

    Args:
        space: Of the expressions.
        roots: They.
        draw: Draws leaves, those of these names anew.
    """
    data, _ = _data(space, roots, gradients=False)
    plain, others = _data(space, roots, gradients=True)
    runs = _with_other_gradients(draw, DRAWS)
    values = _evaluated(space, [*data, *plain, *others], runs)
    if not all(np.isfinite(value).all() for value in values):
        return True
    changes = [value[1:] - value[:1] for value in values[len(data) :]]
    readings = product(_axes(space), values[: len(data)], changes[: len(plain)])
    for axes, (x, *_), g in readings:
        outputs = changes[len(plain) :]
        if outputs and _is_any_gradient(np.stack(outputs), g, x, axes):
            return True
        reduced = axes == tuple(sorted(space.reduced))
        if reduced and any(_is_gradient_with_any_mean(u, g, x, axes) for u in outputs):
            return True
    return False


def _is_any_gradient(us: np.ndarray, g: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Returns whether any value is k * first + beta * second with - k / beta > 0 for each channel.

    A channel whose x or g is constant, as after a ReLU, has no second term.
    """
    along = tuple(axis - x.ndim for axis in axes)
    centered = x - x.mean(axis=along, keepdims=True)
    first = g - g.mean(axis=along, keepdims=True)
    second = centered * (g * centered).mean(axis=along, keepdims=True)

    def dot_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b).sum(axis=(-x.ndim - 1, *along), keepdims=True)

    aa, ab, bb = dot_of(first, first), dot_of(first, second), dot_of(second, second)
    ua, ub = dot_of(us, first), dot_of(us, second)
    determinant = aa * bb - ab * ab
    live = determinant > 1e-12
    k = np.where(live, (ua * bb - ub * ab) / determinant, np.where(aa > 0, ua / aa, 0.0))
    beta = np.where(live, (ub * aa - ua * ab) / determinant, 0.0)
    size = _largest(us)
    apart = _largest(us - k * first - beta * second) > DIFFERENT * size
    positive = (~live | ~(k / beta >= 0)).reshape(len(us), -1).all(axis=1)
    return bool(np.any(positive & ~apart & (size > 0)))


def _is_gradient_with_any_mean(u: np.ndarray, g: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Returns whether a value is such a gradient, with x - m for any m of each channel.

    With G = sum g and D = sum g x it is a g + b G + c x D + d (x G + D), where m = -d / c and b = -a / M + c m^2.
    """
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    data = np.transpose(x, (*kept, *axes)).reshape(int(np.prod([x.shape[axis] for axis in kept], dtype=int)), -1)
    forward = (0, *(axis + 1 for axis in (*kept, *axes)))
    us, gs = (np.transpose(array, forward).reshape(len(array), *data.shape) for array in (u, g))
    for channel, row in enumerate(data):
        dx, dy = us[:, channel], gs[:, channel]
        if np.abs(dy).max() == 0:
            continue
        total, dot = dy.sum(axis=1, keepdims=True), (dy * row).sum(axis=1, keepdims=True)
        terms = [dy, total + 0 * row, row * dot, row * total + dot]
        basis = np.stack([term.ravel() for term in terms], axis=1)
        fit, _, rank, _ = np.linalg.lstsq(basis, dx.ravel(), rcond=1e-9)
        if rank < len(terms):  # A ReLU left one gradient of the channel, which is not enough.
            continue
        a, b, c, d = fit
        size = np.abs(dx).max()
        if np.abs(basis @ fit - dx.ravel()).max() > DIFFERENT * size or c * a >= 0:
            return False
        if abs(b + a / row.size - d * d / c) * np.abs(total).max() > DIFFERENT * size:
            return False
    return True


def _with_other_gradients(draw: Callable[[set[str]], Leaves], number: int) -> list[Leaves]:
    """One draw of all leaves, and others that differ from it only in gradients."""
    first = draw(set())
    others = [draw(set(GRADIENTS)) for _ in range(number)]
    return [first, *({**first, **{name: other[name] for name in GRADIENTS if name in other}} for other in others)]


def _given(leaves: Leaves, name: str, *more: np.ndarray) -> list[np.ndarray]:
    """The leaves of a name and its alternatives, and more arrays."""
    return [*(leaves[key] for key in (name, f"{name}2") if key in leaves), *more]


@_quiet
def reads_frozen_forward(space: Space, roots: Sequence[Node], draw: Callable[[set[str]], Leaves]) -> bool:
    """Returns whether data under the roots is scale / sqrt(var + e) * w + bias for a given var and any data w."""
    inputs, results = _data(space, roots, gradients=False)
    runs = [draw({"x", "x2", "var", "var2"}) for _ in range(DRAWS)]
    values = _evaluated(space, [*inputs, *results], runs)
    if not all(np.isfinite(value).all() for value in values):
        return True
    variances = [np.stack(draws) for draws in zip(*(_given(run, "var") for run in runs), strict=True)]
    variances += [1 / variance for variance in variances]
    pairs = product(values[len(inputs) :], values[: len(inputs)])
    slopes = [slope for y, x in pairs if (slope := _slope(space, y, x)) is not None]
    return any(_is_inverse_root(slope, var) for slope, var in product(slopes, variances))


def _slope(space: Space, y: np.ndarray, x: np.ndarray) -> np.ndarray | None:
    """The a of y = a x + b for each channel; None if y is not of this form."""
    along = tuple(axis + 1 for axis in sorted(space.reduced))
    middle = x.mean(axis=along, keepdims=True)
    centered = x - middle
    slope = (y * centered).mean(axis=along, keepdims=True) / (centered**2).mean(axis=along, keepdims=True)
    offset = y.mean(axis=along, keepdims=True) - slope * middle
    return None if np.abs(y - offset - slope * x).max() > DIFFERENT * np.abs(y).max() else slope


@_quiet
def reads_scale_gradient(space: Space, roots: Sequence[Node], draw: Callable[[set[str]], Leaves]) -> bool:
    """Returns whether a dscale under the roots combines sum g * w and sum g, of any gradient g and data w.

    A dscale is an output, or a value that something other than arithmetic reads.
    """
    choices = [arg for node in topological(roots) if node.op in ("relu", "abs", "gate") for arg in node.args]
    candidates = [node for node in dict.fromkeys((*roots, *choices)) if node.axes and 0 not in node.axes]
    data, _ = _data(space, roots, gradients=False)
    plain, _ = _data(space, roots, gradients=True)
    runs = _with_other_gradients(draw, 2 * DRAWS)
    values = _evaluated(space, [*data, *plain, *candidates], runs)
    if not all(np.isfinite(value).all() for value in values):
        return True
    changes = [value[1:] - value[:1] for value in values[len(data) :]]
    for node, change in zip(candidates, changes[len(plain) :], strict=True):
        axes = tuple(sorted(space.all - node.axes))
        pairs = product(changes[: len(plain)], values[: len(data)])
        # Where a ReLU left no gradient, nothing can be decided.
        if np.abs(change).max() == 0 or any(_is_dot(axes, change, g, x[0]) for g, x in pairs):
            return True
    return False


def _is_dot(axes: tuple[int, ...], d: np.ndarray, g: np.ndarray, x: np.ndarray) -> bool:
    along = tuple(axis + 1 for axis in axes)
    first, second, results = (
        array.reshape(len(g), -1).T for array in ((g * x).sum(axis=along), g.sum(axis=along), d)
    )
    for with_x, without_x, result in zip(first, second, results, strict=True):
        basis = np.stack([with_x, without_x], axis=1)
        fit = np.linalg.lstsq(basis, result, rcond=None)[0]
        if np.abs(basis @ fit - result).max() > DIFFERENT * np.abs(result).max():
            return False
        if np.abs(with_x).max() > 0 and abs(fit[0]) < 1e-9:
            return False
    return True


def _data(space: Space, roots: Sequence[Node], *, gradients: bool) -> tuple[list[Node], list[Node]]:
    """Data that a batch norm may normalize, and its possible results: those with a gradient, or the others.

    The data are inputs, results of ops other than arithmetic, and products of two of them or of one and a
    parameter that varies along reduced axes.
    """
    atoms, others, dependent = [], [], set()
    for node in topological(roots):
        if node.value in GRADIENTS or any(arg in dependent for arg in node.args):
            dependent.add(node)
        if node.axes != space.all or (node in dependent) != gradients or node.value == "residual":
            continue
        others.append(node)
        product_of_data = node.op in ("mul", "pow") and not any(arg.axes <= space.kept for arg in node.args)
        if node.op in ("leaf", "relu", "abs", "gate") or product_of_data:
            atoms.append(node)
    elsewhere = [
        node
        for node in topological(roots)
        if node.op == "leaf" and node.axes != space.all and not node.axes <= space.kept
    ]
    return [*atoms, *(space.mul(atom, leaf) for atom in atoms for leaf in elsewhere)], others


def _axes(space: Space) -> Iterator[tuple[int, ...]]:
    """Every choice of axes with the batch that keeps one and reduces three elements or more."""
    rest = sorted(space.all - {0})
    for number in range(len(rest)):
        for chosen in combinations(rest, number):
            if space.size((0, *chosen)) >= 3:
                yield (0, *chosen)
