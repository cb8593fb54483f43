"""The shape of scale and bias for an input, as MIOpen's miopenDeriveBNTensorDescriptor derives it.

============= ================ =======================================================
mode          parameters       one mean and variance for
============= ================ =======================================================
spatial       1C11 or 1C111    each channel, over the batch and all positions
per_activation 1CHW or 1CDHW   each channel and position, over the batch
============= ================ =======================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = Literal["spatial", "per_activation"]

_MODES: dict[str | int, Mode] = {
    "spatial": "spatial",
    "miopenBNSpatial": "spatial",
    1: "spatial",
    "per_activation": "per_activation",
    "miopenBNPerActivation": "per_activation",
    0: "per_activation",
}


def batch_norm_mode(mode: str | int) -> Mode:
    """Returns the canonical name of a mode.

    Args:
        mode: ``spatial`` or ``per_activation``, or the name or value of MIOpen's enumerator.

    Raises:
        InputError: The mode is unknown.
    """
    if mode not in _MODES:
        raise InputError(f"mode is {mode!r}; expected 'spatial' (or 1) or 'per_activation' (or 0)")
    return _MODES[mode]


def derive_parameter_shape(x_shape: Sequence[int], mode: str | int) -> tuple[int, ...]:
    """Returns the shape of scale, bias and the statistics for an input.

    Args:
        x_shape: The shape of the input, NCHW or NCDHW.
        mode: ``spatial`` or ``per_activation``, or the name or value of MIOpen's enumerator.

    Returns:
        1C11 or 1C111 for ``spatial``, 1CHW or 1CDHW for ``per_activation``.

    Raises:
        InputError: The rank is not 4 or 5, a dimension is negative, or the mode is unknown.
    """
    kind = batch_norm_mode(mode)
    shape = tuple(int(size) for size in x_shape)
    if len(shape) not in (4, 5):
        raise InputError(f"X has {len(shape)} dimensions; expected 4 (NCHW) or 5 (NCDHW)")
    if min(shape) < 0:
        raise InputError(f"X has shape {list(shape)}; expected no negative dimension")
    channels, *positions = shape[1:]
    return (1, channels, *([1] * len(positions) if kind == "spatial" else positions))
