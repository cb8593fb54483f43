"""Converts an optimizer's state of a parameter: tensors of PyTorch to arrays of a training step, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bngrad.errors import InputError
from bngrad.opset.known_shapes import shape_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

STATE_TYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""The types of the state of a training step, by those of the parameters."""


def to_array(value: torch.Tensor, parameter: torch.Tensor, what: str) -> Array:
    """Returns a copy of a tensor that PyTorch keeps for a parameter in the type of a training step's state.

    Raises:
        InputError: It is sparse, of another shape than the parameter, or of a wider type than the state.
    """
    dtype = STATE_TYPES[parameter.dtype]
    if value.layout != torch.strided:
        raise InputError(f"{what} has the layout {value.layout}; expected a dense tensor")
    # A narrower type is that of bfloat16 moments, which PyTorch allows for float32 parameters.
    if torch.promote_types(value.dtype, dtype) != dtype:
        raise InputError(f"{what} is {value.dtype}; expected {parameter.dtype}, that of the parameter")
    _require_shape(what, value.shape, parameter)
    array: Array = value.detach().cpu().to(dtype, copy=True).contiguous().numpy()
    return array


def to_tensor(array: Array, parameter: torch.Tensor, what: str, *, nonzero: bool = False) -> torch.Tensor:
    """Returns a copy of an array of a training step's state in the type, layout and device of a parameter.

    Args:
        array: The array.
        parameter: The parameter.
        what: The array's name in messages.
        nonzero: Whether to refuse numbers that become 0 when they are rounded to a 16-bit type.

    Raises:
        InputError: It is not of the parameter's shape and the state's type for it, or out of the range of the
            parameter's type.
    """
    source = torch.from_numpy(np.array(array))
    if source.dtype != STATE_TYPES[parameter.dtype]:
        raise InputError(f"{what} is {source.dtype}; expected {STATE_TYPES[parameter.dtype]} for its parameter")
    _require_shape(what, source.shape, parameter)
    rounded = source.to(parameter.dtype)
    lost = rounded.isinf() & source.isfinite()
    if nonzero:
        lost |= (rounded == 0) & (source != 0)
    if bool(lost.any()):
        raise InputError(
            f"{what} has the value {source[lost][0].item():.3g}, out of the range of {parameter.dtype}, the type "
            "of its parameter; expected a module of a wider type"
        )
    return torch.empty_like(parameter.detach()).copy_(rounded)


def count_tensor(count: int) -> torch.Tensor:
    """Returns a number of updates in PyTorch's form, a floating-point scalar on the CPU."""
    double = torch.get_default_dtype() == torch.float64
    return torch.tensor(float(count), dtype=torch.float64 if double else torch.float32, device="cpu")


def _require_shape(what: str, shape: torch.Size, parameter: torch.Tensor) -> None:
    if shape != parameter.shape:
        raise InputError(
            f"{what} has shape {shape_text(shape)}; expected {shape_text(parameter.shape)}, that of the parameter"
        )
