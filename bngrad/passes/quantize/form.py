"""The form of an inference model that is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.nodes import all_nodes
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import raise_opset

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPSET = 18
"""The oldest opset in which ReduceMax takes its axes as an input."""


def quantizable(model: ir.Model) -> ir.Model:
    """Returns an inference model in an opset that rounding needs, with types, and constants that read no data.

    Args:
        model: The model; it is changed, and must not be used afterwards.
    """
    model = raise_opset(model, _OPSET)
    InferTypesPass()(model)
    for node, dtype in _casts_of_known_type(model):
        # PyTorch's exporter writes zeros as the bias of a convolution, in the type of the data.
        node.op_type, node.version = "Cast", None
        node.resize_inputs(1)
        node.attributes.clear()
        node.attributes["to"] = ir.AttrInt64("to", int(dtype))
    return model


def _casts_of_known_type(model: ir.Model) -> Iterator[tuple[ir.Node, ir.DataType]]:
    for node in list(all_nodes(model)):
        like = node.inputs[1] if (node.domain, node.op_type) == ("", "CastLike") else None
        if like is not None and like.dtype is not None:
            yield node, like.dtype
