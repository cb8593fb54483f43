"""Types in the bodies of If, Loop and Scan that onnx's inference leaves open.

It does not use constants around a body, which may be axes or shapes, nor the ranks of the states of a Loop, since
these may change from step to step. They are inferred here for states whose rank the body keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.control_flow.repetition import Repetition, repetition
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.passes.prepare.complete_types import infer_outputs
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Shapes = list[tuple[ir.Value, ir.Shape | None]]


def infer_bodies(model: ir.Model) -> None:
    """Infers types in bodies, and those of the values after their nodes.

    Args:
        model: A model whose types were inferred.
    """
    if any(True for node in model.graph for _ in subgraphs(node)):
        _complete(model.graph, model)
        InferTypesPass()(model)


def _complete(graph: ir.Graph, model: ir.Model) -> None:
    for node in graph:
        loop = repetition(node)
        if loop is not None:
            _complete_loop(loop, model)
        elif any(True for _ in subgraphs(node)):
            bodies = list(subgraphs(node))
            for body in bodies:
                _complete(body, model)
            if not node.domain and node.op_type == "If":
                for value, *results in zip(node.outputs, *(body.outputs for body in bodies), strict=True):
                    _fill(value, _common([result.shape for result in results]))
        elif any(value.shape is None for value in node.outputs if value.name):
            infer_outputs(node, model)


def _complete_loop(loop: Repetition, model: ir.Model) -> None:
    """Completes the types of a Loop or Scan and of its body."""
    inputs = loop.body.inputs
    before = [(value, value.shape) for value in (*inputs, *_results(loop.body))]
    for index in loop.element_inputs:
        sequence = loop.node.inputs[index]
        if sequence is not None and sequence.shape is not None:
            _fill(inputs[index], _without(sequence.shape, loop.slices_of_input(index).axis))
    for index in loop.state_inputs:
        first = loop.node.inputs[index]
        if first is not None and first.shape is not None:
            _fill(inputs[index], ir.Shape([None] * len(first.shape)))
    _complete(loop.body, model)
    states = [inputs[index].shape for index in loop.state_inputs]
    if any(_rank(shape) != _rank(loop.result(number).shape) for number, shape in enumerate(states)):
        for value, shape in before:
            value.shape = shape
        return
    for number, shape in enumerate(states[: len(loop.node.outputs)]):
        _fill(loop.node.outputs[number], None if shape is None else ir.Shape([None] * len(shape)))
    for index in loop.scan_outputs:
        if index < len(loop.node.outputs) and (shape := loop.result(index).shape) is not None:
            axis = loop.slices_of_output(index).axis % (len(shape) + 1)
            _fill(loop.node.outputs[index], ir.Shape([*shape[:axis], None, *shape[axis:]]))


def _results(graph: ir.Graph) -> Iterable[ir.Value]:
    for node in nodes_of(graph):
        yield from node.outputs
        for body in subgraphs(node):
            yield from body.inputs


def _fill(value: ir.Value, shape: ir.Shape | None) -> None:
    if value.shape is None and isinstance(value.type, ir.TensorType):
        value.shape = shape


def _without(shape: ir.Shape, axis: int) -> ir.Shape | None:
    sizes = list(shape)
    if not -len(sizes) <= axis < len(sizes):
        return None
    del sizes[axis]
    return ir.Shape(sizes)


def _common(shapes: Sequence[ir.Shape | None]) -> ir.Shape | None:
    """Returns the dimensions that all shapes have; None if a rank is unknown or different."""
    ranked = [list(shape) for shape in shapes if shape is not None]
    if len(ranked) < len(shapes) or len({len(sizes) for sizes in ranked}) != 1:
        return None
    return ir.Shape(
        [size if all(size == other for other in others) else None for size, *others in zip(*ranked, strict=True)]
    )


def _rank(shape: ir.Shape | None) -> int | None:
    return None if shape is None else len(shape)
