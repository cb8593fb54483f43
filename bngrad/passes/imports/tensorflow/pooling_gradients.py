"""The gradients of TensorFlow's pools -> MaxPoolGrad and AveragePoolGrad of ONNX Runtime.

::

    MaxPoolGrad(orig_input, orig_output, grad), MaxPool3DGrad
        => MaxPool(X) -> (Y, indices);  MaxPoolGrad(dY, indices) -> dX
    AvgPoolGrad(orig_input_shape, grad), AvgPool3DGrad
        => AveragePoolGrad(dY) -> dX, where padding does not count

The first of equal elements of a window has the gradient, as in TensorFlow. (Its CPU kernel of MaxPool3DGrad gives
it to all of them.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute
from bngrad.opset.op_attributes import ANY
from bngrad.passes.imports.tensorflow.convolution_gradients import known_sizes
from bngrad.passes.imports.tensorflow.rule import Rule
from bngrad.passes.imports.tensorflow.spatial import (
    SPATIAL,
    from_channels_first,
    is_channels_last,
    of_spatial,
    sizes_of,
    spatial_refusal,
    strides_of,
    to_channels_first,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.opset.op_attributes import Attributes
    from bngrad.passes.lower.site import Site

_ATTRIBUTES: Attributes = {**SPATIAL, "ksize": ANY}


def max_refusal(node: ir.Node) -> str | None:
    """Returns the reason why the gradient of a max pool cannot be rewritten; None if it can."""
    data = [*node.inputs, *node.outputs]
    if reason := spatial_refusal(node, data, "ksize", "strides"):
        return reason
    x = node.inputs[0]
    if x is None or x.shape is None or None in sizes_of(node, x, len(x.shape) - 2):
        return "the spatial shape of its orig_input is unknown; expected a model that shape inference can read"
    return None


def average_refusal(node: ir.Node) -> str | None:
    """Returns the reason why the gradient of an average pool cannot be rewritten; None if it can."""
    if reason := spatial_refusal(node, [node.inputs[1], node.outputs[0]], "ksize", "strides"):
        return reason
    if None in _spatial_sizes(node):
        return "the spatial shape of its data is unknown; expected a constant orig_input_shape, or a known shape"
    return None


def max_pool_grad(site: Site) -> Sequence[ir.Value]:
    """MaxPoolGrad, with the indices of a MaxPool that is computed again."""
    node, x, dY = site.node, site.x(0), site.x(2)
    rank = len(x.shape or ())
    attributes = _windows(node, sizes_of(node, x, rank - 2))
    x = to_channels_first(site, x, rank)
    y, indices = site.outputs_of("MaxPool", x, outputs=["y", "indices"], **attributes)
    dY = to_channels_first(site, dY, rank)
    y.type, y.shape, indices.dtype, indices.shape = dY.type, dY.shape, ir.DataType.INT64, dY.shape
    dX = site.op("MaxPoolGrad", dY, indices, **attributes)
    dX.type, dX.shape = dY.type, x.shape
    return [from_channels_first(site, dX, rank)]


def average_pool_grad(site: Site) -> Sequence[ir.Value]:
    """AveragePoolGrad, which reads the shape of X in the type of dX."""
    node, dY = site.node, site.x(1)
    sizes = _spatial_sizes(node)
    rank = len(sizes) + 2
    dY = to_channels_first(site, dY, rank)
    dX = site.op("AveragePoolGrad", dY, **_windows(node, sizes))
    shape = dY.shape or ir.Shape([None] * rank)
    dX.type, dX.shape = dY.type, ir.Shape([shape[0], shape[1], *sizes])
    return [from_channels_first(site, dX, rank)]


def _windows(node: ir.Node, sizes: Sequence[int | None]) -> dict[str, Any]:
    kernel = of_spatial(node, read_attribute(node, "ksize", ()))
    attributes = windows(node, kernel, sizes, strides_of(node, len(kernel)))
    attributes.pop("dilations")
    return attributes


def _spatial_sizes(node: ir.Node) -> list[int | None]:
    """The spatial shape of an average pool's data."""
    rank = len(read_attribute(node, "ksize", ()))
    sizes = known_sizes(node.inputs[0])
    if sizes is not None and len(sizes) == rank:
        return list(sizes[1:-1] if is_channels_last(node) else sizes[2:])
    return sizes_of(node, node.outputs[0], rank - 2)


RULES = {
    **dict.fromkeys(
        ("MaxPoolGrad", "MaxPool3DGrad"),
        Rule(max_pool_grad, max_refusal, _ATTRIBUTES, ("orig_input", "orig_output", "grad")),
    ),
    **dict.fromkeys(
        ("AvgPoolGrad", "AvgPool3DGrad"),
        Rule(average_pool_grad, average_refusal, _ATTRIBUTES, ("orig_input_shape", "grad")),
    ),
}
