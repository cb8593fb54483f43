"""``bngrad statistics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.loss_options import loss_fn_options
from bngrad.cli.options import DATA, data_option, external_data_option, model_argument, option, options_of
from bngrad.option_fields import BATCH_NORMS
from bngrad.options import ForwardOptions
from bngrad.reports.visible import visible

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import LossDocument, StatisticsDocument
    from bngrad.io.external_data import ExternalData
    from bngrad.options import RunningVariance
    from bngrad.training.estimate_statistics import Estimated
    from bngrad.training.loss_functions import LossFunction
    from bngrad.training.metrics import Evaluation


@click.command(
    "statistics",
    cls=Command,
    examples="""
        $ bngrad statistics model.onnx --data train.npz -o new.onnx
        $ bngrad statistics network.onnx --data train.npz -o new.onnx \\
            --batch-norm 'layer1.*' --loss-fn cross_entropy
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the model to.")
@data_option("MODEL's inputs", " Labels may be left out; other arrays are not used.")
@option(
    "--batch-size",
    type=click.IntRange(1),
    group=DATA,
    help="Most samples in a batch; the batches are of equal size, as far as possible.  [default: 32, or that of "
    "MODEL]",
)
@option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    group=DATA,
    help="Seed of the order of the samples.",
)
@option(
    "--batch-norm",
    "batch_norms",
    multiple=True,
    group=BATCH_NORMS,
    metavar="NAME",
    help="Batch norm, or pattern such as `'layer1.*'`, that gets new statistics (repeatable); the others use "
    "their running statistics.  [default: all]",
)
@options_of(ForwardOptions, "running_variance")
@options_of(ForwardOptions, "loss")
@loss_fn_options
@external_data_option
def statistics_command(
    model: Path,
    output: str,
    data: tuple[str, ...],
    batch_size: int | None,
    seed: int,
    batch_norms: tuple[str, ...],
    running_variance: RunningVariance | None,
    loss: str | None,
    loss_fn: LossFunction | None,
    prediction: str | None,
    external_data: ExternalData | None,
    as_json: bool,
) -> None:
    """Estimate running statistics from data.

    MODEL is a forward model, or one that `bngrad finalize` wrote. In one pass over the data its batch norms use
    the statistics of each batch, as in training, and everything else is in inference mode. The new statistics of
    a batch norm are exactly those of its inputs over all data, whatever the sizes of the batches.

    The output says which batch norms had statistics that were far off. If MODEL has a loss, or --loss-fn appends
    one, and the data have its labels, it says also what the loss in inference mode was and is.

    Documentation: [Running statistics](../guides/statistics.md).
    """
    from bngrad.cli.outputs import data_notes
    from bngrad.cli.statistics_setup import estimate
    from bngrad.io import files, writing

    source = files.load(model)
    path = writing.check_output(output, model, source)
    result = estimate(
        source,
        data,
        batch_size=batch_size,
        seed=seed,
        batch_norms=batch_norms or None,
        running_variance=running_variance,
        loss=loss,
        loss_fn=loss_fn,
        prediction=prediction,
    )
    files.save(result.estimated.model, path, external_data)
    print_warnings(result.warnings, [*result.notes, *data_notes(path)])
    if as_json:
        document: StatisticsDocument = {
            "model": str(model),
            "output": str(path),
            "samples": result.samples,
            "batches": result.estimated.batches,
            "batch_norms": [
                {
                    "name": norm.name,
                    "elements": norm.elements,
                    "mean_shift": norm.mean_shift,
                    "std_ratio": norm.std_ratio,
                    "far_off": norm.far_off,
                }
                for norm in result.estimated.batch_norms
            ],
            "before": _document(result.before),
            "after": _document(result.after),
        }
        print_json(document)
        return
    for line in _lines(str(path), result.estimated, result.samples, result.before, result.after):
        click.echo(visible(line))


def _document(evaluation: Evaluation | None) -> LossDocument | None:
    return None if evaluation is None else {"loss": evaluation.loss, "accuracy": evaluation.accuracy}


def _lines(
    path: str, estimated: Estimated, samples: int, before: Evaluation | None, after: Evaluation | None
) -> list[str]:
    """Returns the lines of the terminal."""
    norms = estimated.batch_norms
    far = [norm for norm in norms if norm.far_off]
    kinds, taken = count_text(len(norms), "batch norm"), count_text(samples, "sample")
    batches = count_text(estimated.batches, "batch", "es")
    lines = [f"{path}: running statistics of {kinds} from {taken} in {batches}; {_far_off(len(far))}"]
    lines += [
        f"  {norm.name}: a mean by {norm.mean_shift:.3g} standard deviations, a standard deviation by a factor of "
        f"{norm.std_ratio:.3g}"
        for norm in far
    ]
    if before is not None and after is not None:
        lines.append(f"loss in inference mode: {before.loss:.4g} before, {after.loss:.4g} after")
        if before.accuracy is not None and after.accuracy is not None:
            lines[-1] += f"; accuracy {before.accuracy:.2%} before, {after.accuracy:.2%} after"
    return lines


def _far_off(count: int) -> str:
    return f"{count} was far off" if count == 1 else f"{count or 'none'} were far off"
