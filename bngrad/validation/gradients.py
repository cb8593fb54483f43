"""The gradients among the outputs of a training graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.metadata import KEY, TrainingGraph, read_training_graph
from bngrad.opset.gradient_names import differentiated_name

if TYPE_CHECKING:
    import onnx_ir as ir


def gradients_of(model: ir.Model) -> dict[str, str]:
    """Returns the outputs of a training graph that are gradients, by the names of the inputs they belong to.

    They are read from the model's metadata. Without metadata, they are the outputs ``<input>_grad``, as ONNX
    Runtime's gradient builder names them.

    Raises:
        ModelError: The metadata are invalid.
    """
    described = described_training_graph(model)
    if described is not None:
        return described.gradients
    inputs = {str(value.name) for value in model.graph.inputs}
    outputs = [str(value.name) for value in model.graph.outputs]
    return {name: output for output in outputs if (name := differentiated_name(output)) in inputs}


def described_training_graph(model: ir.Model) -> TrainingGraph[ir.Model] | None:
    """Returns the metadata of a training graph from `differentiate`; None if the model has none.

    Raises:
        ModelError: The metadata are invalid.
    """
    return read_training_graph(model) if KEY in model.metadata_props else None
