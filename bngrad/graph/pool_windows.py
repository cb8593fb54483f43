"""Pools whose windows ONNX Runtime counts otherwise than ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_reader import read_attribute
from bngrad.graph.window_axes import window_count

if TYPE_CHECKING:
    import onnx_ir as ir

_POOLS = ("AveragePool", "LpPool", "MaxPool")


def windows_beyond(node: ir.Node) -> str | None:
    """Returns the reason why a pool has another shape in ONNX Runtime than by inference; None if it has not.

    Below opset 22 ONNX has windows that begin after the data. What is computed from the inferred shape is wrong
    then, also if the pool itself has no gradient: the sums of operands that are broadcast to it.
    """
    if node.domain or node.op_type not in _POOLS or not read_attribute(node, "ceil_mode", 0):
        return None
    data, kernel = node.inputs[0], node.attributes.get("kernel_shape")
    x, y = None if data is None else data.shape, node.outputs[0].shape
    if x is None or y is None or kernel is None or read_attribute(node, "auto_pad", "NOTSET").startswith("SAME"):
        return None
    sizes = kernel.as_ints()
    ones = [1] * len(sizes)
    strides, dilations = (read_attribute(node, name, ones) for name in ("strides", "dilations"))
    pads = read_attribute(node, "pads", [0] * 2 * len(sizes))
    for axis, size in enumerate(sizes):
        whole, windows = x[2 + axis], y[2 + axis]
        if not isinstance(whole, int) or not isinstance(windows, int):
            continue
        length = (size - 1) * dilations[axis] + 1
        begin, end = pads[axis], pads[axis + len(sizes)]
        within = window_count(whole, length, strides[axis], begin, end, ceil=True)
        if windows != within:
            return (
                f"ceil_mode = 1 gives {windows} windows along axis {2 + axis}, but ONNX Runtime computes "
                f"{within}; expected opset 22, or pads with which no window begins after the data"
            )
    return None
