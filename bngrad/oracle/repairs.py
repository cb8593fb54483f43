"""Rewrites that keep a forward model's meaning and let ORT's gradient builder take it.

| node                    | the builder                                  | here             |
|-------------------------|----------------------------------------------|------------------|
| Sum                     | has no gradient for it                       | a chain of Add   |
| SoftmaxCrossEntropyLoss | fails without the second output              | gets it          |
| BatchNormalization      | silently trains a frozen one                 | spelled out      |
| Transpose               | fails without the attribute perm             | gets it          |
| Dropout, training       | fails without the second output              | gets it          |
| Dropout, inference      | scales it by 1 / (1 - ratio), which is wrong | becomes Identity |

A repair changes a node, or puts others in its place, and returns what that is in words; None if it did nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.node_reader import is_off, like, read_attribute
from bngrad.graph.nodes import ORIGIN, describe, remove
from bngrad.passes.base import Context
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Callable


def repair(model: ir.Model) -> list[str]:
    """Applies every repair to the main graph of a model.

    Args:
        model: The model, with types; it is changed.

    Returns:
        A note for each kind of repair that was made.

    Raises:
        ModelError: A node cannot be repaired.
    """
    context = Context(model)
    notes: Counter[str] = Counter()
    for node in list(model.graph):
        change = None if node.domain else _REPAIRS.get(node.op_type)
        if change is None:
            continue
        node.meta.setdefault(ORIGIN, describe(node))
        if note := change(node, context):
            notes[note] += 1
    remove(context.replaced)
    return [f"{note} ({count}x)" for note, count in notes.items()]


def _chain_sum(node: ir.Node, context: Context) -> str:
    """Writes a + b + c as (a + b) + c."""
    emit = Emitter(node, context)
    total, *others = _present(node)
    for other in others:
        total = emit.op("Add", total, other)
    emit.replace({0: total})
    return "Sum written as Add" if others else "Sum written as Identity"


def _name_log_prob(node: ir.Node, context: Context) -> str | None:
    """The gradient starts from log_prob."""
    return _name_second_output(node, "log_prob", context)


def _repair_dropout(node: ir.Node, context: Context) -> str | None:
    """The third input decides whether anything is dropped; without it nothing is."""
    if not is_off(node.inputs[2] if len(node.inputs) > 2 else None):
        return _name_second_output(node, "mask", context)
    Emitter(node, context).replace({0: _present(node)[0]})
    return "Dropout in inference mode written as Identity"


def _state_permutation(node: ir.Node, _: Context) -> str | None:
    """Without the attribute all dimensions are reversed."""
    x = _present(node)[0]
    if node.attributes or x.shape is None:
        return None
    node.attributes["perm"] = ir.AttrInt64s("perm", list(reversed(range(len(x.shape)))))
    return "Transpose given its permutation"


def _spell_out_frozen(node: ir.Node, context: Context) -> str | None:
    """Writes (X - mean) * (scale / sqrt(var + epsilon)) + bias, whose ops the builder differentiates right."""
    if is_training_batch_norm(node):
        return None
    x, scale, bias, mean, var = _present(node)
    if x.shape is None:
        raise ModelError(f"the rank of {x.name!r}, the input of {describe(node)}, is unknown; expected its shape")
    emit = Emitter(node, context)
    # No initializer, which would be a weight by default.
    epsilon = like(emit, read_attribute(node, "epsilon", 1e-5), var)
    axes = emit.int64(range(1, len(x.shape) - 1)) if len(x.shape) > 2 else None

    def over_x(parameter: ir.Value) -> ir.Value:
        return parameter if axes is None else emit.op("Unsqueeze", parameter, axes)

    factor = emit.op("Div", scale, emit.op("Sqrt", emit.op("Add", var, epsilon)))
    scaled = emit.op("Mul", emit.op("Sub", x, over_x(mean)), over_x(factor))
    emit.replace({0: emit.op("Add", scaled, over_x(bias))})
    return "frozen BatchNormalization written as arithmetic"


_REPAIRS: dict[str, Callable[[ir.Node, Context], str | None]] = {
    "BatchNormalization": _spell_out_frozen,
    "Dropout": _repair_dropout,
    "SoftmaxCrossEntropyLoss": _name_log_prob,
    "Sum": _chain_sum,
    "Transpose": _state_permutation,
}


def _present(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _name_second_output(node: ir.Node, what: str, context: Context) -> str | None:
    """Names the second output if it has no name."""
    node.resize_outputs(max(2, len(node.outputs)))
    if node.outputs[1].name:
        return None
    node.outputs[1].name = context.names.fresh(f"{node.outputs[0].name}/{what}")
    return f"{node.op_type} given all of its outputs"
