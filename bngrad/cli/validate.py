"""``bngrad validate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import print_warnings
from bngrad.cli.options import (
    debug_option,
    dims_option,
    frozen_option,
    json_option,
    model_argument,
    running_variance_option,
    shared_statistics_option,
    training_option,
)

if TYPE_CHECKING:
    from pathlib import Path


@click.command("validate")
@model_argument
@click.option(
    "--against",
    type=click.Choice(["ort", "reference", "numeric"]),
    default="ort",
    show_default=True,
    help="ONNX Runtime's gradient builder and kernels; NumPy in float64 and central differences; or central "
    "differences of MODEL's loss alone. The last two take whatever differentiate takes, and need no oracle.",
)
@click.option(
    "--provider",
    type=click.Choice(["native", "python", "function", "all"]),
    default="all",
    show_default=True,
    help="The implementations of the ops to validate.",
)
@click.option(
    "--builder",
    type=click.Choice(["bngrad", "ort"]),
    default="bngrad",
    show_default=True,
    help="Whose training graph of a forward model to validate: ours, or ONNX Runtime's after a rewrite.",
)
@click.option("--rewritten", type=click.Path(), help="Validate this rewrite of MODEL, not one made now.")
@click.option("--loss", help="The float scalar to differentiate, where MODEL has more than one.")
@click.option(
    "--wrt",
    multiple=True,
    metavar="NAME",
    help="Differentiate a forward model with respect to this weight or input, not to all weights (repeatable).",
)
@frozen_option
@training_option
@running_variance_option
@shared_statistics_option
@click.option("--inputs", type=click.Path(), metavar="FILE.npz", help="Arrays by input name; others are drawn.")
@dims_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For everything drawn.")
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="A plain tolerance for the lock-step check, instead of the derived bounds.",
)
@click.option("--atol", type=click.FloatRange(min=0), help="See --rtol.")
@click.option("--junit", type=click.Path(), metavar="FILE", help="Write a JUnit XML report.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write the report as a web page.")
@click.option("--rows", type=click.IntRange(min=0), default=8, show_default=True, help="Rows shown of each check.")
@json_option
@debug_option
def validate_command(
    model: Path,
    inputs: str | None,
    dims: dict[str, int],
    wrt: tuple[str, ...],
    junit: str | None,
    html: str | None,
    rows: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - handed on as they are
) -> int:
    """Prove that a training graph computes the right gradients.

    MODEL is a forward model with a loss, or a training graph that ONNX Runtime's gradient builder made; with
    --against numeric also one that differentiate or rewrite made. Exit code 1 if anything differs, or nothing was
    compared.
    """
    from bngrad.cli.console import stdout_console
    from bngrad.cli.progress import progress
    from bngrad.io import files
    from bngrad.validation import output
    from bngrad.validation.arrays import load_arrays
    from bngrad.validation.validate import validate

    destinations = {
        write: files.check_output(path, source=model)
        for write, path in ((output.write_junit, junit), (output.write_html, html))
        if path is not None
    }
    given = load_arrays(inputs) if inputs is not None else None
    with progress() as show:
        report = validate(model, inputs=given, dims=dims, wrt=list(wrt) or None, progress=show, **options)
    print_warnings(report.warnings)
    for write, path in destinations.items():
        write(report, path)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        output.print_text(report, stdout_console(), rows)
    return 0 if report.passed else 1
