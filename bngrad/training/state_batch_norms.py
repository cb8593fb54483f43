"""The batch norms of a training step, by the tensors of the state that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.graph.fresh_names import node_names
from bngrad.graph.subgraphs import nodes_of
from bngrad.training.step_info import StateBatchNorm

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from bngrad.training.step_info import StepInfo

_COPIES = ("Cast", "Identity", "Reshape", "Slice")
"""Ops between an input of the state and a batch norm that reads it."""


def state_batch_norms(evaluation: ir.Model, info: StepInfo) -> tuple[StateBatchNorm, ...]:
    """Returns the batch norms of an evaluation graph that read a tensor of the state.

    Args:
        evaluation: The evaluation graph, of any layout.
        info: The metadata of the step.
    """
    return tuple(_by_node(evaluation, info).values())


def batch_norms_by_node(evaluation: ir.Model, info: StepInfo) -> dict[ir.Node, StateBatchNorm]:
    """Returns those of the main graph whose running statistics are in the state, by the nodes of the graph."""
    norms = _by_node(evaluation, info)
    main = set(evaluation.graph)
    return {
        node: norm
        for node, norm in norms.items()
        if node in main and norm.mean is not None and norm.var is not None
    }


def _by_node(evaluation: ir.Model, info: StepInfo) -> dict[ir.Node, StateBatchNorm]:
    names, result = node_names(evaluation), {}
    for node in filter(is_of_onnx, nodes_of(evaluation.graph)):
        tensors = [_state_of(value, info.state) for value in node.inputs[1:5]]
        if any(tensors):
            result[node] = StateBatchNorm(names[node], *tensors)
    return result


def _state_of(value: ir.Value | None, names: Collection[str]) -> str | None:
    """Returns the name of the tensor of the state that a value is a copy of; None if it is not one."""
    while value is not None and value.name not in names:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _COPIES else None
    return None if value is None else value.name
