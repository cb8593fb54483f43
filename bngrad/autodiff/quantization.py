"""Quantized layers, which have no weights by default: scales are calibrated, as running statistics are.

::

    y = DequantizeLinear(QuantizeLinear(x, scale, zero), scale, zero)    and QLinearConv, MatMulNBits and the like
    y = Cast(MatMulInteger(xq, wq)) * (x_scale * w_scale)                xq from DynamicQuantizeLinear(x)
    w = (Cast(wq) - zero) * w_scale                                      wq of integers

No gradient flows through such an op. Values that reach the loss only through it are not trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.same_values import source_of
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_OPS = frozenset(
    (
        *(*_QUANTIZERS, "DequantizeLinear", "ConvInteger", "MatMulInteger", "QGemm", "QAttention"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"),
        *("DequantizeBFP", "QuantizeBFP", "DynamicQuantizeLSTM", "FusedMatMulBnb4"),
    )
)
_OF_INTEGERS = ("MatMulInteger", "ConvInteger")
_OPERANDS = 2
_INTEGERS = frozenset(
    dtype
    for name, dtype in ir.DataType.__members__.items()
    if name.startswith(("INT", "UINT", "FLOAT8", "FLOAT4")) and not name.endswith(("32", "64"))
)
"""The types of quantized values: wider integers are counts and positions as well."""


def is_quantization(node: ir.Node) -> bool:
    """Returns whether a node quantizes, dequantizes, or computes with quantized values."""
    return node.op_type in _OPS or node.op_type.startswith(("QLinear", "QMoE", "QOrdered"))


def scales(graph: ir.Graph) -> Iterator[tuple[ir.Node, int]]:
    """Yields the uses of numbers as scales, zero points and biases of quantized values."""
    for node in nodes_of(graph):
        if is_quantization(node):
            yield from ((node, index) for index in range(node.op_type in _QUANTIZERS, len(node.inputs)))
        elif node.op_type in ("Mul", "Sub") and len(node.inputs) == _OPERANDS:
            yield from (
                (node, index)
                for index in ((0, 1) if node.op_type == "Mul" else (1,))
                if _is_to_be_scaled(node.inputs[1 - index])
            )


def _is_to_be_scaled(value: ir.Value | None) -> bool:
    """Returns whether a value comes from integers, cast or less a zero point, or is a scale of such a value."""
    source = source_of(value)
    maker = None if source is None else source.producer()
    if maker is None or maker.op_type == "Constant":
        return _is_integer(source)
    if maker.op_type == "Sub" and maker.inputs:
        return _is_to_be_scaled(maker.inputs[0])
    if maker.op_type == "Mul":
        return any(map(_is_computed_scale, maker.inputs))
    return maker.op_type in _OF_INTEGERS or _is_computed_scale(source)


def _is_computed_scale(value: ir.Value | None) -> bool:
    source = source_of(value)
    maker = None if source is None else source.producer()
    return maker is not None and maker.op_type == "DynamicQuantizeLinear" and source is maker.outputs[1]


def _is_integer(value: ir.Value | None) -> bool:
    """Returns whether a value is an initializer or a constant of quantized integers."""
    return value is not None and not value.is_graph_input() and value.dtype in _INTEGERS
