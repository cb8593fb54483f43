"""Puts the nodes of a forward model into inference mode.

=========================================== =======================================================================
node                                        becomes
=========================================== =======================================================================
BatchNormalization, BatchNormInternal       BatchNormalization in inference mode; a new running statistic that is
                                            read is the old one
Dropout                                     Identity; a mask that is read is all true
SoftmaxCrossEntropyLoss, only its log_prob  LogSoftmax over the classes
=========================================== =======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.constant_value import RANDOM_OPS
from bngrad.graph.nodes import all_nodes, default_opset, describe, is_read, owner
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.fresh_names import Names

_BATCH_NORMS = {("", "BatchNormalization"), BATCH_NORM_INTERNAL}
_RANDOM = {("", op_type) for op_type in RANDOM_OPS} | {
    (MICROSOFT, op_type) for op_type in ("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout")
}
_RECOGNIZED = (DOMAIN, "BatchNormalizationTraining")
_TRAINING_MODE = 14
"""Since this opset BatchNormalization has the attribute training_mode; before 7 it has is_test."""


def to_inference(model: ir.Model, names: Names) -> None:
    """Puts every node of a model into inference mode, also in subgraphs.

    Raises:
        ModelError: A node reads an output that a batch norm or a Dropout has only in training mode.
    """
    opset = default_opset(model) or 0
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) in _BATCH_NORMS:
            batch_norm_to_inference(node, opset, names)
        elif (node.domain, node.op_type) == ("", "Dropout"):
            drop_dropout(node, opset, names)
        elif (node.domain, node.op_type) == ("", "SoftmaxCrossEntropyLoss"):
            _loss(node, opset)


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """Returns the nodes whose outputs differ from run to run."""
    return [node for node in all_nodes(model) if (node.domain, node.op_type) in _RANDOM]


def refuse_random(model: ir.Model) -> None:
    """Checks that a model gives the same outputs for the same inputs.

    Raises:
        ModelError: It has a random node, which is named.
    """
    for node in random_nodes(model):
        raise ModelError(
            f"{describe(node)} makes the inference model random; expected outputs that depend on no random node: "
            "keep others with --keep (outputs=), or make its output an input of the model"
        )


def refuse_batch_statistics(model: ir.Model) -> None:
    """Checks that no batch norm in primitives normalizes data by the statistics of the batch.

    One sample is not a batch, and weights that a model normalizes are not data.

    Raises:
        ModelError: There is one, which is named.
    """
    recognition = ImportDecomposedPass(forward_only=True)
    if not recognition.may_find_any(model):
        return
    recognized = model.clone()
    recognition(recognized)
    for node in all_nodes(recognized):
        x = node.inputs[0] if (node.domain, node.op_type) == _RECOGNIZED else None
        if x is None or (x.shape is not None and x.shape[0] == 1) or not _is_of_data(x):
            continue
        raise ModelError(
            f"{node.outputs[0].name!r} is a batch norm in primitives, which would use the statistics of the batch "
            "in inference, too; expected BatchNormalization, or outputs that do not depend on it (finalize "
            "--keep, outputs=); or pass --batch-statistics (batch_statistics=True) to keep those of the batch"
        )


def _is_of_data(value: ir.Value) -> bool:
    """Tests whether a value depends on an input of the model that has no default."""
    seen, waiting = {value}, [value]
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if node is None and not current.is_initializer():
            return True
        new = {operand for operand in (() if node is None else node.inputs) if operand is not None} - seen
        seen |= new
        waiting += new
    return False


def batch_norm_to_inference(node: ir.Node, opset: int, names: Names) -> None:
    """Puts a BatchNormalization or BatchNormInternal into inference mode.

    Raises:
        ModelError: A node reads an output that it has only in training mode.
    """
    used = [value for value in node.outputs[3:] if is_read(value)]
    if used:
        raise ModelError(
            f"{describe(node)} cannot be put into inference mode: its output {used[0].name!r}, which only "
            "training has, is read; keep outputs that do not depend on it with --keep (outputs=)"
        )
    for value, old in zip(node.outputs[1:3], node.inputs[3:5], strict=False):
        if is_read(value):
            _replace(node, [ir.node("Identity", [old], name=names.fresh(f"{value.name}_old"))], value)
    node.resize_outputs(1)
    node.domain, node.op_type, node.version = "", "BatchNormalization", None
    if opset >= _TRAINING_MODE:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
    elif "is_test" in node.attributes:
        node.attributes["is_test"] = ir.AttrInt64("is_test", 1)


def drop_dropout(node: ir.Node, opset: int, names: Names) -> None:
    """Replaces a Dropout by the identity.

    Raises:
        ModelError: Its mask is read, and the opset does not define it in inference mode.
    """
    x, mask = node.inputs[0], next(iter(node.outputs[1:]), None)
    if mask is not None and is_read(mask):
        # Before opset 10 it has the type of the data.
        dtype = ir.DataType.BOOL if opset >= 10 else None if x is None else x.dtype
        if opset < 9 or dtype is None:
            raise ModelError(
                f"{describe(node)} cannot be put into inference mode: its mask {mask.name!r} is read, which opset "
                f"{opset} defines only for training; keep other outputs with --keep (outputs=)"
            )
        shape = ir.node("Shape", [x], name=names.fresh(f"{mask.name}_shape"))
        shape.outputs[0].name = shape.name
        ones = {"value": ir.tensor([1], dtype=dtype)}
        _replace(
            node,
            [shape, ir.node("ConstantOfShape", [*shape.outputs], ones, name=names.fresh(f"{mask.name}_ones"))],
            mask,
        )
    if is_read(node.outputs[0]):
        _replace(node, [ir.node("Identity", [x], name=node.name)], node.outputs[0])
    owner(node).remove(node, safe=True)


def _loss(node: ir.Node, opset: int) -> None:
    # Before opset 13 LogSoftmax takes everything from its axis on for classes.
    if opset >= 13 and len(node.outputs) > 1 and not is_read(node.outputs[0]):
        log_prob = ir.node("LogSoftmax", [node.inputs[0]], {"axis": 1}, name=node.name)
        _replace(node, [log_prob], node.outputs[1])
        owner(node).remove(node, safe=True)


def _replace(node: ir.Node, replacement: Sequence[ir.Node], value: ir.Value) -> None:
    """Replaces an output of a node by that of the last of some new nodes, under its name."""
    new = replacement[-1].outputs
    ir.convenience.replace_nodes_and_values(owner(node), node, [], replacement, [value], new)
    value.name = None
