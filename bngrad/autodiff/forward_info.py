"""Metadata that an exporter adds to a forward model: its loss, its weights, and the buffers that a step replaces.

It is JSON under one key of the model's metadata::

    {"version": 1, "loss": "loss", "weights": ["fc.weight", "fc.bias"],
     "buffers": {"bn.num_batches_tracked": "bn.num_batches_tracked_new"},
     "size_conditions": [], "training_size_conditions": [["!=", "N", 1]]}

`differentiate` takes its defaults from it. Running statistics of batch norms may be among the buffers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from bngrad.autodiff.size_conditions import require_conditions
from bngrad.errors import ModelError
from bngrad.graph.name_messages import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.size_conditions import Condition

KEY = "bngrad.forward"
"""The key in ``ModelProto.metadata_props``."""

_VERSION = 1


class ForwardInfo(NamedTuple):
    """The metadata of a forward model."""

    loss: str | None
    """The output that holds the loss; None if the model is for inference."""
    weights: Sequence[str] | None
    """The inputs and initializers that are trained; None for the default ones."""
    buffers: Mapping[str, str]
    """The output with the next value, by the names of inputs that a step replaces."""
    size_conditions: Sequence[Condition] = ()
    """Conditions on the sizes of symbolic dimensions; see `size_conditions`."""
    training_size_conditions: Sequence[Condition] = ()
    """Further conditions in training mode."""


def write_forward_info(model: ir.Model, info: ForwardInfo) -> None:
    """Writes the metadata into a model."""
    model.metadata_props[KEY] = json.dumps({"version": _VERSION, **info._asdict()})


def update_forward_info(model: ir.Model, *, new_weights: bool = False) -> None:
    """Leaves out of the metadata of a changed model what the model lacks.

    Args:
        model: The model; its metadata is changed.
        new_weights: Whether it has weights that the exporter did not know; then the default ones are trained.

    Raises:
        ModelError: The metadata cannot be read.
    """
    info = _recorded(model)
    if info is None:
        return
    outputs, names = _outputs(model), _names(model)
    weights = None if new_weights or info.weights is None else [name for name in info.weights if name in names]
    buffers = {name: new for name, new in info.buffers.items() if name in names and new in outputs}
    loss = info.loss if info.loss in outputs else None
    write_forward_info(model, info._replace(loss=loss, weights=weights, buffers=buffers))


def new_buffers(model: ir.Model) -> set[str]:
    """Returns the names of the outputs that are new values of buffers.

    Raises:
        ModelError: The metadata cannot be read.
    """
    info = _recorded(model)
    return set() if info is None else set(info.buffers.values())


def read_forward_info(model: ir.Model) -> ForwardInfo | None:
    """Reads the metadata of a model; None if it has none.

    Raises:
        ModelError: It cannot be read, or names values that the model lacks.
    """
    info = _recorded(model)
    if info is None:
        return None
    outputs, names = _outputs(model), _names(model)
    missing = [name for name in (info.loss, *info.buffers.values()) if name is not None and name not in outputs]
    missing += [name for name in (*(info.weights or ()), *info.buffers) if name not in names]
    if missing:
        raise ModelError(f"the model lacks {listed(missing)}, which its metadata {KEY!r} names; export it again")
    return info


def _recorded(model: ir.Model) -> ForwardInfo | None:
    text = model.metadata_props.get(KEY)
    if text is None:
        return None
    try:
        document = json.loads(text)
        version = int(document["version"])
        conditions = (
            require_conditions(document.get(name, []), _dimensions(model))
            for name in ("size_conditions", "training_size_conditions")
        )
        loss, weights = document["loss"], document["weights"]
        info = ForwardInfo(
            None if loss is None else str(loss),
            None if weights is None else list(weights),
            dict(document["buffers"]),
            *conditions,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"the model's metadata {KEY!r} cannot be read ({type(error).__name__}: {error}); export it again"
        ) from error
    if version != _VERSION:
        raise ModelError(
            f"the model's metadata {KEY!r} has version {version}; expected {_VERSION}: export it again"
        )
    return info


def _outputs(model: ir.Model) -> set[str]:
    return {str(value.name) for value in model.graph.outputs}


def _names(model: ir.Model) -> set[str]:
    """Returns the names of the inputs and initializers."""
    return {str(value.name) for value in (*model.graph.inputs, *model.graph.initializers.values())}


def _dimensions(model: ir.Model) -> set[str]:
    """Returns the names of the symbolic dimensions of the inputs."""
    shapes = [value.shape for value in model.graph.inputs if value.shape is not None]
    return {str(size.value) for shape in shapes for size in shape if not isinstance(size, int)}
