"""Batch norms below opset 14, which onnx's version converter accepts only in inference mode.

========== ======================================================================================================
opset      training mode
========== ======================================================================================================
1 to 6     ``is_test`` is 0, its default, and the node has five outputs
7 to 13    the node has five outputs
14 on      ``training_mode`` is 1; the fourth and fifth output, the statistics of the batch, do not exist
========== ======================================================================================================

With ``spatial`` = 0, below opset 9, each element of a sample has a scale and statistics of its own. Newer opsets
have no such op; it is the same where a sample has no other dimension than the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_per_element, is_training_batch_norm, says_both_modes
from bngrad.graph.nodes import all_nodes, describe, is_read, known_rank, owner

if TYPE_CHECKING:
    from collections.abc import Mapping

TRAINING_MODE_OPSET = 14
"""The first opset with ``training_mode``."""
_WITHOUT_IS_TEST = 7
_INPUTS, _ROWS = 5, 2
"""The number of inputs; the rank of an X without other dimensions than samples and channels."""


def put_in_inference_mode(model: ir.Model, version: int) -> dict[str, list[str | None]]:
    """Gives old batch norms the form that the version converter accepts.

    Those in training mode get one output; an Identity of the old statistic stands for each new one, so that the
    converter knows its shape.

    Args:
        model: A model below `TRAINING_MODE_OPSET`; it is changed in place.
        version: Its opset.

    Returns:
        The names of the new mean and variance, None where nothing reads one, by the name of the first output of
        each batch norm in training mode.

    Raises:
        ModelError: A node has ``spatial`` = 0 and more dimensions than the channels, is declared both in training
            and in inference mode, or has outputs that newer opsets lack.
    """
    trained = {}
    for node in [node for node in all_nodes(model) if (node.domain, node.op_type) == ("", "BatchNormalization")]:
        if "training_mode" in node.attributes:
            introduced = f"which opset {TRAINING_MODE_OPSET} introduced"
            raise ModelError(f"{describe(node)} of opset {version} has the attribute training_mode, {introduced}")
        if reason := _refusal(node):
            raise ModelError(f"{describe(node)} of opset {version} {reason}")
        node.attributes.pop("spatial", None)
        if is_training_batch_norm(node):
            names = []
            for value, old in zip(node.outputs[1:3], node.inputs[3:5], strict=True):
                names.append(value.name if is_read(value) else None)
                if is_read(value):
                    copy = ir.node("Identity", [old])
                    ir.convenience.replace_nodes_and_values(owner(node), node, [], [copy], [value], copy.outputs)
            trained[str(node.outputs[0].name)] = names
        node.resize_outputs(1)
        if version < _WITHOUT_IS_TEST:
            node.attributes["is_test"] = ir.AttrInt64("is_test", 1)
    return trained


def restore_training_mode(model: ir.Model, trained: Mapping[str, list[str | None]]) -> None:
    """Puts batch norms back into training mode after the version converter.

    Args:
        model: The converted model; it is changed in place.
        trained: The result of `put_in_inference_mode`.
    """
    values = {value.name: value for node in all_nodes(model) for value in node.outputs}
    for y, names in trained.items():
        node = values[y].producer()
        assert node is not None, "it has an output"  # noqa: S101
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        node.resize_outputs(3)
        for value, name in zip(node.outputs[1:], names, strict=True):
            copy = None if name is None else values[name].producer()
            if copy is None:
                value.name = ""
            else:
                ir.convenience.replace_nodes_and_values(owner(node), node, [copy], [], copy.outputs, [value])


def _refusal(node: ir.Node) -> str | None:
    """Returns the reason why a node has no counterpart in newer opsets; None if it has one."""
    if len(node.inputs) != _INPUTS or None in node.inputs:
        return f"has {len(node.inputs)} inputs; expected {_INPUTS}, all present"
    rank, scale_rank = known_rank(node.inputs[:1]), known_rank(node.inputs[1:2])
    of_rows = rank == _ROWS or (rank is None and scale_rank == _ROWS - 1)
    if is_per_element(node) and not of_rows:
        return (
            "has spatial = 0, a scale for each element of a sample, which opset 9 and newer lack; expected "
            "spatial = 1, or an X that is known to be [N, C]: export the model with a newer opset"
        )
    statistics = [value.name for value in node.outputs[1:] if is_read(value)]
    if says_both_modes(node):
        return (
            "has is_test = 0 and one output, so that it is both in training and in inference mode; expected five "
            "outputs or is_test = 1: export the model with a newer opset"
        )
    if statistics and not is_training_batch_norm(node):
        return (
            f"has is_test = 1 and its output {statistics[0]!r}, which only training has, is read; expected "
            "is_test = 0, or a model that does not read it"
        )
    saved = [value.name for value in node.outputs[3:] if is_read(value)]
    if saved:
        return (
            f"has the output {saved[0]!r}, a statistic of the batch, which opset {TRAINING_MODE_OPSET} and newer "
            "lack; expected a model that does not read it"
        )
    return None
