"""The documents of ``--json``, except those of inspect of one model (`Inspection`) and validate (`Report`).

docs/generate/json_schemas.py writes the JSON Schema of each from these types and their docstrings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from bngrad.inspection.inspect import Inspection

if TYPE_CHECKING:
    from bngrad.bench.measure import MeasurementDocument
    from bngrad.passes.imports.decomposed.candidates import Candidate
    from bngrad.training.step_info import StepInfo


class InspectedModel(Inspection):
    """The result of ``bngrad inspect --json`` for one of several models."""

    model: str
    """The path of the model."""


class UnreadableModel(TypedDict):
    """One of several models of ``bngrad inspect --json`` that cannot be read."""

    model: str
    """The path of the model."""
    error: str
    """The reason why it cannot be read."""


class RewriteDocument(TypedDict):
    """The document of ``bngrad rewrite --json``."""

    model: str
    """The model that was read."""
    output: str
    """The file that was written."""
    target: Literal["stock", "training"]
    """The runtime that the result is for."""
    rewritten: dict[str, int]
    """The number of new nodes, by ``bngrad`` op."""
    lowered: dict[str, int]
    """The number of nodes that were replaced by standard ONNX, by op."""
    state: dict[str, str]
    """The output with the new value of an input, to feed back in the next step, by the input."""
    notes: list[str]
    """Other changes of the model."""
    recognized: dict[str, int]
    """The number of batch norms in primitives that were replaced, by kind."""
    candidates: list[Candidate]
    """The recognized batch norms in primitives, and near misses."""


class DifferentiateDocument(TypedDict):
    """The document of ``bngrad differentiate --json``."""

    model: str
    """The model that was read."""
    output: str
    """The training graph that was written."""
    loss: str
    """The output that holds the loss."""
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic or other buffer, by the input that takes it next."""
    target: str | None
    """The input with the target of a loss function; null if the loss is the model's own."""
    state: str | None
    """The file that --state names; null without it."""
    notes: list[str]
    """The changes of the forward model."""
    warnings: list[str]
    """Warnings of probable mistakes."""


class StepDocument(TypedDict):
    """The document of ``bngrad step --json``."""

    model: str
    """The model that was read."""
    files: list[str]
    """The files that were written: the evaluation graph, the initial state and the step."""
    notes: list[str]
    """The changes of the forward model."""
    warnings: list[str]
    """Warnings of probable mistakes."""
    step: StepInfo
    """The metadata of the step, under the key ``bngrad.step``."""


class TrainDocument(TypedDict):
    """The document of ``bngrad train --json``."""

    status: Literal["finished", "stopped early", "not finite", "interrupted"]
    """The end of the run; the exit code is 0, 0, 1 and 130."""
    reason: str | None
    """The reason why the run stopped, if a loss was not finite."""
    epochs: int
    """The number of epochs that are complete, including those before --resume."""
    steps: int
    """The number of steps, including those before --resume."""
    training_loss: float | None
    """The mean loss of the last epoch; null if no epoch of this run is complete."""
    validation_loss: float | None
    """The validation loss after the last epoch; null without validation data."""
    accuracy: float | None
    """The fraction of the validation data that is classified correctly; null if the model is not a classifier."""
    best_epoch: int | None
    """The epoch with the lowest validation loss; null without validation data."""
    best_validation_loss: float | None
    """The lowest validation loss; null without validation data."""
    output: str | None
    """The inference model that was written."""
    state: str | None
    """The file with the final state that was written."""
    checkpoint: str | None
    """The file for checkpoints."""


class FinalizeDocument(TypedDict):
    """The document of ``bngrad finalize --json``."""

    model: str
    """The model that was read."""
    output: str
    """The inference model that was written."""
    weights: list[str]
    """The weights and running statistics with new values."""
    kept: list[str]
    """Those that stay as they are."""


class ReestimatedDocument(TypedDict):
    """The new running statistics of a batch norm, compared with the old ones."""

    name: str
    """The batch norm."""
    elements: int
    """The number of values of a channel that the statistics are of."""
    mean_shift: float
    """The largest distance of an old mean from the new one, in new standard deviations."""
    std_ratio: float
    """The largest factor, 1 or more, between an old and a new standard deviation."""
    far_off: bool
    """True if the mean shift is above 0.5, or the factor above 1.5."""


class LossDocument(TypedDict):
    """The loss of the data in inference mode."""

    loss: float
    """The loss."""
    accuracy: float | None
    """The fraction of the data that is classified correctly; null if the model is not a classifier."""


class StatisticsDocument(TypedDict):
    """The document of ``bngrad statistics --json``."""

    model: str
    """The model that was read."""
    output: str
    """The model that was written."""
    samples: int
    """The number of samples."""
    batches: int
    """The number of batches."""
    batch_norms: list[ReestimatedDocument]
    """The batch norms with new statistics."""
    before: LossDocument | None
    """The loss with the old statistics; null without a loss, or data for it."""
    after: LossDocument | None
    """The loss with the new statistics; null without a loss, or data for it."""


class AverageDocument(TypedDict):
    """The document of ``bngrad average --json``."""

    states: list[str]
    """The states that were read."""
    weights: list[float]
    """Their weights in the average."""
    output: str
    """The state that was written."""
    tensors: int
    """The number of its tensors."""


class RestoreDocument(TypedDict):
    """The document of ``bngrad restore --json``."""

    model: str
    """The model that was read."""
    output: str
    """The model that was written."""
    samples: int
    """The number of samples."""
    batches: int
    """The number of batches."""
    batch_norms: dict[str, str]
    """The new batch norms, by the names of their layers."""


class OutputErrorDocument(TypedDict):
    """The difference between an output before and after an edit, over all data."""

    output: str
    """The output."""
    max_error: float
    """The largest absolute difference."""
    mean_error: float
    """The mean absolute difference."""
    relative_error: float
    """The largest absolute difference, divided by the largest absolute value."""


class BatchNormDocument(TypedDict):
    """The document of ``bngrad batchnorm --json``."""

    model: str
    """The model that was read."""
    output: str
    """The model that was written."""
    batch_norms: list[str]
    """The batch norms that were edited."""
    folded: dict[str, str]
    """The layer that a batch norm was folded into, by the name of the batch norm."""
    kept: dict[str, str]
    """The reasons why batch norms were not folded, by their names."""
    samples: int | None
    """The number of samples; null without --data."""
    errors: list[OutputErrorDocument] | None
    """The differences of the outputs in inference mode; null without --data."""


class BenchDocument(TypedDict):
    """The document of ``bngrad bench --json``."""

    library: str
    """The path of the native library."""
    version: str
    """The version of the library."""
    isa: str
    """The instruction set that was used; the device, if it is not the CPU."""
    threads: int
    """The number of threads."""
    repeats: int
    """The number of trials per case."""
    rows: list[MeasurementDocument]
    """The cases."""


class OracleDocument(TypedDict):
    """The document of ``bngrad oracle status --json`` and ``bngrad oracle install --json``."""

    state: Literal["ready", "broken", "missing"]
    """The state of the environment."""
    path: str
    """The folder of the environment."""
    problem: str | None
    """The reason why the environment is not ready; null if it is."""


class OracleRemoveDocument(TypedDict):
    """The document of ``bngrad oracle remove --json``."""

    removed: list[str]
    """The folders that were deleted."""
