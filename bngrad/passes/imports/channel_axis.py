"""Changes a foreign batch norm with its channels in dimension 1 into an op of ``bngrad``.

The node is changed in place: its name, output names, doc string and metadata stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.nodes import known_rank
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.functions import DOMAIN
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.passes.imports.unknown_rank import COLLAPSED_AXES, collapse_spatial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.fresh_names import Names
    from bngrad.passes.base import Context


def rewrite_in_place(node: ir.Node, op_type: str, attributes: Sequence[ir.Attr], context: Context) -> None:
    """Changes a node into an op of ``bngrad`` that reduces over every dimension except 1.

    Data of unknown rank, of rank 1 or of a rank above the ops' maximum is reshaped to [N, C, S].

    Args:
        node: A node that was not refused. Its inputs must already be those of ``op_type``, without axes.
        op_type: The op of ``bngrad``.
        attributes: All attributes of the new op.
        context: The context of the model's rewrites.
    """
    inputs, outputs, _ = signature(op_type)
    data_inputs = [i for i, name in enumerate(inputs) if QUANTITIES[name].shape == "data"]
    data_outputs = [i for i, name in enumerate(outputs) if QUANTITIES[name].shape == "data"]
    rank = known_rank([*(node.inputs[i] for i in data_inputs), *(node.outputs[i] for i in data_outputs)])
    reduced: tuple[int, ...] = COLLAPSED_AXES
    if rank is None or rank == 1 or rank > MAX_RANK:
        collapse_spatial(node, data_inputs, data_outputs, context.names)
    else:
        reduced = (0, *range(2, rank))
    axes = context.axes.value(node, reduced)
    node.domain, node.op_type, node.overload, node.version = DOMAIN, op_type, "", None
    node.attributes.clear()
    node.attributes.update({attribute.name: attribute for attribute in attributes})
    node.resize_inputs(len(inputs))
    node.replace_input_with(inputs.index("axes"), axes)
    _name_outputs(node, outputs, context.names)


def _name_outputs(node: ir.Node, outputs: Sequence[str], names: Names) -> None:
    """Names all outputs of the node, because an op of onnxruntime-extensions cannot omit one."""
    node.resize_outputs(len(outputs))
    for value, name in zip(node.outputs, outputs, strict=True):
        if not value.name:
            value.name = names.fresh(f"{node.name or node.op_type}_{name}")


def forward_attributes(node: ir.Node, *, unbiased_running_var: bool) -> list[ir.Attr]:
    """Returns the attributes of the BatchNormalizationTraining that replaces a forward node, with ONNX's defaults.

    Args:
        node: A forward node with ONNX's attributes.
        unbiased_running_var: Whether the running variance is updated with the unbiased variance; ONNX uses the
            biased one.
    """
    epsilon = node.attributes.get("epsilon") or ir.AttrFloat32("epsilon", 1e-5)
    momentum = node.attributes.get("momentum") or ir.AttrFloat32("momentum", 0.9)
    return [epsilon, momentum, ir.AttrInt64("unbiased_running_var", int(unbiased_running_var))]
