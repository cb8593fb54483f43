"""Convolutions, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


def conv(back: Backward) -> Gradients:
    """ConvGrad(dY, X, W) -> (dX, dW, dB), each where somebody needs it."""
    return _gradients(back, "ConvGrad")


def conv_transpose(back: Backward) -> Gradients:
    """ConvTransposeGrad(dY, X, W) -> (dX, dW, dB), each where somebody needs it."""
    return _gradients(back, "ConvTransposeGrad")


def _gradients(back: Backward, op_type: str) -> Gradients:
    names = [name if back.needs(i) else "" for i, name in enumerate(("dX", "dW", "dB"))]
    while not names[-1]:
        names.pop()
    made = back.outputs_of(
        op_type, back.dY, back.x(0), back.x(1), outputs=names, domain="com.microsoft", **back.attributes()
    )
    return [value if value.name else None for value in made]
