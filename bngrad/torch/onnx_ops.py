"""The ops that translations from PyTorch are written with."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18
from onnxscript.values import Opset

from bngrad.autodiff import stop_gradient

op: Any = opset18  # its functions are typed for tensors of one type


def detach(self: Any) -> Any:  # noqa: ANN401 - of onnxscript's
    """aten.detach -> StopGradient."""
    return Opset(stop_gradient.DOMAIN, 1).StopGradient(self)


def item(self: Any) -> Any:  # noqa: ANN401 - of onnxscript's
    """aten._local_scalar_dense, a number in Python -> StopGradient."""
    return detach(op.Squeeze(self))
