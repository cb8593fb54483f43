"""Convolutions, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.opset.op_attributes import CONV, CONV_TRANSPOSE
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Conv", inputs=(0, 1, 2), versions=(11, 22), attributes=CONV)
def conv(back: Backward) -> Gradients:
    """ConvGrad(dY, X, W) -> (dX, dW, dB), each where it is needed."""
    return _gradients(back, "ConvGrad")


@gradient("ConvTranspose", inputs=(0, 1, 2), versions=(11, 22), attributes=CONV_TRANSPOSE)
def conv_transpose(back: Backward) -> Gradients:
    """ConvTransposeGrad(dY, X, W) -> (dX, dW, dB), each where it is needed."""
    return _gradients(back, "ConvTransposeGrad")


def _gradients(back: Backward, op_type: str) -> Gradients:
    names = [name if back.needs(i) else "" for i, name in enumerate(("dX", "dW", "dB"))]
    while not names[-1]:
        names.pop()
    outputs = back.outputs_of(
        op_type, back.dY, back.x(0), back.x(1), outputs=names, domain=MICROSOFT, **back.attributes()
    )
    return [value if value.name else None for value in outputs]
