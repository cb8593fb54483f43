"""``bngrad differentiate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.options import (
    debug_option,
    external_data_option,
    functions_option,
    fuse_option,
    json_option,
    model_argument,
)

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.external_data import ExternalData


@click.command("differentiate")
@model_argument
@click.option("-o", "--output", required=True, type=click.Path(), help="Where the training graph goes.")
@click.option("--loss", help="The float scalar to differentiate, where MODEL has more than one.")
@click.option(
    "--wrt", multiple=True, metavar="NAME", help="Differentiate by this, not by all weights (repeatable)."
)
@click.option(
    "--frozen",
    multiple=True,
    metavar="NAME",
    help="A batch norm, or a pattern such as 'layer1.*', that uses its running statistics (repeatable).",
)
@click.option(
    "--training",
    multiple=True,
    metavar="NAME",
    help="The same for one that uses the batch's statistics; by default each does what MODEL says.",
)
@click.option(
    "--builder",
    type=click.Choice(["bngrad", "ort"]),
    default="bngrad",
    show_default=True,
    help="Who differentiates: this package, or the gradient builder of ONNX Runtime's training build.",
)
@click.option(
    "--target",
    type=click.Choice(["stock", "training", "ort"]),
    default="stock",
    show_default=True,
    help="Any ONNX Runtime; a training build with bngrad's batch norms; or nothing but ORT's own training ops.",
)
@functions_option
@fuse_option
@external_data_option
@json_option
@debug_option
def differentiate_command(
    model: Path,
    output: str,
    wrt: tuple[str, ...],
    external_data: ExternalData | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - handed on as they are
) -> None:
    """Make a training graph of a forward model.

    The gradient of NAME is the output NAME_grad; weights and running statistics become inputs with defaults, the
    new running statistics outputs.
    """
    from bngrad import files
    from bngrad.autodiff.differentiate import differentiate

    source = files.load(model)
    path = files.check_output(output, source=model)
    result = differentiate(source, wrt=list(wrt) or None, **options)
    files.save(result.model, path, external_data)
    if as_json:
        document = {
            "model": str(model),
            "output": str(path),
            "loss": result.loss,
            "gradients": result.gradients,
            "running_statistics": result.running,
            "notes": result.notes,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        statistics = f", {len(result.running)} running statistics" if result.running else ""
        click.echo(f"{path}: the gradient of {result.loss} by {len(result.gradients)} values{statistics}")
