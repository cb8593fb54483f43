"""The subject of a validation: the training graph under test, what it is compared with, and the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bngrad.autodiff.training_graph import Training, training_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.running_statistics import SharedStatistics
    from bngrad.training.differentiate import RunningVariance

    Array = NDArray[Any]

Against = Literal["ort", "reference", "numeric", "torch"]


class Options(NamedTuple):
    """The options by which a forward model is differentiated; see `bngrad.differentiate`."""

    loss: str | None = None
    wrt: Sequence[str] | None = None
    frozen: Sequence[str] = ()
    training: Sequence[str] = ()
    running_variance: RunningVariance | None = None
    shared_statistics: SharedStatistics | None = None

    @property
    def unbiased(self) -> bool:
        """Whether running variances are updated with the unbiased variance of the batch."""
        return self.running_variance == "unbiased"

    def graph(self, model: ir.Model) -> Training:
        """Returns our training graph of a forward model in ORT's dialect, with the biased running variance."""
        options = self._asdict()
        del options["running_variance"]
        return training_graph(model, **options)


class InputOptions(NamedTuple):
    """The options by which the inputs are chosen."""

    inputs: Mapping[str, Array]
    """Given arrays by input name; other inputs are random."""
    dims: Mapping[str, int]
    """Sizes of symbolic dimensions by name."""
    batch_size: int | None
    """Size of the first dimension of the inputs, where it is symbolic; None for the default."""
    seed: int
    """Seed of the random inputs."""


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
    """What the graph is compared with; `ort` becomes `reference` if ORT's builder does not support the model."""
    other_builder: bool
    """Whether the original and the graph under test are from different builders."""
    options: Options
    """The options by which the forward model is differentiated."""
    notes: list[str]
    """Notes for the report."""
