"""The metadata of a training graph: its loss, its gradients, and the outputs that are inputs of the next step.

It is JSON under one key of the model's metadata, so that a training loop in any language can read it: ONNX Runtime
exposes it as custom metadata (``session.get_modelmeta().custom_metadata_map`` in Python). For example::

    {"loss": "loss", "gradients": {"w": "w_grad"}, "running_statistics": {"mean": "mean_new"}, "warnings": []}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.nodes import all_nodes, is_gradient
from bngrad.io.files import as_ir

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import onnx

KEY = "bngrad.training_graph"
"""The key in ``ModelProto.metadata_props``."""

STEP = "bngrad.step"
"""The key of a training step and of its evaluation graph, whose format is in `bngrad.training.step_info`."""

_ADVICE = "make the training graph again with bngrad differentiate"

ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class TrainingGraph(Generic[ModelT]):
    """A training graph, and the names that a training loop needs."""

    model: ModelT
    """The `onnx.ModelProto` or `onnx_ir.Model`."""
    loss: str
    """The output that holds the loss."""
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic, by the name of the input that takes it in the next step."""
    warnings: list[str]
    """The warnings of `differentiate`."""


def write_training_graph(
    model: ir.Model,
    *,
    loss: str,
    gradients: Mapping[str, str],
    running_statistics: Mapping[str, str],
    warnings: Sequence[str],
) -> None:
    """Writes the names into a training graph's metadata; see `TrainingGraph`."""
    document = {
        "loss": loss,
        "gradients": dict(gradients),
        "running_statistics": dict(running_statistics),
        "warnings": list(warnings),
    }
    model.metadata_props[KEY] = json.dumps(document)


@overload
def read_training_graph(
    model: str | os.PathLike[str] | onnx.ModelProto,
) -> TrainingGraph[onnx.ModelProto]: ...
@overload
def read_training_graph(model: ir.Model) -> TrainingGraph[ir.Model]: ...


def read_training_graph(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
) -> TrainingGraph[onnx.ModelProto] | TrainingGraph[ir.Model]:
    """Reads the names that a training loop needs from a training graph that `differentiate` made.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`; also after `rewrite`.

    Returns:
        The names, and the model: of the type of the argument; for a path an `onnx.ModelProto`.

    Raises:
        InputError: The model cannot be read.
        ModelError: The file is not a model, the model was not made by `differentiate`, or its inputs or outputs
            were renamed since.
    """
    source = as_ir(model)
    text = source.metadata_props.get(KEY)
    if text is None:
        raise ModelError(
            f"the model has no metadata {KEY!r}; expected a training graph that bngrad differentiate made"
        )
    document = _parsed(text)
    _require_names(source.graph, document)
    if isinstance(model, ir.Model):
        return TrainingGraph(model, **document)
    return TrainingGraph(ir.to_proto(source), **document)


def is_built(model: ir.Model) -> bool:
    """Returns whether a model has gradient nodes, or is a training graph, a step or an evaluation graph."""
    return bool({KEY, STEP} & model.metadata_props.keys()) or any(map(is_gradient, all_nodes(model)))


def _parsed(text: str) -> dict[str, Any]:
    """Parses the metadata; the keys of the result are the fields of `TrainingGraph`."""
    try:
        document = json.loads(text)
        gradients, running = (_pairs(document[key]) for key in ("gradients", "running_statistics"))
        loss, warnings = document["loss"], [str(warning) for warning in document["warnings"]]
        if not isinstance(loss, str):
            raise TypeError("loss is not a string")  # noqa: TRY301 - one handler for all errors
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"the model's metadata {KEY!r} cannot be read ({what}); {_ADVICE}") from error
    return {"loss": loss, "gradients": gradients, "running_statistics": running, "warnings": warnings}


def _pairs(names: Any) -> dict[str, str]:  # noqa: ANN401 - any JSON value
    if not all(isinstance(name, str) for name in names.values()):
        raise TypeError("a name is not a string")
    return dict(names)


def _require_names(graph: ir.Graph, document: Mapping[str, Any]) -> None:
    """Refuses names that the graph lacks: it was edited after it was made."""
    inputs, outputs = ({value.name for value in values} for values in (graph.inputs, graph.outputs))
    pairs = (document["gradients"], document["running_statistics"])
    for what, existing, names in (
        ("output", outputs, [document["loss"], *(name for pair in pairs for name in pair.values())]),
        ("input", inputs, [name for pair in pairs for name in pair]),
    ):
        missing = next((name for name in names if name not in existing), None)
        if missing is not None:
            raise ModelError(
                f"the model's metadata {KEY!r} names the {what} {missing!r}, which the model lacks; {_ADVICE}"
            )
