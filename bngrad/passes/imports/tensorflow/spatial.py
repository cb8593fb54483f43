"""The windows of TensorFlow's convolutions and pools: from its attributes to ONNX's.

TensorFlow lists a number for each dimension of the data, batch and channels included, in the order of data_format.
With padding SAME there are ceil(size / stride) windows, and the odd element of padding is at the end. (ONNX's
SAME_UPPER.) Where the sizes are known the padding becomes explicit, which every op of ONNX Runtime supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import known_rank
from bngrad.graph.shapes import known_dimension
from bngrad.graph.window_axes import window_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.opset.op_attributes import Attributes
    from bngrad.passes.lower.site import Site

FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW")
RANKS = (4, 5)
"""The ranks of data. TensorFlow's CPU kernels accept either rank with any format."""
SPATIAL: Attributes = {
    "data_format": FORMATS,
    "padding": ("SAME", "VALID", "EXPLICIT"),
    "strides": (),
    "explicit_paddings": (),
}
"""The attributes of all these ops; data_format is that of two or three spatial dimensions by default."""


def is_channels_last(node: ir.Node) -> bool:
    """Returns whether the channels are the last dimension of the data."""
    return str(read_attribute(node, "data_format", "NHWC")).endswith("C")


def of_spatial(node: ir.Node, numbers: Sequence[Any]) -> list[Any]:
    """Returns the numbers of the spatial dimensions from an attribute with a number for each dimension."""
    return list(numbers[1:-1] if is_channels_last(node) else numbers[2:])


def spatial_refusal(node: ir.Node, data: Sequence[ir.Value | None], *names: str) -> str | None:
    """Returns the reason why the attributes of a node do not fit its data; None if they do.

    Args:
        node: The node.
        data: Its inputs and outputs that have batch, channels and spatial dimensions.
        names: The attributes that list a number for each dimension.
    """
    rank = known_rank(data)
    if rank is None:
        rank = len(read_attribute(node, names[0], ()))
    if rank not in RANKS:
        return f"its data have {rank} dimensions; expected 4 or 5"
    for value in data:
        if value is not None and value.shape is not None and len(value.shape) != rank:
            return f"its {value.name!r} has {len(value.shape)} dimensions; expected {rank}"
    for name in names:
        numbers = list(read_attribute(node, name, ())) or [1] * rank
        others = (numbers[0], numbers[-1 if is_channels_last(node) else 1])
        if len(numbers) != rank or min(numbers) < 1 or others != (1, 1):
            return f"its {name} are {numbers}; expected {rank} numbers of at least 1, and 1 for batch and channels"
    pads = list(read_attribute(node, "explicit_paddings", ()))
    if read_attribute(node, "padding", "SAME") == "EXPLICIT" and (len(pads) != 2 * rank or min(pads) < 0):
        return f"its explicit_paddings are {pads}; expected {2 * rank} numbers, two for each dimension"
    return None


def windows(
    node: ir.Node, kernel: Sequence[int], sizes: Sequence[int | None], strides: Sequence[int]
) -> dict[str, Any]:
    """Returns ONNX's attributes of windows: kernel_shape, strides, dilations, and pads or auto_pad.

    Args:
        node: A node that was not refused.
        kernel: The size of the kernel in each spatial dimension.
        sizes: Those of the data, as far as they are known.
        strides: The strides in each spatial dimension.
    """
    rank = len(kernel)
    dilations = of_spatial(node, read_attribute(node, "dilations", ())) or [1] * rank
    attributes: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "dilations": dilations}
    padding = read_attribute(node, "padding", "SAME")
    if padding == "EXPLICIT":
        pads = list(read_attribute(node, "explicit_paddings", ()))
        pairs = of_spatial(node, list(zip(pads[::2], pads[1::2], strict=True)))
    elif padding == "VALID":
        pairs = [(0, 0)] * rank
    else:
        static_sizes = [size for size in sizes if size is not None]
        if len(static_sizes) < rank:
            return {**attributes, "auto_pad": "SAME_UPPER"}
        axes = window_axes(static_sizes, kernel, strides=strides, dilations=dilations, auto_pad="SAME_UPPER")
        pairs = [(axis.begin, axis.end) for axis in axes]
    return {**attributes, "pads": [*(before for before, _ in pairs), *(after for _, after in pairs)]}


def strides_of(node: ir.Node, rank: int) -> list[int]:
    """Returns the strides in each spatial dimension."""
    return of_spatial(node, list(read_attribute(node, "strides", ())) or [1] * (rank + 2))


def sizes_of(node: ir.Node, value: ir.Value, rank: int) -> list[int | None]:
    """Returns the spatial dimensions of data in the node's format, as far as they are known."""
    first = 1 if is_channels_last(node) else 2
    return [known_dimension(value, first + axis) for axis in range(rank)]


def to_channels_first(site: Site, value: ir.Value, rank: int) -> ir.Value:
    """Returns data of a rank in the order [N, C, ...]."""
    return permuted(site, value, [0, rank - 1, *range(1, rank - 1)]) if is_channels_last(site.node) else value


def from_channels_first(site: Site, value: ir.Value, rank: int) -> ir.Value:
    """Returns [N, C, ...] in the order of the node's data."""
    return permuted(site, value, [0, *range(2, rank), 1]) if is_channels_last(site.node) else value


def permuted(site: Site, value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Transposes a value, with its type and shape."""
    result = site.op("Transpose", value, perm=list(order))
    result.type = value.type
    if value.shape is not None:
        result.shape = ir.Shape([value.shape[axis] for axis in order])
    return result
