"""The subject of a validation: the training graph under test, what it is compared with, and the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.options import ForwardOptions
    from bngrad.validation.options import Against

    Array = NDArray[Any]


class Subject(NamedTuple):
    """The models of a validation, and their inputs."""

    forward: ir.Model | None
    """The user's forward model; None if the user gave a training graph."""
    original: ir.Model
    """The training graph in ORT's dialect: from ORT's builder, or ours before it was lowered."""
    tested: ir.Model
    """The graph under test, for stock ONNX Runtime."""
    feeds: dict[str, Array]
    """The inputs of all models."""
    loss: str | None
    """The name of the loss; None if it is unknown."""
    gradients: dict[str, str]
    """The gradient outputs, by the names of the values they belong to."""
    against: Against
    """The reference to compare with; `ort` becomes `reference` if ORT's builder does not support the model."""
    other_builder: bool
    """True if the original and the graph under test are from different builders."""
    options: ForwardOptions
    """The options by which the forward model is differentiated."""
    notes: list[str]
    """Notes for the report."""
