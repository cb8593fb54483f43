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

    loss: str
    """The output that holds the loss."""
    weights: Sequence[str]
    """The inputs and initializers that are trained."""
    buffers: Mapping[str, str]
    """The output with the next value, by the names of inputs that a step replaces."""
    size_conditions: Sequence[Condition] = ()
    """Conditions on the sizes of symbolic dimensions; see `size_conditions`."""
    training_size_conditions: Sequence[Condition] = ()
    """Further conditions in training mode."""


def write_forward_info(model: ir.Model, info: ForwardInfo) -> None:
    """Writes the metadata into a model."""
    model.metadata_props[KEY] = json.dumps({"version": _VERSION, **info._asdict()})


def read_forward_info(model: ir.Model) -> ForwardInfo | None:
    """Reads the metadata of a model; None if it has none.

    Raises:
        ModelError: It cannot be read, or names values that the model lacks.
    """
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
        info = ForwardInfo(
            str(document["loss"]), list(document["weights"]), dict(document["buffers"]), *conditions
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"the model's metadata {KEY!r} cannot be read ({type(error).__name__}: {error}); export it again"
        ) from error
    if version != _VERSION:
        raise ModelError(
            f"the model's metadata {KEY!r} has version {version}; expected {_VERSION}: export it again"
        )
    outputs = {str(value.name) for value in model.graph.outputs}
    names = {str(value.name) for value in (*model.graph.inputs, *model.graph.initializers.values())}
    missing = [name for name in (info.loss, *info.buffers.values()) if name not in outputs]
    missing += [name for name in (*info.weights, *info.buffers) if name not in names]
    if missing:
        raise ModelError(f"the model lacks {listed(missing)}, which its metadata {KEY!r} names; export it again")
    return info


def _dimensions(model: ir.Model) -> set[str]:
    """Returns the names of the symbolic dimensions of the inputs."""
    shapes = [value.shape for value in model.graph.inputs if value.shape is not None]
    return {str(size.value) for shape in shapes for size in shape if not isinstance(size, int)}
