"""``bngrad batchnorm``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.options import DATA, data_option, external_data_option, model_argument, option, options_of
from bngrad.reports.visible import visible
from bngrad.training.batch_norm_options import BatchNormOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bngrad.cli.documents import BatchNormDocument, OutputErrorDocument
    from bngrad.io.external_data import ExternalData
    from bngrad.training.edit_batch_norms import EditedBatchNorms
    from bngrad.training.output_errors import OutputError


@click.command(
    "batchnorm",
    cls=Command,
    examples="""
        $ bngrad batchnorm network.onnx -o deployed.onnx --mode frozen --fold \\
            --data test.npz
        $ bngrad batchnorm model.onnx -o frozen.onnx --mode frozen \\
            --batch-norm 'layer1.*'
        $ bngrad batchnorm model.onnx -o ghost.onnx --mode training --ghost 16
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the model to.")
@options_of(BatchNormOptions)
@data_option("MODEL's inputs", " The outputs before and after the edit are compared on them.", required=False)
@option(
    "--batch-size",
    type=click.IntRange(1),
    group=DATA,
    help="Most samples in a batch.  [default: 32, or that of MODEL]",
)
@external_data_option
def batchnorm_command(
    model: Path,
    output: str,
    data: tuple[str, ...],
    batch_size: int | None,
    external_data: ExternalData | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of BatchNormOptions
) -> None:
    """Edit the batch norms of a forward model.

    Freeze them or let them train, change the momentum, normalize parts of the batch in training, or fold them
    into the layers before or after them. With --data, the outputs of MODEL and of the new model in inference mode
    are compared.

    A pattern of --fold leaves out batch norms that cannot be folded, and the output says why; a name is refused.

    Documentation: [Edited batch norms](../guides/batchnorm.md).
    """
    from bngrad.cli.outputs import data_notes
    from bngrad.io import files, writing
    from bngrad.training.edit_batch_norms import edit_batch_norms

    source = files.load(model)
    chosen = BatchNormOptions(**options)
    path = writing.check_output(output, model, source)
    result = edit_batch_norms(source, chosen)
    samples, errors, notes = None, None, _notes(chosen)
    if data:
        from bngrad.cli.statistics_setup import batch_size_of, equal_batches, load_dataset
        from bngrad.training.data_inputs import data_inputs
        from bngrad.training.output_errors import inference_model, output_errors

        before, after = inference_model(source), inference_model(result.model)
        dataset, _, unused = load_dataset(data, data_inputs(before), ())
        batches = equal_batches(dataset, batch_size_of(dataset, batch_size), 0)
        samples, errors, notes = len(dataset), output_errors(before, after, batches), [*notes, *unused]
    files.save(result.model, path, external_data)
    print_warnings((), [*notes, *data_notes(path)])
    if as_json:
        document: BatchNormDocument = {
            "model": str(model),
            "output": str(path),
            "batch_norms": result.batch_norms,
            "folded": result.folded,
            "kept": result.kept,
            "samples": samples,
            "errors": None if errors is None else [cast("OutputErrorDocument", asdict(error)) for error in errors],
        }
        print_json(document)
        return
    for line in _lines(str(path), result, chosen, errors, samples):
        click.echo(visible(line))


def _notes(options: BatchNormOptions) -> list[str]:
    momentum = options.momentum
    if momentum is None or momentum >= 0.5:
        return []
    note = (
        f"with --momentum {momentum:g} a step keeps {momentum:g} of the old statistics; PyTorch's momentum of "
        f"{momentum:g} is --momentum {1 - momentum:g}"
    )
    return [note]


def _lines(
    path: str,
    result: EditedBatchNorms,
    options: BatchNormOptions,
    errors: list[OutputError] | None,
    samples: int | None,
) -> Iterator[str]:
    """Yields the lines of the terminal."""
    edits = {
        "mode": options.mode,
        "momentum": options.momentum,
        "epsilon": options.epsilon,
        "ghost batches": count_text(options.ghost, "sample")
        if options.ghost
        else None
        if options.ghost is None
        else "none",
        "folded": len(result.folded) if options.fold else None,
    }
    shown = ", ".join(f"{name} {value}" for name, value in edits.items() if value is not None)
    yield f"{path}: {count_text(len(result.batch_norms), 'batch norm')}: {shown}"
    yield from (f"  {name} into {layer}" for name, layer in result.folded.items())
    yield from (f"  {name} stays: {reason}" for name, reason in result.kept.items())
    if errors is None:
        if options.fold or options.epsilon is not None:
            yield "the errors of the outputs are not measured; --data measures them"
        return
    for error in errors:
        yield (
            f"{error.output}: at most {error.max_error:.3g} off, {error.mean_error:.3g} on average, "
            f"{error.relative_error:.3g} of its largest value, on {count_text(samples or 0, 'sample')}"
        )
