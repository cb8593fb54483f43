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
@click.option("-o", "--output", required=True, type=click.Path(), help="File to write the inference model to.")
@click.option(
    "--weights",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Trained weights and running statistics, named as the training graph's inputs or outputs (.npz or "
    ".safetensors), or a checkpoint or state of a training step.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="NAME",
    help="Output to keep (repeatable).  [default: all except losses and running statistics]",
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
    """Write trained weights into a forward model, for inference.

    Batch norms use their running statistics, Dropout becomes the identity, and the loss is removed.
    """
    from bngrad.io import files
    from bngrad.training.finalize import finalize
    from bngrad.training.weights_file import load_weights

    source = files.load(model)
    path = files.check_output(output, model, source)
    given = load_weights(weights)
    result = finalize(source, given.arrays, outputs=list(keep) or None, from_state=given.is_state)
    files.save(result.model, path, external_data)
    if as_json:
        document = {"model": str(model), "output": str(path), "weights": result.weights, "kept": result.kept}
        click.echo(json.dumps(document, indent=2))
    else:
        kept = f", {len(result.kept)} unchanged" if result.kept else ""
        click.echo(f"{path}: {len(result.weights)} new values{kept}")
