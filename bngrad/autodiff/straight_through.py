"""Roundings, whose gradient is that of their input: the straight-through estimator.

::

    q = QuantizeLinear(x, scale, zero) or DynamicQuantizeLinear(x)      saturate(round(x / scale) + zero)
    y = DequantizeLinear(q, ...) or DequantizeLinear(Clip(q, a, b), ...)

The derivative of y is 0 almost everywhere. DequantizeLinear instead sends a gradient to x and the scale of the
quantizer, beside its own scale: see its rule. Between the two nodes there is no gradient, since q is an integer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.constant_value import fixed_value
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_STOPPED = "bngrad.stopped_rounding"
"""The key in the ``meta`` of quantizers whose rounding has the gradient 0."""


class Rounding(NamedTuple):
    """The quantizer before a DequantizeLinear."""

    quantizer: ir.Node
    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    clipped: tuple[float, float]
    """The limits of a Clip after it; infinite where there is none."""

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest quantized value."""
        dtype = dtype_of(self.quantizer.outputs[0])
        of_type = (ml_dtypes.iinfo if dtype.is_integer() else ml_dtypes.finfo)(dtype.numpy())
        return max(float(of_type.min), self.clipped[0]), min(float(of_type.max), self.clipped[1])


def rounding_of(node: ir.Node) -> Rounding | None:
    """Returns the rounding of a float that a node ends; None for another node."""
    if (node.domain, node.op_type) != ("", "DequantizeLinear"):
        return None
    q = node.inputs[0]
    limits: tuple[float, float] | None = (-np.inf, np.inf)
    maker = None if q is None else q.producer()
    if maker is not None and maker.op_type == "Clip":
        q, limits = maker.inputs[0], _limits_of(maker)
        maker = None if q is None else q.producer()
    if maker is None or not is_quantizer(maker) or limits is None:
        return None
    if maker.domain or maker.graph is not node.graph or q is not maker.outputs[0]:
        return None
    is_dynamic = maker.op_type == "DynamicQuantizeLinear"
    x, scale, *zero_point = (*maker.inputs, *maker.outputs[1:]) if is_dynamic else maker.inputs
    if x is None or scale is None or x.dtype not in (None, *SUPPORTED_DTYPES):
        return None
    return Rounding(maker, x, scale, zero_point[0] if zero_point else None, limits)


def is_quantizer(node: ir.Node) -> bool:
    """Returns whether a node rounds its input 0 to a quantized value, and is to have a gradient."""
    return node.op_type in _QUANTIZERS and not node.meta.get(_STOPPED)


def _limits_of(clip: ir.Node) -> tuple[float, float] | None:
    """Returns the limits of a Clip; None unless they are constants of one element, or left out."""
    limits = [-np.inf, np.inf]
    for index, value in enumerate(clip.inputs[1:]):
        if value is None:
            continue
        tensor = fixed_value(value, lambda _: False)
        if tensor is None or tensor.size != 1:
            return None
        limits[index] = float(tensor.numpy().item())
    return limits[0], limits[1]


def stop_roundings(model: ir.Model) -> None:
    """Gives every rounding in a model the gradient 0."""
    for node in filter(is_quantizer, all_nodes(model)):
        node.meta[_STOPPED] = True
