"""Estimates the statistics of a model file as the options of ``bngrad statistics`` say, and the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bngrad.autodiff.loss_and_wrt import find_loss
from bngrad.errors import InputError, ModelError
from bngrad.graph.name_messages import listed
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.training.data_inputs import data_inputs
from bngrad.training.dataset import Dataset, load_data, permutation
from bngrad.training.estimate_statistics import StatisticsEstimate
from bngrad.training.inference_loss import InferenceLoss
from bngrad.training.losses import append_loss
from bngrad.training.metrics import evaluate
from bngrad.training.options import LossOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.options import RunningVariance
    from bngrad.training.estimate_statistics import Estimated
    from bngrad.training.loss_functions import LossFunction
    from bngrad.training.metrics import Evaluation
    from bngrad.training.step_info import DataInput

    Array = NDArray[Any]

_BATCH_SIZE = 32


class Result(NamedTuple):
    """The report of the command."""

    estimated: Estimated
    samples: int
    before: Evaluation | None
    """The loss with the old statistics; None if there is no loss, or no data for it."""
    after: Evaluation | None
    """The loss with the new statistics."""
    warnings: list[str]
    notes: list[str]


def estimate(
    model: ir.Model,
    sources: Sequence[str],
    *,
    batch_size: int | None,
    seed: int,
    batch_norms: Sequence[str] | None,
    running_variance: RunningVariance | None,
    loss: str | None,
    loss_fn: LossFunction | None,
    prediction: str | None,
) -> Result:
    """Estimates the running statistics of a model.

    Args:
        model: The forward model.
        sources: The data, see `load_data`.
        batch_size: The most samples of a batch; None for 32, or the size that the model fixes.
        seed: The seed of the order of the samples.
        batch_norms: Names or patterns of batch norms; None for all.
        running_variance: The variance that a running variance is; None for that of the model's framework.
        loss: The name of the loss; by default the model's only one.
        loss_fn: A loss function to append.
        prediction: The value that the loss function is computed of.

    Raises:
        InputError: An option or the data do not fit.
        ModelError: See `StatisticsEstimate`; or the model has no such loss.
    """
    LossOptions(loss=loss, loss_fn=loss_fn, prediction=prediction).require_one_loss()
    statistics = StatisticsEstimate(model, batch_norms, running_variance=running_variance)
    warnings: list[str] = []
    with_loss = model
    if loss_fn is not None:
        with_loss, loss, _, warnings = append_loss(model, loss_fn, prediction=prediction)
    inputs = data_inputs(with_loss)
    is_optional = loss is None
    loss = _loss_of(with_loss, loss)
    optional = [name for name in inputs if name not in statistics.inputs] if is_optional else []
    dataset, missing, notes = load_dataset(sources, inputs, optional)
    size = batch_size_of(dataset, batch_size)
    if loss is not None and missing:
        notes.append(f"the data have no {listed(missing)}, so the loss {loss!r} is not compared")
        loss = None
    estimated = statistics.run(equal_batches(dataset, size, seed))
    before = after = None
    if loss is not None:
        before = _evaluated(with_loss, inputs, loss, dataset, size, warnings)
        renewed = estimated.model
        if loss_fn is not None:
            renewed = append_loss(renewed, loss_fn, prediction=prediction).model
        after = _evaluated(renewed, inputs, loss, dataset, size, [])
    return Result(estimated, len(dataset), before, after, warnings, notes)


def equal_batches(dataset: Dataset, size: int, seed: int) -> Iterator[dict[str, Array]]:
    """Yields batches of samples in a random order, of equal size as far as possible.

    Args:
        dataset: The samples.
        size: The most samples of a batch.
        seed: The seed of the order.
    """
    order = permutation(len(dataset), seed, 1)
    if dataset.batch_size is not None:
        yield from (batch for _, batch in dataset.batches(size, order, drop_last=True))
        return
    count = -(-len(dataset) // size)
    for part in range(count):
        yield from (batch for _, batch in dataset.batches(len(dataset), order, part=part, parts=count))


def load_dataset(
    sources: Sequence[str], inputs: Mapping[str, DataInput], optional: Collection[str]
) -> tuple[Dataset, list[str], list[str]]:
    """Reads the samples, of which arrays for other names than those of inputs are left out.

    Args:
        sources: The data, see `load_data`.
        inputs: The data inputs.
        optional: Those that may have no array.

    Returns:
        The samples, the inputs without an array, and notes.

    Raises:
        InputError: See `load_data` and `Dataset`.
    """
    unused: list[str] = []
    arrays = load_data(sources, inputs, optional=optional, unused=unused)
    notes = [f"the data have {listed(unused)}, which the model does not take; not used"] if unused else []
    missing = [name for name in inputs if name not in arrays]
    return Dataset(arrays, {name: spec for name, spec in inputs.items() if name in arrays}), missing, notes


def batch_size_of(dataset: Dataset, size: int | None) -> int:
    """Returns the most samples of a batch: by default 32, or what the model fixes.

    Raises:
        InputError: The model fixes another size, or there are too few samples.
    """
    fixed = dataset.batch_size
    if fixed is not None and size not in (None, fixed):
        raise InputError(f"--batch-size is {size}, but the model takes only batches of {fixed}")
    result = fixed or size or _BATCH_SIZE
    if not dataset.count(fixed or 1, drop_last=True):
        raise InputError(f"{len(dataset)} samples are too few for a batch of {fixed or 1}; expected more data")
    return result


def _loss_of(model: ir.Model, name: str | None) -> str | None:
    """Returns the loss of a name, or by default that which `differentiate` would take; None if there is none."""
    typed = model.clone()
    InferTypesPass()(typed)
    try:
        return str(find_loss(typed, name).name)
    except ModelError:
        if name is not None:
            raise
        return None


def _evaluated(
    model: ir.Model,
    inputs: dict[str, DataInput],
    loss: str,
    dataset: Dataset,
    size: int,
    warnings: list[str],
) -> Evaluation:
    return evaluate(
        InferenceLoss(model, inputs, loss),
        dataset,
        size,
        drop_last=dataset.batch_size is not None,
        warning=warnings.append,
    )
