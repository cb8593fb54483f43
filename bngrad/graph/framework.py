"""The framework that a model was exported from, whose conventions its gradients follow.

This package's exporters record it in the model's metadata, where anyone may write it::

    bngrad.framework: pytorch

Without that entry, the name of the exporter shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast, get_args

from bngrad.errors import ModelError
from bngrad.graph.torch_records import has_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

Framework = Literal["pytorch", "tensorflow", "jax"]

KEY = "bngrad.framework"
"""The key in ``ModelProto.metadata_props``."""

_OF_PRODUCER: Mapping[str, Framework] = {
    "pytorch": "pytorch",
    "tf2onnx": "tensorflow",
    "keras2onnx": "tensorflow",
    "bngrad.keras": "tensorflow",
    "jax2onnx": "jax",
}
"""The framework by ``ModelProto.producer_name``."""


def record_framework(model: ir.Model, framework: Framework) -> None:
    """Writes the framework into a model's metadata, which `bngrad.save` and other tools keep."""
    model.metadata_props[KEY] = framework


def framework_of(model: ir.Model) -> Framework | None:
    """Returns the framework of a model; None if it is not recorded.

    Raises:
        ModelError: The metadata name a framework that is not one of `Framework`.
    """
    recorded = model.metadata_props.get(KEY)
    if recorded in get_args(Framework):
        return cast("Framework", recorded)
    if recorded is not None:
        raise ModelError(
            f"the model's metadata {KEY!r} is {recorded[:40]!r}; expected one of {', '.join(get_args(Framework))}"
        )
    if has_records(model.graph):  # a tool has replaced the producer's name by its own
        return "pytorch"
    return _OF_PRODUCER.get(model.producer_name or "")
