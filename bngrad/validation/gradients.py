"""Which outputs of a training graph are gradients, and with respect to what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bngrad.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir as ir

METADATA = "bngrad.training_graph"
"""The key of what `differentiate` says of a training graph that it made, in the model's metadata."""

_SUFFIX = "_grad"


def gradients_of(model: ir.Model) -> dict[str, str]:
    """Returns the outputs of a training graph that are gradients, by the names of the inputs they belong to.

    They are what the model's metadata says; else the outputs ``<input>_grad``, as ONNX Runtime's gradient builder
    calls them.

    Raises:
        ModelError: The metadata is not what `differentiate` writes.
    """
    inputs = {str(value.name) for value in model.graph.inputs}
    outputs = [str(value.name) for value in model.graph.outputs]
    described = training_metadata(model)
    if described is not None:
        return {name: output for name, output in described["gradients"].items() if output in outputs}
    found = {name.removesuffix(_SUFFIX): name for name in outputs if name.endswith(_SUFFIX)}
    return {name: output for name, output in found.items() if name in inputs}


def loss_of(model: ir.Model) -> str | None:
    """Returns the loss that a training graph's metadata names; None if it has none."""
    described = training_metadata(model)
    return None if described is None else str(described["loss"])


def training_metadata(model: ir.Model) -> dict[str, dict[str, str]] | None:
    """Returns what `differentiate` wrote of a training graph; None if it did not make it.

    Raises:
        ModelError: The text is not what it writes.
    """
    text = model.metadata_props.get(METADATA)
    if text is None:
        return None
    try:
        described = json.loads(text)
        names = [described["loss"], *described["gradients"].keys(), *described["gradients"].values()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"the model's metadata {METADATA!r} cannot be read: {error!r}; remove it") from None
    if not all(isinstance(name, str) for name in names):
        raise ModelError(f"the model's metadata {METADATA!r} has names that are no text; remove it")
    return described  # type: ignore[no-any-return]
