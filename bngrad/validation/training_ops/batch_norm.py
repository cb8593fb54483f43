"""Batch norm in ORT's dialect, in ONNX and as ops of ``bngrad``, with `bngrad.opset.reference`.

ONNX's BatchNormalization is implemented here because onnx's reference evaluator uses batch statistics in inference
at opsets 9 to 13, and always computes 1 - momentum in float32.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.opset.quantities import ATTRIBUTES
from bngrad.opset.reference import batch_normalization_grad as reference_grad
from bngrad.opset.reference import batch_normalization_training as reference_training
from bngrad.validation.training_ops._types import default

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.validation.training_ops._types import Array

_EPSILON = default(1e-5)
_MOMENTUM = default(0.9)


def batch_norm_internal(
    X: Array,
    scale: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    *,
    epsilon: float = _EPSILON,
    momentum: float = _MOMENTUM,
    training_mode: int = 1,
) -> tuple[Array, ...]:
    """Returns Y = scale * (X - mean) * inv_std + bias, the new running statistics and the saved statistics.

    new_running = momentum * running + (1 - momentum) * batch, with the biased variance;
    saved_inv_std = 1 / sqrt(biased variance + epsilon).
    """
    if not training_mode:
        raise UnsupportedNodeError("BatchNormInternal has training_mode = 0; ORT's gradient builder writes 1")
    data = _with_channels(X)
    results = reference_training(
        data,
        scale,
        bias,
        running_mean,
        running_var,
        axes=_all_but_channels(data),
        epsilon=float(epsilon),
        momentum=float(momentum),
        unbiased_running_var=False,
    )
    return _like_x(X, results)


def batch_normalization_grad(
    dY: Array,
    X: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_std: Array,
    *,
    epsilon: float = _EPSILON,  # noqa: ARG001  part of the op, but already included in saved_inv_std
) -> tuple[Array, ...]:
    """Returns dX = scale * inv_std * (dY - (dbias + xhat * dscale) / M), dscale = sum dY * xhat, dbias = sum dY.

    xhat = (X - mean) * inv_std, and M is the number of elements per channel.
    """
    data, axes = _with_channels(X), _all_but_channels(_with_channels(X))
    dY = _with_channels(dY)
    results = reference_grad(dY, data, scale, saved_mean, saved_inv_std, axes=axes, training_mode=True)
    return _like_x(X, results)


def batch_normalization(
    X: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = _EPSILON,
    momentum: float = _MOMENTUM,
    training_mode: int = 0,
) -> tuple[Array, ...]:
    """Returns Y = scale * (X - mean) / sqrt(var + epsilon) + bias, mean and var.

    In training mode, it returns the outputs of `batch_norm_internal` without the saved statistics.
    """
    if training_mode:
        results = batch_norm_internal(X, scale, bias, mean, var, epsilon=epsilon, momentum=momentum)
        return results[:3]
    scale_x, bias_x, mean_x, var_x = (p.reshape(-1, *[1] * (X.ndim - 2)) for p in (scale, bias, mean, var))
    return scale_x * (X - mean_x) / np.sqrt(var_x + float(epsilon)) + bias_x, mean, var


def of_bngrad(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Returns an op of ``bngrad``, by its function in `bngrad.opset.reference`; results have the inputs' type."""
    signature = inspect.signature(function)

    def compute(*inputs: Array, **attributes: float | str) -> tuple[Array, ...]:
        return tuple(result.astype(inputs[0].dtype, copy=False) for result in function(*inputs, **attributes))

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) if p.name in ATTRIBUTES else p for p in signature.parameters.values()]
    compute.__doc__ = function.__doc__
    compute.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return compute


def _like_x(X: Array, results: Sequence[Array]) -> tuple[Array, ...]:
    """Converts results to X's type, and the first result to X's shape."""
    data, *others = (result.astype(X.dtype, copy=False) for result in results)
    return data.reshape(X.shape), *others


def _with_channels(X: Array) -> Array:
    """Returns X with a channel dimension; according to ONNX, a vector has one channel."""
    return X[:, np.newaxis] if X.ndim == 1 else X


def _all_but_channels(X: Array) -> list[int]:
    return [axis for axis in range(X.ndim) if axis != 1]
