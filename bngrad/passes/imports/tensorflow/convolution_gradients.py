"""The gradients of TensorFlow's convolutions -> ConvGrad of ONNX Runtime.

::

    Conv2DBackpropInput(input_sizes, filter, out_backprop) -> dX        filter [*kernel, C / group, M]
    Conv2DBackpropFilter(input, filter_sizes, out_backprop) -> dfilter
    DepthwiseConv2dNativeBackprop{Input,Filter}: filter [*kernel, C, m], group = C, M = C m
    Conv3DBackprop{Input,Filter}V2
    => com.microsoft.ConvGrad(dY, X, W) -> (dX, dW)                     W [M, C / group, *kernel]

ConvGrad reads only the shape of the missing operand, the data or the filter; a tensor of zeros stands for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import constant_of, dtype_of, read_attribute, static_shape
from bngrad.graph.nodes import known_rank
from bngrad.graph.shapes import known_dimension
from bngrad.opset.op_attributes import ANY
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.imports.tensorflow.rule import Rule
from bngrad.passes.imports.tensorflow.spatial import (
    SPATIAL,
    from_channels_first,
    is_channels_last,
    of_spatial,
    permuted,
    spatial_refusal,
    strides_of,
    to_channels_first,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.opset.op_attributes import Attributes
    from bngrad.passes.lower.site import Site

_ATTRIBUTES: Attributes = {**SPATIAL, "dilations": ANY}
_OF_INPUT = ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
_OF_FILTER = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
_PASSING = ("Cast", "Identity")


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a gradient of a convolution cannot be rewritten; None if it can."""
    of_input = node.op_type in _OF_INPUT
    data = [node.outputs[0] if of_input else node.inputs[0], node.inputs[2]]
    if reason := spatial_refusal(node, data, "strides", "dilations"):
        return reason
    if node.op_type.startswith("Depthwise") and any(n != 1 for n in read_attribute(node, "dilations", ())):
        return "it has dilations, which TensorFlow's own kernels ignore; expected 1 for each dimension"
    shape = filter_shape(node)
    if shape is None:
        return f"the shape of its {'filter' if of_input else 'filter_sizes'} is unknown; expected constants"
    rank = known_rank(data)
    if rank is None or len(shape) != rank:
        return (
            f"its filter has {len(shape)} dimensions, and its data {rank or 'an unknown number'}; expected as many"
        )
    return _channel_refusal(node, shape)


def _channel_refusal(node: ir.Node, shape: Sequence[int]) -> str | None:
    """Returns why the filter does not fit the channels of the data and of out_backprop; None if it does."""
    axis, dY = -1 if is_channels_last(node) else 1, node.inputs[2]
    channels = _data_shape(node, len(shape))[axis]
    gradient_channels = None if dY is None else known_dimension(dY, axis)
    (inputs, outputs), depthwise = shape[-2:], node.op_type.startswith("Depthwise")
    if channels is None and not depthwise:
        return "the number of its data's channels is unknown; expected a model that shape inference can read"
    if channels is not None and depthwise and channels != inputs:
        return f"its data have {channels} channels, and its filter is for {inputs}; expected as many"
    if (
        channels is not None
        and not depthwise
        and (inputs == 0 or channels % inputs or outputs % (channels // inputs))
    ):
        filter_has = f"its filter {inputs} and {outputs}"
        return f"its data have {channels} channels, and {filter_has}; expected groups of channels"
    expected = inputs * outputs if depthwise else outputs
    if gradient_channels is not None and gradient_channels != expected:
        return f"its out_backprop has {gradient_channels} channels; expected {expected}, as its filter"
    return None


def filter_shape(node: ir.Node) -> tuple[int, ...] | None:
    """The shape of the filter: of the input, or of the output, or from filter_sizes; None if unknown."""
    if node.op_type in _OF_INPUT:
        return static_shape(node.inputs[1])
    return static_shape(node.outputs[0]) or known_sizes(node.inputs[1])


def known_sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The numbers of a value that is constant, or the shape of a tensor with static dimensions."""
    numbers = constant_of(value)
    if numbers is not None:
        return tuple(int(number) for number in numbers.ravel())
    node = value.producer() if value is not None else None
    if node is None or not node.inputs:
        return None
    if node.op_type in _PASSING:
        return known_sizes(node.inputs[0])
    if node.op_type == "Shape" and not node.attributes:
        return static_shape(node.inputs[0])
    if node.op_type == "ShapeN" and value is not None and (index := value.index()) is not None:
        return static_shape(node.inputs[index])
    return None


def rewrite(site: Site) -> Sequence[ir.Value]:
    """Rewrites any of these ops."""
    node = site.node
    dY, shape = site.x(2), filter_shape(node)
    assert shape is not None, "a node without it is refused"  # noqa: S101
    rank, of_input = len(shape), node.op_type in _OF_INPUT
    depthwise = node.op_type.startswith("Depthwise")
    sizes = _data_shape(node, rank)
    channels = shape[-2] if depthwise else sizes[-1 if is_channels_last(node) else 1]
    assert channels is not None, "a node without them is refused"  # noqa: S101
    group = shape[-2] if depthwise else channels // shape[-2]
    kernel = list(shape[:-2])
    outputs = shape[-2] * shape[-1] if depthwise else shape[-1]
    of_onnx = [outputs, channels // group, *kernel]
    x = _data_like(site, sizes) if of_input else to_channels_first(site, site.x(0), rank)
    w = _filter(site, shape, of_onnx, depthwise=depthwise) if of_input else _zeros(site, site.int64(of_onnx), dY)
    w.shape = ir.Shape(of_onnx)
    gradient = site.outputs_of(
        "ConvGrad",
        to_channels_first(site, dY, rank),
        x,
        w,
        outputs=["dX", ""] if of_input else ["", "dW"],
        domain=MICROSOFT,
        group=group,
        **windows(node, kernel, of_spatial(node, sizes), strides_of(node, rank - 2)),
    )[0 if of_input else 1]
    gradient.type = dY.type
    if of_input:
        gradient.shape = x.shape
        return [from_channels_first(site, gradient, rank)]
    if depthwise:
        gradient = site.op("Reshape", gradient, site.int64([shape[-2], shape[-1], *kernel]))
    return [permuted(site, gradient, [*range(2, rank), 0, 1] if depthwise else [*range(2, rank), 1, 0])]


def _filter(site: Site, shape: Sequence[int], of_onnx: Sequence[int], *, depthwise: bool) -> ir.Value:
    """TensorFlow's filter as ONNX's weights [M, C / group, *kernel]."""
    spatial = range(len(shape) - 2)
    w = permuted(
        site,
        site.x(1),
        [len(shape) - 2, len(shape) - 1, *spatial] if depthwise else [len(shape) - 1, len(shape) - 2, *spatial],
    )
    if depthwise:
        w = site.op("Reshape", w, site.int64(list(of_onnx)))
        w.type = site.x(1).type
    return w


def _data_shape(node: ir.Node, rank: int) -> list[int | None]:
    """The shape of the convolution's data in the node's format, as far as it is known."""
    of_input = node.op_type in _OF_INPUT
    if of_input and (sizes := known_sizes(node.inputs[0])) is not None and len(sizes) == rank:
        return list(sizes)
    value = node.outputs[0] if of_input else node.inputs[0]
    return [None if value is None else known_dimension(value, axis) for axis in range(rank)]


def _data_like(site: Site, shape: Sequence[int | None]) -> ir.Value:
    """Zeros in the shape of the convolution's data, in the order [N, C, ...]."""
    rank = len(shape)
    order = [0, rank - 1, *range(1, rank - 1)] if is_channels_last(site.node) else list(range(rank))
    sizes = site.op("Gather", site.op("Cast", site.x(0), to=int(ir.DataType.INT64)), site.int64(order))
    x = _zeros(site, sizes, site.x(2))
    x.shape = ir.Shape([shape[axis] for axis in order])
    return x


def _zeros(site: Site, shape: ir.Value, like: ir.Value) -> ir.Value:
    zeros = site.op("ConstantOfShape", shape, value=ir.tensor([0.0], dtype=dtype_of(like)))
    zeros.type = like.type
    return zeros


RULES = {
    **dict.fromkeys(_OF_INPUT, Rule(rewrite, refusal, _ATTRIBUTES, ("input_sizes", "filter", "out_backprop"))),
    **dict.fromkeys(_OF_FILTER, Rule(rewrite, refusal, _ATTRIBUTES, ("input", "filter_sizes", "out_backprop"))),
}
