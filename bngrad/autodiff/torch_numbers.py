"""Nodes of PyTorch's exporter that compute other numbers than PyTorch: masks, adaptive windows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bngrad.autodiff.forward_info import KEY as FORWARD_INFO
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.constant_value import constant_value
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.nodes import all_nodes, describe
from bngrad.graph.torch_calls import recorded_call, recorded_classes
from bngrad.graph.torch_source import TRACE

if TYPE_CHECKING:
    import onnx_ir as ir

_CALLS = {
    kind: (re.compile(rf"adaptive_{pool}_pool\dd{more}"), re.compile(rf"(?<!adaptive_){pool}_pool\dd"))
    for kind, pool, more in (("AveragePool", "avg", "|[\"']area[\"']"), ("MaxPool", "max", ""))
}
"""The calls in a line of Python that export a node as an adaptive pooling, and those that export another one."""


def with_torch_numbers(model: ir.Model) -> ir.Model:
    """Returns a model that computes PyTorch's numbers, as far as the exporter recorded them: itself, or a copy.

    Raises:
        UnsupportedNodeError: An adaptive pooling has the windows of the example, and its input a symbolic size.
    """
    _refuse_fixed_windows(model)
    if not any(map(_is_finite_mask, all_nodes(model))):
        return model
    model = model.clone()
    names = Names(model)
    for node in list(filter(_is_finite_mask, all_nodes(model))):
        _mask_with_infinity(node, names)
    return model


def _is_finite_mask(node: ir.Node) -> bool:
    """Returns whether a Where masks attention with the lowest finite number, so that a full row is not NaN."""
    if (node.domain, node.op_type) != ("", "Where") or not _is_of(node, "scaled_dot_product_attention"):
        return False
    lowest = constant_value(node.inputs[2]) if node.inputs[2] is not None else None
    return lowest is not None and lowest.size == 1 and float(lowest.numpy().item()) <= -60000


def _mask_with_infinity(node: ir.Node, names: Names) -> None:
    """Masks with -inf: later nodes of the exporter replace the NaN of a row without True by 0, as PyTorch does."""
    lowest = None if node.inputs[2] is None else constant_value(node.inputs[2])
    assert lowest is not None, "_is_finite_mask has its value"  # noqa: S101
    dtype = lowest.dtype
    node.replace_input_with(2, NodesBefore(node, names, node.name or "mask").constant(float("-inf"), dtype))


def _refuse_fixed_windows(model: ir.Model) -> None:
    """Refuses adaptive pooling of symbolic sizes: the windows are those of the example."""
    if FORWARD_INFO in model.metadata_props:
        return  # this package's exporter records conditions on the sizes
    for node in all_nodes(model):
        values = {"AveragePool": node.inputs[:1], "MaxPool": node.inputs[:1], "Range": node.outputs[:1]}.get(
            node.op_type, ()
        )
        if any(value is not None and _is_symbolic(value) for value in values) and _is_adaptive(node):
            raise UnsupportedNodeError(
                f"{describe(node)} is of an adaptive pooling (or interpolate with mode='area') whose input has a "
                "symbolic size, and PyTorch's exporter wrote the windows of the example; leave that size out of "
                "dynamic_shapes, or pool to size 1"
            )


def _is_symbolic(value: ir.Value) -> bool:
    """Returns whether a size that a pooling reads, or the length of a vector, is symbolic."""
    sizes = [] if value.shape is None else list(value.shape)
    return any(not isinstance(size, int) for size in (sizes[2:] if len(sizes) > 1 else sizes))


def _is_adaptive(node: ir.Node) -> bool:
    if re.search("Adaptive(?:Avg|Max)Pool", recorded_classes(node)):
        return True
    line = (node.metadata_props.get(TRACE, "").splitlines() or [""])[-1]
    adaptive, other = _CALLS.get(node.op_type, _CALLS["AveragePool"])
    return adaptive.search(line) is not None and other.search(line) is None


def _is_of(node: ir.Node, op: str) -> bool:
    call = recorded_call(node)
    return call is not None and call.op == op
