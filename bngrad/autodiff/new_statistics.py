"""The pairs of old and new running statistics in a prepared model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.running_statistics import is_given, is_ours
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

NEW_STATISTICS = "bngrad.new_statistics"
"""The key of `ir.Model.meta` for the names of new running statistics, by the names of the old ones."""


def running_statistics(model: ir.Model) -> list[ir.Value]:
    """Returns the initializers, inputs and constants that training-mode batch norms read as running statistics."""
    return [value for value in _updated(model) if is_given(value)]


def new_statistics(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Returns the new running statistics of training-mode batch norms, by the initializers or inputs they update.

    Where batch norms update one statistic in turn, the new one is the output of the last.
    """
    return ends(_updated(model))


def ends(updated: dict[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
    """Returns the last new value of each initializer or input, where several batch norms update it in turn."""
    last_values = {}
    for old, new in updated.items():
        last = new
        while last in updated:
            last = updated[last]
        if old.producer() is None:
            last_values[old] = last
    return last_values


def _updated(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Returns the new value of each running statistic that a training-mode batch norm reads."""
    graph = model.graph
    updated = updates(
        node for node in graph if (node.domain, node.op_type) == BATCH_NORM_INTERNAL or is_ours(node)
    )
    sources = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    outputs = {value.name: value for value in graph.outputs}
    named = model.meta.get(NEW_STATISTICS, {})
    return updated | {sources[old]: outputs[new] for old, new in named.items()}


def updates(nodes: Iterable[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Returns the new value of each running statistic that batch norms read."""
    return {
        old: new
        for node in nodes
        for old, new in zip(node.inputs[3:5], node.outputs[1:3], strict=True)
        if old is not None and new.name and not _is_replaced(node, old)
    }


def _is_replaced(node: ir.Node, old: ir.Value) -> bool:
    """Returns whether the new value does not depend on an old one that is constant, so that it is not state."""
    momentum = node.attributes.get("momentum")
    return is_ours(node) and old.producer() is not None and momentum is not None and momentum.value == 0
