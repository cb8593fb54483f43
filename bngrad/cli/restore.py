"""``bngrad restore``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.options import DATA, data_option, external_data_option, model_argument, option, options_of
from bngrad.reports.visible import visible
from bngrad.training.batch_norm_options import RestoreOptions

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import RestoreDocument
    from bngrad.io.external_data import ExternalData


@click.command(
    "restore",
    cls=Command,
    examples="""
        $ bngrad restore model.onnx --data train.npz --layer logits \\
            -o restored.onnx
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the model to.")
@data_option("MODEL's inputs", " Labels may be left out; other arrays are not used.")
@option(
    "--batch-size",
    type=click.IntRange(1),
    group=DATA,
    help="Most samples in a batch.  [default: 32, or that of MODEL]",
)
@options_of(RestoreOptions)
@external_data_option
def restore_command(
    model: Path,
    output: str,
    data: tuple[str, ...],
    batch_size: int | None,
    external_data: ExternalData | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of RestoreOptions
) -> None:
    """Give folded layers a batch norm again.

    MODEL is a forward model whose batch norms were folded into layers, as exporters and optimizers do, or that
    never had any. Each chosen layer gets a batch norm with the mean and the variance of its output over the data,
    and a scale and a bias with which the function stays the same, up to rounding. The layer's bias is left out.

    The new batch norms are in inference mode; `bngrad step --training` trains them.

    Documentation: [Restored batch norms](../guides/restore.md).
    """
    from bngrad.cli.outputs import data_notes
    from bngrad.cli.statistics_setup import batch_size_of, equal_batches, load_dataset
    from bngrad.io import files, writing
    from bngrad.training.data_inputs import data_inputs
    from bngrad.training.restore_batch_norms import Restoration

    source = files.load(model)
    path = writing.check_output(output, model, source)
    restoration = Restoration(source, RestoreOptions(**options))
    inputs = data_inputs(source)
    dataset, _, notes = load_dataset(data, inputs, [name for name in inputs if name not in restoration.inputs])
    result = restoration.run(equal_batches(dataset, batch_size_of(dataset, batch_size), 0))
    files.save(result.model, path, external_data)
    print_warnings((), [*notes, *data_notes(path)])
    if as_json:
        document: RestoreDocument = {
            "model": str(model),
            "output": str(path),
            "samples": len(dataset),
            "batches": result.batches,
            "batch_norms": result.batch_norms,
        }
        print_json(document)
        return
    norms, samples = count_text(len(result.batch_norms), "new batch norm"), count_text(len(dataset), "sample")
    click.echo(visible(f"{path}: {norms}, from {samples}"))
    for layer, name in result.batch_norms.items():
        click.echo(visible(f"  {name} after {layer}"))
