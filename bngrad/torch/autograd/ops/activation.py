"""Activations, of ONNX and of com.microsoft."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.torch.autograd.table import float32, op

if TYPE_CHECKING:
    from bngrad.autodiff.ties import Tie

_NEVER_LINEAR = 600.0
"""A threshold of `torch.nn.functional.softplus` at which log(1 + exp(x)) is x in double."""

op("Relu")(torch.relu)
op("Sigmoid")(torch.sigmoid)
op("Tanh")(torch.tanh)
op("Softsign")(functional.softsign)
op("HardSwish")(functional.hardswish)


@op("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = float32(0.01)) -> Tensor:
    """X where it is positive, else alpha x."""
    return functional.leaky_relu(x, alpha)


@op("PRelu", since=7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """X where it is positive, else slope x; the slope is broadcast, unlike that of PyTorch's prelu."""
    return torch.where(x > 0, x, slope * x)


@op("Elu")
def elu(x: Tensor, *, alpha: float = 1.0, tie: Tie = "left") -> Tensor:
    """X where it is positive, else alpha (exp(x) - 1)."""
    return _elu(x, alpha, tie)


@op("Selu")
def selu(
    x: Tensor, *, alpha: float = float32(1.67326319), gamma: float = float32(1.05070102), tie: Tie = "left"
) -> Tensor:
    """Gamma elu(x)."""
    return gamma * _elu(x, alpha, tie)


def _elu(x: Tensor, alpha: float, tie: Tie) -> Tensor:
    return torch.where(x >= 0, x, functional.elu(x, alpha)) if tie == "right" else functional.elu(x, alpha)


@op("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return functional.celu(x, alpha)


@op("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """X where it is above alpha, else 0."""
    return functional.threshold(x, alpha, 0.0)


@op("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """X + bias below -lambd, x - bias above lambd, else 0."""
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))


@op("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = float32(0.2), beta: float = 0.5) -> Tensor:
    """Alpha x + beta between 0 and 1."""
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


@op("Softplus")
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return functional.softplus(x, threshold=_NEVER_LINEAR)


@op("Mish")
def mish(x: Tensor) -> Tensor:
    """X tanh(softplus(x)); PyTorch's mish takes softplus for linear above 20."""
    return x * torch.tanh(softplus(x))


@op("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """X sigmoid(alpha x)."""
    return x * torch.sigmoid(alpha * x)


@op("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """X times the normal distribution function of x, or its approximation by tanh."""
    return functional.gelu(x, approximate=approximate)


@op("Gelu", domain=MICROSOFT)
def gelu_of_microsoft(x: Tensor) -> Tensor:
    """Gelu without approximation."""
    return functional.gelu(x)


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Gelu of x + bias."""
    return functional.gelu(x + bias)


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gelu of x + bias, approximated by tanh."""
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = float32(1.702)) -> Tensor:
    """X sigmoid(alpha x)."""
    return x * torch.sigmoid(alpha * x)
