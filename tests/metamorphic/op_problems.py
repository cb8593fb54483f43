"""The ops on named arrays, by the C interface or their functions, and the sizes of the terms in their outputs.

No number here is an expected result: `term_sizes` evaluates the formulas with absolute values, which bounds the
rounding error of an output.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from bngrad.runtime import native
from ort_values import TypedSession
from typed_ops import typed_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EPSILON, MOMENTUM = 2.0**-6, 0.75
"""Numbers with few significant bits, which relations can multiply without rounding."""

TYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
PRECISION = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative rounding error, by dtype."""

PATTERNS = {
    "NCHW": ((3, 5, 7, 9), (0, 2, 3)),
    "NHWC": ((3, 7, 9, 5), (0, 1, 2)),
    "NC": ((300, 70), (0,)),
    "per-activation": ((6, 3, 4), (0,)),
    "mixed": ((3, 4, 5, 6), (1, 3)),
    "one-element-rows": ((9, 33, 1), (0, 2)),
    "short-rows": ((13, 3, 21), (0, 2)),
    "many-rows": ((520, 2, 70), (0, 2)),
    "long-rows": ((2, 3, 20011), (0, 2)),
    "folded": ((14001, 3), (0,)),
    "wide": ((34, 1100), (0,)),
    "wide-and-long": ((1100, 70), (0,)),
    "non-temporal": ((33000, 65), (0,)),
}
"""Shapes and axes that exercise full vectors and tails, rows and columns, and several tiles and segments."""

SMALL = ("NCHW", "NHWC", "NC", "per-activation", "mixed", "one-element-rows", "short-rows")

_DATA = ("X", "dY", "ddX", "dZ", "Z")
_STATISTICS = ("mean", "inv_std", "running_mean", "running_var")
_PARAMETERS = ("scale", "bias", "ddscale", "ddbias", *_STATISTICS)


@dataclass(frozen=True)
class Op:
    """An op in a mode, with the names of its inputs and outputs in order."""

    op_type: str
    function: Callable[..., tuple[np.ndarray, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, float]


def _modes(op_type, function, inputs, outputs):
    return [Op(op_type, function, inputs, outputs, {"training_mode": mode}) for mode in (1, 0)]


_GIVEN = ("X", "scale", "mean", "inv_std")
_GRAD = _modes(
    "BatchNormalizationGrad", native.batch_normalization_grad, ("dY", *_GIVEN), ("dX", "dscale", "dbias")
)
_RELU = _modes(
    "BatchNormalizationReluGrad",
    native.batch_normalization_relu_grad,
    ("dZ", "Z", *_GIVEN),
    ("dX", "dscale", "dbias"),
)
_SECOND = _modes(
    "BatchNormalizationGradGrad",
    native.batch_normalization_grad_grad,
    ("ddX", "ddscale", "ddbias", "dY", *_GIVEN),
    ("d_dY", "d_X", "d_scale"),
)
_FORWARD = [
    Op(
        "BatchNormalizationTraining",
        native.batch_normalization_training,
        ("X", "scale", "bias", "running_mean", "running_var"),
        ("Y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"),
        {"epsilon": EPSILON, "momentum": MOMENTUM, "unbiased_running_var": unbiased},
    )
    for unbiased in (1, 0)
]
_STATISTICS_OP = Op(
    "BatchNormalizationStatistics",
    native.batch_normalization_statistics,
    ("X",),
    ("mean", "inv_std"),
    {"epsilon": EPSILON},
)

OPS = {
    "grad-training": _GRAD[0],
    "grad-frozen": _GRAD[1],
    "relu-grad-training": _RELU[0],
    "relu-grad-frozen": _RELU[1],
    "grad-grad-training": _SECOND[0],
    "grad-grad-frozen": _SECOND[1],
    "training-unbiased": _FORWARD[0],
    "training-biased": _FORWARD[1],
    "statistics": _STATISTICS_OP,
}


@dataclass(frozen=True)
class Problem:
    """The inputs of all ops, by name, and what computes them: the C interface, or the functions."""

    arrays: Mapping[str, np.ndarray]
    axes: tuple[int, ...]
    implementation: str = "native"

    @cached_property
    def reduced(self):
        return tuple(sorted(axis % self.arrays["X"].ndim for axis in self.axes))

    @cached_property
    def kept(self):
        return tuple(i for i in range(self.arrays["X"].ndim) if i not in self.reduced)

    @property
    def count(self):
        """M, the number of elements per channel."""
        return int(np.prod([self.arrays["X"].shape[axis] for axis in self.reduced]))

    def run(self, op, *, threads=1, **options):
        """Runs an op and returns its outputs by name."""
        if self.implementation == "function":
            return _function_session(op.op_type, self.types, **{**op.options, **options})(self.feeds(op))
        arguments = [self.arrays[name] for name in op.inputs]
        results = op.function(*arguments, self.axes, **{**op.options, **options}, num_threads=threads)
        return dict(zip(op.outputs, results, strict=True))

    @property
    def types(self):
        """T, T1 and T2: the types of the data, the parameters and the statistics."""
        names = {dtype: name for name, dtype in TYPES.items()}
        return tuple(names[self.arrays[name].dtype] for name in ("X", "scale", "mean"))

    @property
    def precision_of_sums(self):
        """The rounding of the sums relative to their largest term: in double; those of functions in their type."""
        return 2.0**-24 if self.implementation == "function" and self.arrays["X"].dtype != np.float64 else 2.0**-48

    def feeds(self, op):
        """Returns the inputs of a model with the op, one axis of which is negative."""
        first, *others = self.axes
        axes = np.array([*others, first - self.arrays["X"].ndim if first >= 0 else first])
        return {name: self.arrays[name] for name in op.inputs} | {"axes": axes}

    def with_arrays(self, **arrays):
        """Returns a copy with some arrays replaced, cast to the types of the old ones."""
        typed = {name: np.asarray(array).astype(self.arrays[name].dtype) for name, array in arrays.items()}
        return replace(self, arrays={**self.arrays, **typed})

    def map_arrays(self, data, parameter):
        """Returns a copy with one function applied to the arrays of X's shape and another to the parameters."""
        functions = {name: data if name in _DATA else parameter for name in self.arrays}
        return replace(self, arrays={n: np.ascontiguousarray(functions[n](a)) for n, a in self.arrays.items()})

    def permuted(self, op, rng):
        """Yields a copy for each kept axis with its channels permuted, and the expected outputs."""
        for place, axis in enumerate(self.kept):
            order = rng.permutation(self.arrays["X"].shape[axis])
            moved = self.map_arrays(
                lambda a, i=axis, o=order: a.take(o, i), lambda a, i=place, o=order: a.take(o, i)
            )
            outputs = self.run(op).items()
            yield moved, {n: a.take(order, axis if self.is_data(n) else place) for n, a in outputs}

    def over_x(self, parameter):
        """Returns a parameter in float64 in a shape that broadcasts against X."""
        return np.expand_dims(np.asarray(parameter, np.float64), self.reduced)

    def total(self, data):
        """Returns the sum over the reduced axes in float64."""
        return np.sum(np.asarray(data, np.float64), axis=self.reduced)

    def is_data(self, output):
        """Returns whether an output has X's shape."""
        return output in ("dX", "d_dY", "d_X", "Y")


@cache
def _function_session(op_type, types, **options):
    return TypedSession(typed_model(op_type, types, **options), "function")


def draw(pattern, type_name, seed=0, implementation="native"):
    """Draws inputs of about 1; Z is the output of a ReLU."""
    shape, axes = PATTERNS[pattern]
    rng = np.random.default_rng([seed, zlib.crc32(pattern.encode())])
    dtype = TYPES[type_name]
    statistic = dtype if dtype == np.float64 else np.dtype(np.float32)
    kept = tuple(size for i, size in enumerate(shape) if i not in axes)
    arrays = {name: (rng.standard_normal(shape) + 0.25).astype(dtype) for name in _DATA}
    arrays["Z"] = np.maximum(arrays["Z"], np.zeros((), dtype))
    for name in _PARAMETERS:
        away_from_zero = name in ("inv_std", "running_var", "scale")
        drawn = rng.uniform(0.5, 2, kept) if away_from_zero else rng.standard_normal(kept)
        arrays[name] = drawn.astype(statistic)
    return Problem(arrays, axes, implementation)


def with_own_statistics(problem):
    """Returns a copy whose mean and inv_std are those of X, rounded to their type."""
    x = problem.arrays["X"].astype(np.float64)
    mean = problem.total(x) / problem.count
    variance = problem.total((x - problem.over_x(mean)) ** 2) / problem.count
    return problem.with_arrays(mean=mean, inv_std=1 / np.sqrt(variance + EPSILON))


def term_sizes(problem, op):
    """Returns the sum of absolute values of the terms of each output, which bounds each rounding error."""
    a = {name: np.abs(array.astype(np.float64)) for name, array in problem.arrays.items()}
    training, count = op.options.get("training_mode"), problem.count

    def mean(data):
        return problem.over_x(problem.total(data) / count)

    if "new_running_mean" in op.outputs or "mean" in op.outputs:
        return _forward_sizes(problem, a, mean, op)
    inv_std, gain = problem.over_x(a["inv_std"]), problem.over_x(a["scale"] * a["inv_std"])
    xhat = (a["X"] + problem.over_x(a["mean"])) * inv_std
    dy = a["dZ"] if "dZ" in op.inputs else a["dY"]
    through = mean(dy) + xhat * mean(dy * xhat)
    of_dy = dy + through if training else dy
    if "dX" in op.outputs:
        return {"dX": gain * of_dy, "dscale": problem.total(dy * xhat), "dbias": problem.total(dy)}
    ddx, ddscale = a["ddX"], problem.over_x(a["ddscale"])
    of_ddx = ddx + mean(ddx) + xhat * mean(ddx * xhat) if training else ddx
    d_x = ddscale * inv_std * of_dy
    if training:
        meeting = xhat * mean(ddx * of_dy) + mean(dy * xhat) * of_ddx + mean(ddx * xhat) * of_dy
        d_x = d_x + gain * inv_std * meeting
    return {
        "d_dY": gain * of_ddx + ddscale * xhat + problem.over_x(a["ddbias"]),
        "d_X": d_x,
        "d_scale": a["inv_std"] * problem.total(ddx * of_dy),
    }


def _forward_sizes(problem, a, mean, op):
    """Returns the term sizes of the forward op; the terms of the variance are at most (|X| + |mean|)^2."""
    x = problem.arrays["X"].astype(np.float64)
    center = mean(x)
    spread = mean((x - center) ** 2) + EPSILON
    inv_std = 1 / np.sqrt(spread)
    of_mean = problem.total(a["X"]) / problem.count
    of_inv_std = (inv_std * mean((a["X"] + np.abs(center)) ** 2) / spread).reshape(of_mean.shape)
    if op is _STATISTICS_OP:
        return {"mean": of_mean, "inv_std": of_inv_std}
    of_var = problem.total((a["X"] + np.abs(center)) ** 2) / problem.count * 2
    gain = problem.over_x(a["scale"]) * problem.over_x(of_inv_std)
    return {
        "Y": gain * (a["X"] + np.abs(center)) + problem.over_x(a["bias"]),
        "new_running_mean": a["running_mean"] + of_mean,
        "new_running_var": a["running_var"] + of_var,
        "saved_mean": of_mean,
        "saved_inv_std": of_inv_std,
    }
