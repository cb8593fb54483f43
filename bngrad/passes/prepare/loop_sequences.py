"""Replaces the sequences that a Loop appends to by scan outputs, as PyTorch's scripted loops write them.

::

    s = Loop(n, , SequenceEmpty())   r = SequenceInsert(p, x) in its body
    t = Loop(n, )                    x is a scan output; s = SplitToSequence(t, axis=0, keepdims=0)

The tensors of a sequence may differ in shape, those of a scan output not: ONNX Runtime refuses a Loop whose
tensors do. So a Loop without a gradient stays. So does one that reads its sequence in its body or inserts at a
position, and one whose sequence is more than taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_makers import NodesAfter, NodesAtEnd, NodesBefore
from bngrad.graph.nodes import owner
from bngrad.graph.same_values import origin
from bngrad.graph.subgraphs import nodes_of, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection

    from bngrad.graph.fresh_names import Names

_READERS = ("ConcatFromSequence", "SequenceAt", "SequenceLength")
"""The ops that read a sequence, and output a tensor."""

_FIRST = 2
"""The index of the first state: a Loop has its trip count and its condition before."""


def gather_sequences(graph: ir.Graph, names: Names, needed: Collection[ir.Value]) -> bool:
    """Replaces the sequences to which loops append; returns whether there were any.

    Args:
        graph: The main graph of a model without functions, with types; it is changed.
        names: The source of new names.
        needed: The values of the main graph that need a gradient. The nodes that output none of them stay, and so
            do the loops in their bodies: the tensors of their sequences may differ in shape.
    """
    replaced = False
    for outer in [node for node in graph if any(value in needed for value in node.outputs)]:
        bodies = [inner for body in subgraphs(outer) for inner in nodes_of(body)]
        for node in (outer, *bodies):
            loop = node
            while (index := _appended_state(loop)) is not None:
                loop, replaced = _replace(loop, index, names), True
    return replaced


def _appended_state(node: ir.Node) -> int | None:
    """Returns the number of the first state of a Loop that is a sequence to which each step appends."""
    body = node.attributes.get("body")
    if node.domain or node.op_type != "Loop" or body is None or len(node.inputs) < len(body.as_graph().inputs):
        return None
    return next((k for k in range(len(node.inputs) - _FIRST) if _appends(node, body.as_graph(), k)), None)


def _appends(node: ir.Node, body: ir.Graph, state: int) -> bool:
    before, after = body.inputs[_FIRST + state], body.outputs[1 + state]
    insert, first = after.producer(), _tensors(node.inputs[_FIRST + state])
    if state >= len(node.outputs) or not _is_taken_apart(node.outputs[state]):
        return False
    return (
        first is not None
        and insert is not None
        and (insert.domain, insert.op_type, insert.graph) == ("", "SequenceInsert", body)
        and (len(insert.inputs) < 3 or insert.inputs[2] is None)
        and insert.inputs[0] is before
        and len(before.uses()) == 1
        and not after.uses()
        and list(body.outputs).count(after) == 1
    )


def _is_taken_apart(sequence: ir.Value) -> bool:
    """Returns whether a sequence is only read by nodes that output tensors."""
    readers = [use.node for use in sequence.uses()]
    return (
        bool(readers)
        and not sequence.is_graph_output()
        and all(not reader.domain and reader.op_type in _READERS for reader in readers)
    )


def _tensors(sequence: ir.Value | None) -> list[ir.Value] | None:
    """Returns the tensors of a new sequence; None for any other."""
    maker = None if sequence is None else origin(sequence).producer()
    if maker is None or maker.domain or maker.op_type not in ("SequenceEmpty", "SequenceConstruct"):
        return None
    return [value for value in maker.inputs if value is not None]


def _replace(node: ir.Node, state: int, names: Names) -> ir.Node:
    """Replaces a Loop by one that has a scan output in the place of a state, and returns that."""
    body, graph = node.attributes["body"].as_graph(), owner(node)
    name = node.name or node.op_type
    insert = body.outputs.pop(1 + state).producer()
    element = None if insert is None else insert.inputs[1]
    assert insert is not None, "see _appends"  # noqa: S101
    assert element is not None, "an input that the op requires"  # noqa: S101
    body.remove(insert, safe=True)
    body.inputs.pop(_FIRST + state)
    copy = NodesAtEnd(body, names, f"{name}_sequence").op("Identity", element)
    copy.type, copy.shape = element.type, element.shape
    body.outputs.append(copy)
    inputs = [value for index, value in enumerate(node.inputs) if index != _FIRST + state]
    if len(inputs) == _FIRST and inputs[1] is None:  # ONNX has no Loop with one input
        inputs[1] = NodesBefore(node, names, name).constant(True, ir.DataType.BOOL)
    attributes = list(node.attributes.values())
    node.attributes.clear()
    loop = ir.Node("", "Loop", inputs, attributes, num_outputs=len(body.outputs) - 1, name=node.name)
    loop.metadata_props.update(node.metadata_props)
    scan = loop.outputs[-1]
    scan.name, scan.type = names.fresh(f"{name}_sequence"), element.type
    scan.shape = None if element.shape is None else ir.Shape([None, *element.shape])
    make = NodesAfter(loop, names, f"{name}_sequence")
    old = list(node.outputs)
    graph.insert_before(node, loop)
    for value, new in zip((*old[:state], *old[state + 1 :]), loop.outputs, strict=False):
        new.type, new.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, new, replace_graph_outputs=True)
        new.name, value.name = value.name, None
    first = _tensors(node.inputs[_FIRST + state]) or []
    parts = [make.op("Unsqueeze", tensor, make.int64([0])) for tensor in first]
    stacked = make.op("Concat", *parts, scan, axis=0) if parts else scan
    sequence = make.op("SplitToSequence", stacked, axis=0, keepdims=0)
    sequence.type = old[state].type
    ir.convenience.replace_all_uses_with(old[state], sequence)
    graph.remove(node, safe=True)
    return loop
