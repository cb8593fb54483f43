"""``bngrad finalize``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from bngrad.cli.options import debug_option, external_data_option, json_option, model_argument

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.io.external_data import ExternalData


@click.command("finalize")
@model_argument
@click.option("-o", "--output", required=True, type=click.Path(), help="Where the inference model goes.")
@click.option(
    "--weights",
    required=True,
    type=click.Path(),
    metavar="FILE.npz",
    help="Trained weights and running statistics, by the names of the training graph's inputs and outputs.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="NAME",
    help="An output to keep; by default all but losses and running statistics (repeatable).",
)
@external_data_option
@json_option
@debug_option
def finalize_command(
    model: Path,
    output: str,
    weights: str,
    keep: tuple[str, ...],
    external_data: ExternalData | None,
    as_json: bool,
) -> None:
    """Put trained weights into a forward model, for inference.

    Batch norms use their running statistics, Dropout passes its data on, the loss is left out.
    """
    from bngrad.io import files
    from bngrad.training.finalize import finalize
    from bngrad.validation.arrays import load_arrays

    source = files.load(model)
    path = files.check_output(output, source=model)
    result = finalize(source, load_arrays(weights), outputs=list(keep) or None)
    files.save(result.model, path, external_data)
    if as_json:
        document = {"model": str(model), "output": str(path), "weights": result.weights, "kept": result.kept}
        click.echo(json.dumps(document, indent=2))
    else:
        kept = f", {len(result.kept)} kept as they were" if result.kept else ""
        click.echo(f"{path}: {len(result.weights)} new values{kept}")
