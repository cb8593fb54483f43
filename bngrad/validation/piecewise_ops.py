"""Piecewise ops of ONNX in NumPy, whose branches can be held; see `branches`.

Ops that are constant in pieces, such as Greater and Floor, are held as a whole. What is not in `FUNCTIONS`, such
as TopK, takes its branch in each evaluation.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.opset.axes import normalize_axes
from bngrad.validation.branches import choose
from bngrad.validation.training_ops import attributes_of, op_run, pooling
from bngrad.validation.training_ops._types import default

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import onnx_ir as ir
    from onnx.reference.op_run import OpRun

    from bngrad.validation.training_ops._types import Array, Integers, Mask

_SELU = default(1.67326319217681884765625), default(1.05070102214813232421875)


def relu(X: Array) -> Array:
    """Returns X where it is positive, else 0."""
    return np.where(_positive(X), X, 0)


def leaky_relu(X: Array, *, alpha: float = default(0.01)) -> Array:
    """Returns X where it is positive, else alpha * X."""
    return np.where(_positive(X), X, alpha * X)


def prelu(X: Array, slope: Array) -> Array:
    """Returns X where it is positive, else slope * X."""
    return np.where(_positive(X), X, slope * X)


def thresholded_relu(X: Array, *, alpha: float = 1.0) -> Array:
    """Returns X where it is above alpha, else 0."""
    return np.where(choose(lambda: ~(alpha >= X)), X, 0)


def elu(X: Array, *, alpha: float = 1.0) -> Array:
    """Returns X where it is positive, else alpha * (exp(X) - 1)."""
    return np.where(_positive(X), X, alpha * np.expm1(X))


def selu(X: Array, *, alpha: float = _SELU[0], gamma: float = _SELU[1]) -> Array:
    """Returns gamma * elu(X)."""
    return gamma * elu(X, alpha=alpha)


def celu(X: Array, *, alpha: float = 1.0) -> Array:
    """Returns X where it is positive, else alpha * (exp(X / alpha) - 1)."""
    return np.where(_positive(X), X, alpha * np.expm1(X / alpha))


def hard_sigmoid(X: Array, *, alpha: float = default(0.2), beta: float = 0.5) -> Array:
    """Returns alpha * X + beta, from 0 to 1."""
    return clip(alpha * X + beta, 0.0, 1.0)


def hard_swish(X: Array) -> Array:
    """Returns X * hard_sigmoid(X) with alpha = 1 / 6."""
    return X * hard_sigmoid(X, alpha=default(1 / 6))


def clip(
    X: Array,
    low: Array | float | None = None,
    high: Array | float | None = None,
    *,
    min: float | None = None,  # noqa: A002 - the attributes of opset 6
    max: float | None = None,  # noqa: A002
) -> Array:
    """Returns X from low to high; high if low is above it."""
    lower, upper = min if low is None else low, max if high is None else high
    raised = X if lower is None else np.where(choose(lambda: np.less(X, lower)), lower, X).astype(X.dtype)
    if upper is None:
        return raised
    return np.where(choose(lambda: np.greater(raised, upper)), upper, raised).astype(X.dtype)


def absolute(X: Array) -> Array:
    """Returns |X|."""
    return X * choose(lambda: np.sign(X))


def largest(*inputs: Array) -> Array:
    """Returns the elementwise maximum of all inputs."""
    return reduce(lambda a, b: np.where(choose(lambda: (a >= b) | np.isnan(a)), a, b), inputs)


def smallest(*inputs: Array) -> Array:
    """Returns the elementwise minimum of all inputs."""
    return reduce(lambda a, b: np.where(choose(lambda: (a <= b) | np.isnan(a)), a, b), inputs)


def max_pool(X: Array, **attributes: Any) -> tuple[Array, Integers]:  # noqa: ANN401 - those of `pooling.max_pool`
    """Returns the largest element of each window, and its index; see `pooling.max_pool`."""

    def places(**order: int) -> Integers:
        return choose(lambda: pooling.max_pool(X, **{**attributes, **order})[1])

    largest = places(storage_order=0)
    return X.reshape(-1)[largest], places() if attributes.get("storage_order") else largest


def _reduction(
    extreme: Callable[..., Array], place: Callable[..., Integers], empty: float
) -> Callable[..., Array]:
    def reduced(
        X: Array,
        chosen: Integers | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Array:
        """Returns the extreme of the elements along some axes; an op has them as an attribute, or as an input."""
        axes = axes if chosen is None else [int(axis) for axis in chosen]
        if not axes and noop_with_empty_axes:
            return X
        along = normalize_axes(axes or range(X.ndim), X.ndim)
        kept = [axis for axis in range(X.ndim) if axis not in along]
        shape = [1 if axis in along else size for axis, size in enumerate(X.shape)] if keepdims else None
        if X.dtype.kind != "f" or not X.size:
            initial = {"initial": empty} if X.dtype.kind == "f" else {}
            return np.asarray(extreme(X, axis=tuple(along), keepdims=bool(keepdims), **initial))
        sizes = [X.shape[axis] for axis in kept]
        rows = X.transpose(*kept, *along).reshape(*sizes, -1)
        index = choose(lambda: place(rows, axis=-1, keepdims=True))
        return np.take_along_axis(rows, index, axis=-1).reshape(sizes if shape is None else shape)

    return reduced


reduce_max = _reduction(np.max, np.argmax, -np.inf)
reduce_min = _reduction(np.min, np.argmin, np.inf)


def global_max_pool(X: Array) -> Array:
    """Returns the largest element over the spatial dimensions, which are kept with size 1."""
    return reduce_max(X, axes=range(2, X.ndim))


def _positive(X: Array) -> Mask:
    return choose(lambda: ~(X <= 0))  # NaN goes on


def _whole(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns an op that is constant in pieces, and held as a whole."""

    def run(*inputs: Array) -> Array:
        return choose(lambda: np.asarray(function(*inputs)))

    return run


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Abs": absolute,
    "Ceil": _whole(np.ceil),
    "Celu": celu,
    "Clip": clip,
    "Elu": elu,
    "Floor": _whole(np.floor),
    "GlobalMaxPool": global_max_pool,
    "Greater": _whole(np.greater),
    "GreaterOrEqual": _whole(np.greater_equal),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LeakyRelu": leaky_relu,
    "Less": _whole(np.less),
    "LessOrEqual": _whole(np.less_equal),
    "Max": largest,
    "MaxPool": max_pool,
    "Min": smallest,
    "PRelu": prelu,
    "ReduceMax": reduce_max,
    "ReduceMin": reduce_min,
    "Relu": relu,
    "Round": _whole(np.round),
    "Selu": selu,
    "Sign": _whole(np.sign),
    "ThresholdedRelu": thresholded_relu,
}
"""The function of each op, by the op type."""

OP_RUNS = {op_type: op_run("", op_type, function) for op_type, function in FUNCTIONS.items()}
"""The ops as classes, for ``ReferenceEvaluator(new_ops=...)``."""


def piecewise_ops(nodes: Iterable[ir.Node]) -> list[type[OpRun]]:
    """Returns the classes of the ops of some nodes, without those of which a node has another attribute."""
    types: dict[str, set[str]] = {}
    for node in nodes:
        if node.domain == "" and node.op_type in FUNCTIONS:
            types.setdefault(node.op_type, set()).update(node.attributes)
    return [OP_RUNS[op_type] for op_type, names in types.items() if names <= _attributes_of(op_type)]


def _attributes_of(op_type: str) -> frozenset[str]:
    return attributes_of(pooling.max_pool if op_type == "MaxPool" else FUNCTIONS[op_type])
