"""The graph of an optimizer, made to run on stock ORT with all parameters as one vector.

Optimizers update each element by itself, except for the norm of all gradients: a sequence of one vector gives the
same as one of a tensor for each parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import raise_refusals
from bngrad.io.files import load
from bngrad.ort_training.errors import OrtTrainingError, as_ort_training_error
from bngrad.passes.pipeline import for_target
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.return_state import state_of

if TYPE_CHECKING:
    import os

_OPTIMIZERS = ("AdamWOptimizer", "SGDOptimizerV2")
_OF_VECTORS = (*_OPTIMIZERS, "InplaceClipGradNorm")
"""The ops that give the same for one vector as for a tensor for each parameter."""


@dataclass
class OptimizerGraph:
    """An optimizer's graph, whose state is vectors."""

    model: ir.Model
    vectors: list[str]
    """The inputs that were sequences: params, gradients, first_order_moments, second_order_moments."""
    updates: dict[str, str]
    """The output with the next value of each of them that has one."""


def read_optimizer_graph(path: str | os.PathLike[str], size: int) -> OptimizerGraph:
    """Reads the graph of an optimizer.

    Args:
        path: The file.
        size: The number of elements of the vectors.

    Raises:
        OrtTrainingError: The file cannot be read or rewritten, or is not that of an optimizer of
            `onnxruntime.training`.
    """
    with as_ort_training_error():
        model = load(path)
        InferTypesPass()(model)
        optimizers = [node.op_type for node in model.graph if node.op_type in _OPTIMIZERS]
        if len(optimizers) != 1:
            actual = ", ".join(optimizers) or "none"
            raise OrtTrainingError(
                f"{path}: of the nodes {' and '.join(_OPTIMIZERS)} it has {actual}; expected one"
            )
        vectors = _as_vectors(model, size)
        model, _ = for_target(model, target="stock")
    return OptimizerGraph(model, vectors, state_of(model))


def _as_vectors(model: ir.Model, size: int) -> list[str]:
    """Replaces each input that is a sequence by a vector of its name, as the only element; returns the names."""
    graph, names, vectors = model.graph, Names(model), []
    for node in graph:
        for value in node.inputs:
            if value is not None and isinstance(value.type, ir.SequenceType) and node.op_type not in _OF_VECTORS:
                raise_refusals(
                    [(node, f"it reads the sequence {value.name!r}; only an optimizer and clipping may")]
                )
    for sequence in [value for value in graph.inputs if isinstance(value.type, ir.SequenceType)]:
        vector = ir.Value(name=sequence.name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([size]))
        graph.inputs[graph.inputs.index(sequence)] = vector
        node = ir.node("SequenceConstruct", [vector], name=names.fresh(f"{sequence.name}_SequenceConstruct"))
        node.outputs[0].name, node.outputs[0].type = names.fresh(f"{sequence.name}_sequence"), sequence.type
        sequence.replace_all_uses_with(node.outputs[0])
        graph.insert_before(graph[0], node)
        vectors.append(str(vector.name))
    return vectors
