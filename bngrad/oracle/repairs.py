"""Small rewrites that leave a forward model's meaning alone and let ORT's gradient builder take it.

| node                    | the builder                                  | here             |
|-------------------------|----------------------------------------------|------------------|
| Sum                     | has no gradient for it                       | a chain of Add   |
| SoftmaxCrossEntropyLoss | fails without the second output              | gets it          |
| BatchNormalization      | fails without the running outputs            | gets them        |
| the same, frozen        | trains it in silence                         | spelled out      |
| Transpose               | fails without the attribute perm             | gets it          |
| Dropout, training       | fails without the second output              | gets it          |
| Dropout, inference      | scales it by 1 / (1 - ratio), which is wrong | becomes Identity |

A repair takes a node and returns the nodes to put in its place (perhaps itself, changed) and what that is in
words.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bngrad.errors import ModelError
from bngrad.oracle.graph import attribute, is_default_domain, label, namer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from bngrad.oracle.graph import Type


@dataclass(frozen=True)
class _Context:
    """What a repair looks up in the graph."""

    name: Callable[[str], str]
    """Makes a name, like the wished one, that no value has."""
    used: frozenset[str]
    """The values that some node or the caller reads."""
    constants: dict[str, onnx.TensorProto]


def repair(graph: onnx.GraphProto) -> list[str]:
    """Apply every repair to the main graph; one note for each kind that happened."""
    context = _Context(
        namer(graph),
        frozenset(name for node in graph.node for name in node.input) | {value.name for value in graph.output},
        {tensor.name: tensor for tensor in graph.initializer}
        | {
            node.output[0]: entry.t
            for node in graph.node
            if node.op_type == "Constant"
            for entry in node.attribute
        },
    )
    notes: Counter[str] = Counter()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        change = _REPAIRS.get(node.op_type) if is_default_domain(node.domain) else None
        replacement, note = change(node, context) if change is not None else ([node], None)
        nodes.extend(replacement)
        if note is not None:
            notes[note] += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return [f"{note} ({count}x)" for note, count in notes.items()]


def _repair_sum(node: onnx.NodeProto, context: _Context) -> _Repair:
    """Write a + b + c as (a + b) + c."""
    if len(node.input) == 1:
        return [_identity(node)], "Sum written as Identity"
    chain: list[onnx.NodeProto] = []
    left = node.input[0]
    for index, right in enumerate(node.input[1:], 1):
        last = index == len(node.input) - 1
        output = node.output[0] if last else context.name(f"{node.output[0]}/partial_{index}")
        chain.append(helper.make_node("Add", [left, right], [output], name=f"{label(node)}/add_{index}"))
        left = output
    chain[-1].name = node.name
    return chain, "Sum written as Add"


def _repair_loss(node: onnx.NodeProto, context: _Context) -> _Repair:
    """The gradient starts from log_prob."""
    return [node], _name_outputs(node, ["log_prob"], context)


def _repair_batch_norm(node: onnx.NodeProto, context: _Context) -> _Repair:
    """In training mode the op has three outputs; leaving one out of them is a habit that ORT refuses."""
    if not attribute(node, "training_mode", 0):
        return [node], None
    return [node], _name_outputs(node, ["new_running_mean", "new_running_var"], context)


def _repair_dropout(node: onnx.NodeProto, context: _Context) -> _Repair:
    """The third input, from opset 12 on, says whether anything is dropped; without it nothing is."""
    flag = node.input[2] if len(node.input) > 2 else ""
    drops = flag and (flag not in context.constants or numpy_helper.to_array(context.constants[flag]).any())
    if drops:
        return [node], _name_outputs(node, ["mask"], context)
    if context.used.intersection(node.output[1:]):
        raise ModelError(
            f"Dropout {label(node)!r} drops nothing, yet its mask is used: the oracle cannot differentiate that; "
            "remove the node"
        )
    return [_identity(node)], "Dropout in inference mode written as Identity"


def state_permutations(graph: onnx.GraphProto, known: Mapping[str, Type]) -> list[str]:
    """Write the permutation of every Transpose that leaves it out, meaning all dimensions in reverse.

    A step after the others, because it needs to know ranks.
    """
    count = 0
    for node in graph.node:
        if is_default_domain(node.domain) and node.op_type == "Transpose" and not node.attribute:
            shape = known[node.input[0]].shape if node.input[0] in known else None
            if shape is not None:
                node.attribute.append(helper.make_attribute("perm", list(reversed(range(len(shape))))))
                count += 1
    return [f"Transpose given its permutation ({count}x)"] if count else []


def spell_out_frozen(graph: onnx.GraphProto, known: Mapping[str, Type]) -> list[str]:
    """Write frozen batch norms as arithmetic, (X - mean) * (scale / sqrt(var + epsilon)) + bias.

    The builder would differentiate them as if they were in training mode; each of these ops it gets right.

    Raises:
        ModelError: the rank of an X is not known.
    """
    name = namer(graph)
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in graph.node:
        frozen = is_default_domain(node.domain) and node.op_type == "BatchNormalization"
        if not frozen or attribute(node, "training_mode", 0):
            nodes.append(node)
            continue
        nodes.extend(_frozen_arithmetic(node, known, name))
        count += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return [f"frozen BatchNormalization written as arithmetic ({count}x)"] if count else []


def _frozen_arithmetic(
    node: onnx.NodeProto, known: Mapping[str, Type], name: Callable[[str], str]
) -> list[onnx.NodeProto]:
    x, scale, bias, mean, var = node.input
    shape = known[x].shape if x in known else None
    if shape is None:
        raise ModelError(f"the rank of {x!r}, the input of batch norm {label(node)!r}, is not known: state it")
    number = next((entry.f for entry in node.attribute if entry.name == "epsilon"), 1e-5)
    made: list[onnx.NodeProto] = []

    def op(op_type: str, *inputs: str, output: str | None = None) -> str:
        output = output or name(f"{label(node)}/{op_type.lower()}")
        made.append(helper.make_node(op_type, inputs, [output], name=name(f"{label(node)}/{op_type}")))
        return output

    def constant(what: str, array: npt.NDArray[Any]) -> str:
        # No initializer: those are weights to whoever looks for what to differentiate by.
        output = name(f"{label(node)}/{what}")
        made.append(helper.make_node("Constant", [], [output], name=output, value=numpy_helper.from_array(array)))
        return output

    epsilon = constant("epsilon", np.array(number, np.float32))
    axes = constant("axes", np.arange(1, len(shape) - 1))

    def spread(parameter: str) -> str:
        return op("Unsqueeze", parameter, axes) if len(shape) > 2 else parameter

    factor = op("Div", scale, op("Sqrt", op("Add", var, epsilon)))
    scaled = op("Mul", op("Sub", x, spread(mean)), spread(factor))
    op("Add", scaled, spread(bias), output=node.output[0])
    for old, new in zip((mean, var), node.output[1:3], strict=False):
        if new:
            op("Identity", old, output=new)
    return made


_Repair = tuple[list[onnx.NodeProto], str | None]

_REPAIRS: dict[str, Callable[[onnx.NodeProto, _Context], _Repair]] = {
    "BatchNormalization": _repair_batch_norm,
    "Dropout": _repair_dropout,
    "SoftmaxCrossEntropyLoss": _repair_loss,
    "Sum": _repair_sum,
}


def _name_outputs(node: onnx.NodeProto, wishes: list[str], context: _Context) -> str | None:
    """Name the outputs after the first that have none; a note if there were any."""
    note = None
    for slot, wish in enumerate(wishes, 1):
        if slot >= len(node.output):
            node.output.append("")
        if not node.output[slot]:
            node.output[slot] = context.name(f"{node.output[0]}/{wish}")
            note = f"{node.op_type} given all of its outputs"
    return note


def _identity(node: onnx.NodeProto) -> onnx.NodeProto:
    """Output 0 is input 0."""
    return helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)
