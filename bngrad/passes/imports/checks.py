"""Checks of foreign nodes that several dialects share.

Each yields reasons for a refusal, of which the first is reported: later ones may follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norms import parameter_refusal, refusal
from bngrad.passes.imports.foreign_node import is_data

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bngrad.passes.imports.foreign_node import ForeignNode


def input_refusal(node: ir.Node, names: Collection[str]) -> str | None:
    """Returns why a node does not have the inputs of these names, all of which are required; None if it does."""
    present = sum(value is not None for value in node.inputs)
    if present == len(node.inputs) == len(names):
        return None
    return f"it has {present} inputs; expected {len(names)}: {', '.join(names)}"


def tensor_reasons(node: ForeignNode) -> Iterator[str]:
    """Checks a node whose inputs are all required: types, ranks, and parameters of shape [C] for X [N, C, ...]."""
    data = [index for index, quantity in enumerate(node.op.inputs.values()) if is_data(quantity)]
    reason = refusal(node.node, inputs=len(node.op.inputs), data=data, minimum_rank=1, layout="[N, C, ...]")
    if reason := reason or parameter_refusal(node.node, data=data):
        yield reason


def only_epsilon_reasons(node: ForeignNode) -> Iterator[str]:
    """Checks a node whose inputs are all required, and whose attributes are the spellings of epsilon."""
    op, outputs, attributes = node.op, node.node.outputs, node.node.attributes
    if reason := input_refusal(node.node, op.inputs):
        yield reason
    if len(outputs) > len(op.outputs):
        yield f"it has {len(outputs)} outputs; expected {', '.join(op.outputs)}"
    own_name = next(iter(op.attributes))
    for name in attributes:
        # An op of the same name with other attributes belongs to another system and has other inputs.
        if name not in op.attributes:
            yield f"it has an attribute {name!r}; expected only {own_name}"
    names = [name for name in op.attributes if name in attributes]
    if len(names) != 1:
        yield f"it has {' and '.join(names) or 'no ' + own_name}; expected one epsilon"
    epsilon = attributes[names[0]]
    if epsilon.is_ref():
        yield f"its {names[0]} refers to a function attribute; expected a number: inline the function"
    if epsilon.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
        yield f"its {names[0]} is of type {epsilon.type.name.lower()}; expected a number"


def only_epsilon(node: ForeignNode) -> float:
    """Returns the epsilon of a node that passed `only_epsilon_reasons`, in float32 as a saved model stores it."""
    (value,) = (node.node.attributes[name].value for name in node.op.attributes if name in node.node.attributes)
    return float(np.float32(value))
