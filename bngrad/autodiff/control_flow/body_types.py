"""Types in the bodies of If, Loop and Scan that onnx's inference leaves open.

It does not use constants around a body, which may be axes or shapes, nor the ranks of the states of a Loop, since
these may change from step to step. They are inferred here for states whose rank the body keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.control_flow.branches import branches_of
from bngrad.autodiff.control_flow.repetition import Repetition, repetition
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.passes.prepare.complete_types import infer_outputs
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Shapes = list[tuple[ir.Value, ir.Shape | None]]

CHANGES_SHAPE = "bngrad.changes_shape"
"""The key in the ``meta`` of a state in a body for whether it has other sizes in other steps."""


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
            for body in subgraphs(node):
                _complete(body, model)
            branches = [body.outputs for body in branches_of(node) or ()]
            for value, *results in zip(node.outputs, *branches, strict=True) if branches else ():
                _fill(value, _common([result.shape for result in results]))
        elif any(value.shape is None for value in node.outputs if value.name):
            infer_outputs(node, model)


def _complete_loop(loop: Repetition, model: ir.Model) -> None:
    """Completes the types of a Loop or Scan and of its body."""
    inputs = loop.body.inputs
    for index in loop.element_inputs:
        sequence = loop.node.inputs[index]
        if sequence is not None and sequence.shape is not None:
            _fill(inputs[index], _without(sequence.shape, loop.slices_of_input(index).axis))
    before = [(value, value.shape) for value in (*inputs, *_results(loop.body))]
    shapes = _lasting_shapes(loop, model, before)
    if shapes is None:
        _restore(before)
        _complete(loop.body, model)
        return
    for value, lasting in zip(loop.node.outputs, shapes, strict=False):
        _fill(value, lasting)
    for index in loop.scan_outputs:
        if index < len(loop.node.outputs) and (element := loop.result(index).shape) is not None:
            axis = loop.slices_of_output(index).axis % (len(element) + 1)
            _fill(loop.node.outputs[index], ir.Shape([*element[:axis], None, *element[axis:]]))


def _lasting_shapes(loop: Repetition, model: ir.Model, before: Shapes) -> list[ir.Shape] | None:
    """Completes the body with the shapes that its states have in all steps; None if their rank may change.

    At first, these are the shapes before the first step. Sizes that a step changes are unknown.
    """
    inputs = [loop.body.inputs[index] for index in loop.state_inputs]
    firsts = [loop.node.inputs[index] for index in loop.state_inputs]
    shapes = [
        first.shape if value.shape is None and first is not None else value.shape
        for value, first in zip(inputs, firsts, strict=True)
    ]
    while all(shape is not None for shape in shapes):
        _restore(before)
        for value, shape in zip(inputs, shapes, strict=True):
            _fill(value, shape)
        _complete(loop.body, model)
        results = [loop.result(number).shape for number in range(loop.states)]
        if [_rank(shape) for shape in results] != [_rank(shape) for shape in shapes]:
            return None
        for value, shape, result in zip(inputs, shapes, results, strict=True):
            if shape is not None and result is not None and _differ(shape, result):
                value.meta[CHANGES_SHAPE] = True
        lasting = [_common(pair) for pair in zip(shapes, results, strict=True)]
        if lasting == shapes:
            return [shape for shape in lasting if shape is not None]
        shapes = lasting
    return None


def _restore(shapes: Shapes) -> None:
    for value, shape in shapes:
        value.shape = shape


def _differ(shape: ir.Shape, other: ir.Shape) -> bool:
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, other, strict=True))


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
        [
            size if _is_known(size) and all(size == other for other in others) else None
            for size, *others in zip(*ranked, strict=True)
        ]
    )


def _is_known(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) or size.value is not None


def _rank(shape: ir.Shape | None) -> int | None:
    return None if shape is None else len(shape)
