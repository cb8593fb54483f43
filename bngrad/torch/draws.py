"""Translations of PyTorch's random draws: each is computed from uniform or normal numbers.

`torch.onnx.export` lacks some of them, draws one number for all elements of others, and writes a Bernoulli, which
ONNX Runtime draws with the probability of its opposite. No draw has a gradient, as in PyTorch. `randomness` fixes
draws by the same formulas.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.distributions import Distribution

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.onnx_ops import detach, op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATEN = torch.ops.aten
_TINY = 1e-37
"""The smallest draw, so that its logarithm is finite."""


def draws() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The entries for random draws in the custom translation table of `torch.onnx.export`."""
    return {
        _ATEN.uniform.default: _uniform,
        _ATEN.exponential.default: _exponential,
        _ATEN.log_normal.default: _log_normal,
        _ATEN.geometric.default: _geometric,
        _ATEN.cauchy.default: _cauchy,
        _ATEN.bernoulli.default: _bernoulli,
        _ATEN.bernoulli.p: _bernoulli_of_number,
        _ATEN.bernoulli.Tensor: _bernoulli_of_tensor,
        _ATEN.normal.Tensor_float: _normal_around,
        _ATEN.normal.float_Tensor: _normal_with,
        _ATEN.normal.Tensor_Tensor: _normal,
        _ATEN.randperm.default: _permutation,
        _ATEN.multinomial.default: _multinomial,
        _ATEN.rrelu_with_noise_functional.default: _rrelu,
    }


def _number(value: float, like: Any) -> Any:  # noqa: ANN401 - of onnxscript's
    return op.CastLike(op.Constant(value_float=float(value)), like)


def _unit(like: Any) -> Any:  # noqa: ANN401
    """Uniform numbers from 0 to below 1, of a type of floats."""
    return op.RandomUniformLike(like)


def _uniform(self: Any, low: float = 0.0, high: float = 1.0) -> Any:  # noqa: ANN401
    return op.RandomUniformLike(self, low=low, high=high)


def _waiting_time(like: Any) -> Any:  # noqa: ANN401
    """Draws from the exponential distribution of rate 1: -log(1 - u), which is finite."""
    return op.Neg(op.Log(op.Sub(_number(1, like), _unit(like))))


def _exponential(self: Any, lambd: float = 1.0) -> Any:  # noqa: ANN401
    return op.Div(_waiting_time(self), _number(lambd, self))


def _log_normal(self: Any, mean: float = 1.0, std: float = 2.0) -> Any:  # noqa: ANN401
    return op.Exp(op.RandomNormalLike(self, mean=mean, scale=std))


def _geometric(self: Any, p: float) -> Any:  # noqa: ANN401
    """The number of trials to the first success."""
    rate = op.Neg(op.Log(op.Sub(_number(1, self), _number(p, self))))
    return op.Max(op.Ceil(op.Div(_waiting_time(self), rate)), _number(1, self))


def _cauchy(self: Any, median: float = 0.0, sigma: float = 1.0) -> Any:  # noqa: ANN401
    angle = op.Mul(op.Sub(_unit(self), _number(0.5, self)), _number(math.pi, self))
    return op.Add(op.Mul(op.Tan(angle), _number(sigma, self)), _number(median, self))


def _bernoulli(self: Any) -> Any:  # noqa: ANN401
    return _bernoulli_of_tensor(self, self)


def _bernoulli_of_number(self: Any, p: float) -> Any:  # noqa: ANN401
    return _bernoulli_of_tensor(self, op.Constant(value_float=float(p)))


def _bernoulli_of_tensor(self: Any, p: Any) -> Any:  # noqa: ANN401
    drawn = op.RandomUniformLike(self, dtype=ir.DataType.FLOAT)
    return op.CastLike(op.Less(drawn, op.Cast(p, to=ir.DataType.FLOAT)), self)


def _normal_around(mean: Any, std: float = 1.0) -> Any:  # noqa: ANN401
    return op.Add(detach(mean), op.RandomNormalLike(mean, scale=std))


def _normal_with(mean: float, std: Any) -> Any:  # noqa: ANN401
    return op.Add(op.Mul(op.RandomNormalLike(std), detach(std)), _number(mean, std))


def _normal(mean: Any, std: Any) -> Any:  # noqa: ANN401
    return op.Add(detach(mean), op.Mul(op.RandomNormalLike(op.Add(mean, std)), detach(std)))


def _permutation(n: Any, dtype: int = ir.DataType.INT64, **_: Any) -> Any:  # noqa: ANN401
    """The order of uniform numbers."""
    size = op.Constant(value_ints=[n]) if isinstance(n, int) else op.Reshape(n, op.Constant(value_ints=[1]))
    keys = op.RandomUniformLike(op.ConstantOfShape(size), dtype=ir.DataType.FLOAT)
    _, order = op.TopK(keys, size)
    return order if dtype in (-1, ir.DataType.INT64) else op.Cast(order, to=dtype)


def _multinomial(self: Any, num_samples: int, replacement: bool = False) -> Any:  # noqa: ANN401
    """ONNX's Multinomial with replacement; without, the categories with the shortest exponential waiting times."""
    if not isinstance(num_samples, int):
        raise UnsupportedNodeError(
            "the number of samples of torch.multinomial depends on a size that is symbolic; expected a number"
        )
    is_vector = len(self.shape) == 1
    rows = op.Unsqueeze(self, op.Constant(value_ints=[0])) if is_vector else self
    logits = op.Log(op.Cast(rows, to=ir.DataType.FLOAT))
    if replacement or num_samples == 1:
        drawn = op.Multinomial(logits, sample_size=num_samples, dtype=ir.DataType.INT64)
    else:
        times = op.Max(_waiting_time(logits), _number(_TINY, logits))
        _, drawn = op.TopK(op.Sub(logits, op.Log(times)), op.Constant(value_ints=[num_samples]))
    return op.Squeeze(drawn, op.Constant(value_ints=[0])) if is_vector else drawn


def _rrelu(
    self: Any,  # noqa: ANN401
    noise: Any,  # noqa: ANN401, ARG001 - overwritten
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
) -> Any:  # noqa: ANN401
    """aten.rrelu_with_noise_functional -> (Y, the slope of each element)."""
    unit_slope, is_positive = _number(1, self), op.Greater(self, _number(0, self))
    drawn = op.RandomUniformLike(self, low=lower, high=upper) if training else _number((lower + upper) / 2, self)
    slope = op.Where(is_positive, unit_slope, drawn)
    return op.Mul(self, slope), slope


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """Lets `torch.distributions` take their arguments unchecked: `torch.export` cannot trace the checks."""
    original = Distribution.__init__

    def unchecked(self: Distribution, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(self, *args[:2], **{**kwargs, "validate_args": False})

    default = Distribution._validate_args
    distributions: Any = Distribution
    distributions.__init__, distributions._validate_args = unchecked, False
    try:
        yield
    finally:
        distributions.__init__, distributions._validate_args = original, default
