"""Which outputs of a training graph are gradients, and with respect to what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.metadata import KEY, TrainingGraph, read_training_graph
from bngrad.opset.gradient_names import differentiated_name

if TYPE_CHECKING:
    import onnx_ir as ir


def gradients_of(model: ir.Model) -> dict[str, str]:
    """Returns the outputs of a training graph that are gradients, by the names of the inputs they belong to.

    They are what the model's metadata says; else the outputs ``<input>_grad``, as ONNX Runtime's gradient builder
    calls them.

    Raises:
        ModelError: The metadata is not what `differentiate` writes.
    """
    described = described_training_graph(model)
    if described is not None:
        return described.gradients
    inputs = {str(value.name) for value in model.graph.inputs}
    outputs = [str(value.name) for value in model.graph.outputs]
    return {name: output for output in outputs if (name := differentiated_name(output)) in inputs}


def described_training_graph(model: ir.Model) -> TrainingGraph[ir.Model] | None:
    """Returns what `differentiate` wrote of a training graph; None if it did not make it.

    Raises:
        ModelError: The metadata is not what it writes.
    """
    return read_training_graph(model) if KEY in model.metadata_props else None
