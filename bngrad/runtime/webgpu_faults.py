"""Nodes that ONNX Runtime's plugin for WebGPU computes wrong, without an error; seen in version 0.4.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.node_reader import constant_of, read_attribute, static_shape
from bngrad.graph.nodes import all_nodes, describe

if TYPE_CHECKING:
    import onnx_ir as ir

_PLANE = 2
"""The last axes, along which a linear Resize is right."""


def require_right(model: ir.Model) -> None:
    """Refuses a linear Resize that is known to resize other axes than the last two.

    Raises:
        UnsupportedNodeError: There is one.
    """
    for node in all_nodes(model):
        if (node.domain, node.op_type, read_attribute(node, "mode", "nearest")) == ("", "Resize", "linear"):
            axes, rank = _resized_axes(node)
            if any(axis < rank - _PLANE for axis in axes):
                raise UnsupportedNodeError(
                    f"{describe(node)} resizes axis {min(axes)} of {rank}, which the plugin for WebGPU computes "
                    "wrong; expected the last two, or another device"
                )


def _resized_axes(node: ir.Node) -> tuple[list[int], int]:
    """The axes whose size changes, as far as they are known, and the number of all; 0 if that is unknown."""
    x, _, scales, sizes = (*node.inputs, None, None, None)[:4]
    scale, size, shape = constant_of(scales), constant_of(sizes), static_shape(x) if x is not None else None
    axes = list(read_attribute(node, "axes", ()))
    dims = x.shape if x is not None else None
    numbers = scale if scale is not None and scale.size else size
    rank = len(dims) if dims is not None else 0 if axes or numbers is None else len(numbers)
    axes = [axis % rank if rank else axis for axis in axes] or list(range(rank))
    if scale is not None and scale.size:
        return [axis for axis, factor in zip(axes, np.ravel(scale), strict=False) if factor != 1], rank
    if size is not None and shape is not None:
        return [axis for axis, new in zip(axes, np.ravel(size), strict=False) if new != shape[axis]], rank
    return (axes if "axes" in node.attributes else []), rank
