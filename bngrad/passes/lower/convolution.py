"""Gradients of Conv and ConvTranspose in standard ONNX.

With windows as in windows.py, and c running over the input channels of the group of m:

    Y[n, m, o] = B[m] + sum over c, k of W[m, c, k] X[n, c, o stride + k dilation - begin]
    dX[n, c, o stride + k dilation - begin] += sum over m of W[m, c, k] dY[n, m, o]
    dW[m, c, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]
    dB[m] = sum over n, o of dY[n, m, o]

ConvTranspose is the same with X and Y exchanged.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import known_rank
from bngrad.graph.shapes import known_dimension
from bngrad.opset.op_attributes import CONV, CONV_TRANSPOSE
from bngrad.passes.lower import sliding
from bngrad.passes.lower.convolution_operands import ConvolutionOperands
from bngrad.passes.lower.data_gradient import data_gradient, delayed
from bngrad.passes.lower.geometry import transposed_windows_of, windows_of
from bngrad.passes.lower.lowering import lowering
from bngrad.passes.lower.shapes import spatial_sizes
from bngrad.passes.lower.weight_gradient import weight_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site

_LEAST_RANK = 3
_MOST_KERNEL_ELEMENTS = 1 << 22
"""The largest kernel: the gradient of its weights may have a constant with a number for each element."""
_MOST_KERNEL_ELEMENTS_OF_GROUPS = 1 << 14
"""The largest kernel with groups: the gradient of its weights may have nodes for each element."""


def refusal(node: ir.Node) -> str | None:
    """Refuses an unknown number of spatial dimensions, or another one than that of the weights."""
    declared = read_attribute(node, "kernel_shape", ())
    rank = len(declared) + 2 if declared else known_rank([*node.inputs, *node.outputs[:2]])
    if rank is None:
        return "its number of spatial dimensions is unknown; expected the attribute kernel_shape, or shapes"
    weights = node.inputs[2].shape if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if rank < _LEAST_RANK or (weights is not None and len(weights) != rank):
        has = "tensors" if weights is None else f"weights with {len(weights)} dimensions, and others"
        return (
            f"it has {has} with {rank}; expected {_LEAST_RANK} or more: batch, channels, and those of the kernel"
        )
    group = read_attribute(node, "group", 1)
    channels = [known_dimension(value, 1) for value in node.inputs[:2] if value is not None]
    if group < 1 or any(number is not None and number % group for number in channels):
        return f"its group is {group}; expected a divisor of its channels"
    if problem := _channel_problem(node, group):
        return problem
    kernel = [size for size in (weights or ())[2:] if isinstance(size, int)]
    most = _MOST_KERNEL_ELEMENTS_OF_GROUPS if group > 1 else _MOST_KERNEL_ELEMENTS
    if prod(kernel) > most:
        return f"its kernel has {prod(kernel)} elements; expected {most} at most"
    return None


def _channel_problem(node: ir.Node, group: int) -> str | None:
    """Returns the reason why the weights do not fit the number of channels; None if they do."""
    tensors = [value for value in node.inputs[:3] if value is not None]
    if len(tensors) < 3:
        return None
    *data, weights = tensors
    first, second = known_dimension(weights, 0), known_dimension(weights, 1)
    per_group = None if second is None else second * group
    of_weights = (per_group, first) if node.op_type == "ConvTransposeGrad" else (first, per_group)
    for what, value, expected in zip(("gradient has", "data have"), data, of_weights, strict=True):
        channels = known_dimension(value, 1)
        if None not in (channels, expected) and channels != expected:
            return f"its {what} {channels} channels, its weights are for {expected}; expected as many"
    return None


@lowering("ConvGrad", refusal=refusal, attributes=CONV)
def conv_grad(site: Site) -> Outputs:
    """ConvGrad(dY, X, W) -> (dX, dW, dB)."""
    dY, x, w = site.x(0), site.x(1), site.x(2)
    operands = ConvolutionOperands(
        site, windows_of(site, x, dY, kernel_of(site)), x, dY, w, site.attribute("group", 1)
    )
    parameters = _parameters(operands)
    after = [value for value in parameters if value is not None]
    return [data_gradient(operands, after) if site.has_output(0) else None, *parameters]


@lowering("ConvTransposeGrad", refusal=refusal, attributes=CONV_TRANSPOSE)
def conv_transpose_grad(site: Site) -> Outputs:
    """ConvTransposeGrad(dY, X, W) -> (dX, dW, dB): ConvGrad with dY and X exchanged."""
    dY, x, w = site.x(0), site.x(1), site.x(2)
    windows = transposed_windows_of(site, dY, x, kernel_of(site))
    operands = ConvolutionOperands(site, windows, dY, x, w, site.attribute("group", 1))
    parameters = _parameters(operands)
    after = [value for value in parameters if value is not None]
    return [_conv(operands, after) if site.has_output(0) else None, *parameters]


def _parameters(operands: ConvolutionOperands) -> tuple[ir.Value | None, ir.Value | None]:
    """dW and dB, or None where the node omits them."""
    site = operands.site
    axes = [0, *range(2, 2 + operands.windows.rank)]
    return (
        weight_gradient(operands) if site.has_output(1) else None,
        site.reduce("ReduceSum", site.x(0), axes, keepdims=False) if site.has_output(2) else None,
    )


def _conv(operands: ConvolutionOperands, after: Sequence[ir.Value]) -> ir.Value:
    """Conv of x over its windows, one for each element of y."""
    site, windows = operands.site, operands.windows
    x, pads = sliding.fit(site, windows, operands.x, operands.y, operands.w)
    attributes = {"pads": pads, "strides": windows.stride, "dilations": windows.dilation, "group": operands.group}
    result = site.op("Conv", x, delayed(operands, after), **attributes)
    return sliding.crop(site, result, operands.y, windows.rank) if windows.leftover(windows.stride) else result


def kernel_of(site: Site) -> tuple[int | None, ...]:
    """Returns the shape of the kernel as far as it is known, from the attribute or the weights."""
    declared = tuple(site.attribute("kernel_shape", ()))
    rank = known_rank([*site.node.inputs, *site.node.outputs[:2]])
    return declared or spatial_sizes(site.x(2), (rank or 2) - 2)
