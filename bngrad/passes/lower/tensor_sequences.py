"""Computing on each tensor of a sequence: unrolled where its length is known, else in a Loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.builder import NodeMaker
from bngrad.graph.nodes import raise_refusals
from bngrad.opset.functions import DOMAIN
from bngrad.passes.prepare.return_state import return_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.passes.base import Context
    from bngrad.passes.lower.site import Site

    Compute = Callable[[NodeMaker, Sequence[ir.Value]], Sequence[ir.Value]]
    """Inserts the nodes for the tensors at one index of several sequences, and returns the results."""


class _Body(NodeMaker):
    """Creates the nodes of a Loop's body."""

    def __init__(self, context: Context, prefix: str) -> None:
        super().__init__(context.names, prefix)
        self._context = context
        self.nodes: list[ir.Node] = []

    def _place(self, node: ir.Node) -> None:
        self._context.bngrad_ops += node.domain == DOMAIN
        self.nodes.append(node)

    def value(self, what: str, type_: ir.TypeProtocol, shape: ir.Shape | None = None) -> ir.Value:
        return ir.Value(name=self.names.fresh(f"{self._prefix}_{what}"), type=type_, shape=shape)


def elements_of(sequence: ir.Value) -> Sequence[ir.Value] | None:
    """The tensors of a sequence that a SequenceConstruct creates; None for any other."""
    node = sequence.producer()
    if node is None or node.domain or node.op_type != "SequenceConstruct" or None in node.inputs:
        return None
    return [value for value in node.inputs if value is not None]


def map_sequences(site: Site, sequences: Sequence[ir.Value], compute: Compute) -> list[ir.Value]:
    """Returns a sequence for each result of a computation on the tensors of several sequences of one length.

    All tensors at one index have one shape, and float elements. In a Loop a tensor with another number of elements
    than the first, or a sequence that is shorter than another, fails at run time.
    """
    unrolled = [elements_of(sequence) for sequence in sequences]
    elements = [tensors for tensors in unrolled if tensors is not None]
    if len(elements) < len(unrolled):
        return _loop(site, sequences, compute)
    if len(set(map(len, elements))) > 1:
        reason = f"its sequences have {' and '.join(str(len(tensors)) for tensors in elements)} tensors"
        raise_refusals([(site.node, f"{reason}; expected one number")])
    results = zip(*(compute(site, tensors) for tensors in zip(*elements, strict=True)), strict=True)
    return [_typed(site.op("SequenceConstruct", *values)) for values in results]


def concatenated(site: Site, sequence: ir.Value) -> ir.Value:
    """Returns the tensors of a sequence, one after the other along axis 0."""
    tensors = elements_of(sequence)
    if tensors is not None:
        return site.op("Concat", *tensors, axis=0)
    return site.op("ConcatFromSequence", sequence, axis=0)


def return_sequence(site: Site, old: ir.Value, new: ir.Value, output: int | None = None) -> None:
    """Makes the new tensors of a sequence graph outputs, if the old ones are graph inputs or initializers.

    Args:
        site: The node that updates the sequence.
        old: The sequence that ONNX Runtime writes to.
        new: The sequence of its new tensors.
        output: The index of the node's output that is the new sequence, if it has one.
    """
    model, outputs = site.context.model, site.node.outputs
    if site.node.graph is not model.graph:
        reason = "it is in a subgraph or a function, which cannot return the new value of its state"
        raise_refusals([(site.node, f"{reason}; expected it in the main graph")])
    if old.producer() is None:
        if output is not None and output < len(outputs) and outputs[output].name:
            return_state(model, old, outputs[output])
        else:
            return_state(model, old, _named_after(site, old, new))
    for before, after in zip(elements_of(old) or (), elements_of(new) or (), strict=True):
        if before.producer() is None:
            return_state(model, before, _named_after(site, before, after))


def _named_after(site: Site, old: ir.Value, new: ir.Value) -> ir.Value:
    named = site.name(new, site.names.fresh(f"{old.name}_new"))
    named.type, named.shape = old.type, old.shape
    return named


def _typed(sequence: ir.Value) -> ir.Value:
    sequence.type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    return sequence


def _loop(site: Site, sequences: Sequence[ir.Value], compute: Compute) -> list[ir.Value]:
    body = _Body(site.context, site.node.name or site.node.op_type)
    index = body.value("index", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    go_on = body.value("condition", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    first, *others = (body.op("SequenceAt", sequence, index) for sequence in sequences)
    if others:
        shape = body.op("Shape", first)
        others = [body.op("Reshape", tensor, shape) for tensor in others]
    results = compute(body, [first, *others])
    carried = [_typed(body.value(f"results_{i}", ir.TensorType(ir.DataType.FLOAT))) for i in range(len(results))]
    after = [
        _typed(body.op("SequenceInsert", value, result)) for value, result in zip(carried, results, strict=True)
    ]
    done = body.op("Identity", go_on)
    done.type, done.shape = go_on.type, go_on.shape
    graph = ir.Graph([index, go_on, *carried], [done, *after], nodes=body.nodes, name=f"{site.node.name}_body")
    # The longest, so that a shorter one fails.
    lengths = [site.op("SequenceLength", sequence) for sequence in sequences]
    count = lengths[0] if len(lengths) == 1 else site.op("Max", *lengths)
    empty = [site.op("SequenceEmpty", dtype=int(ir.DataType.FLOAT)) for _ in results]
    return [
        _typed(value)
        for value in site.outputs_of(
            "Loop", count, None, *empty, outputs=[f"sequence_{i}" for i in range(len(results))], body=graph
        )
    ]
