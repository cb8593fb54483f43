"""``bngrad validate``."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import print_json, print_warnings, printing
from bngrad.cli.help import Command
from bngrad.cli.loss_options import loss_fn_options
from bngrad.cli.options import (
    REPORT,
    annotations_option,
    debug_option,
    dims_option,
    frozen_option,
    json_option,
    loss_option,
    model_argument,
    option,
    running_variance_option,
    sarif_option,
    shared_statistics_option,
    training_option,
)
from bngrad.cli.shell_completion import complete_files
from bngrad.errors import BngradError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.validation.report import Report

_INPUTS, _TOLERANCE = "Inputs", "Tolerance"


@click.command(
    "validate",
    cls=Command,
    examples="""
        $ bngrad validate model.onnx --batch-size 2
        $ bngrad validate network.onnx --against numeric --batch-size 2 \\
            --loss-fn cross_entropy
        $ bngrad validate model.onnx --against reference --dim N=2 \\
            --junit report.xml --html report.html
    """,
)
@model_argument
@option(
    "--against",
    type=click.Choice(["ort", "reference", "numeric", "torch"]),
    default="ort",
    show_default=True,
    help="Reference to compare with: ONNX Runtime's gradient builder and kernels (ort); NumPy in float64 and "
    "central differences (reference); central differences of the loss alone (numeric); or PyTorch's autograd "
    "in float64 (torch), which needs PyTorch (`pip install 'bngrad[torch]'`). The last three need no oracle and "
    "accept any MODEL that differentiate accepts, torch if PyTorch has its ops.",
)
@option(
    "--provider",
    type=click.Choice(["native", "python", "function", "all"]),
    default="all",
    show_default=True,
    help="Implementation of the ops to validate.",
)
@option(
    "--builder",
    type=click.Choice(["bngrad", "ort"]),
    default="bngrad",
    show_default=True,
    help="Builder of a forward model's training graph: this package, or ONNX Runtime followed by rewrite.",
)
@option(
    "--rewritten",
    type=click.Path(),
    shell_complete=complete_files(".onnx"),
    help="Validate this rewrite of MODEL instead of a new one.",
)
@loss_option
@loss_fn_options
@option(
    "--wrt",
    multiple=True,
    metavar="NAME",
    help="Weight or input to differentiate a forward model with respect to (repeatable).  [default: all weights]",
)
@frozen_option
@training_option
@running_variance_option
@shared_statistics_option
@option(
    "--inputs",
    type=click.Path(),
    metavar="FILE.npz",
    shell_complete=complete_files(".npz"),
    help="Arrays by input name; other inputs are random.",
)
@dims_option
@option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Size of the first dimension of the inputs, whatever its name, where it is symbolic; a fixed one stays. "
    "--dim and --inputs come first.",
)
@option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of random values.")
@option(
    "--rtol",
    type=click.FloatRange(min=0),
    group=_TOLERANCE,
    help="Relative tolerance of the lock-step check, instead of the derived error bounds. Not with --against "
    "numeric "
    "and torch, which have no such check.  [default: 0 if --atol is given]",
)
@option(
    "--atol",
    type=click.FloatRange(min=0),
    group=_TOLERANCE,
    help="Absolute tolerance of the same check.  [default: 0 if --rtol is given]",
)
@option("--junit", type=click.Path(), metavar="FILE", group=REPORT, help="Write a JUnit XML report.")
@option("--html", type=click.Path(), metavar="FILE", group=REPORT, help="Write an HTML report.")
@sarif_option
@option(
    "--summary",
    type=click.Path(),
    metavar="FILE",
    group=REPORT,
    help="Write a summary in Markdown, for the page of a CI job.",
)
@annotations_option
@option(
    "--rows",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    group=REPORT,
    help="Rows to show per check; failed ones are always shown.",
)
@json_option
@debug_option
def validate_command(
    model: Path,
    inputs: str | None,
    rewritten: str | None,
    dims: dict[str, int],
    wrt: tuple[str, ...],
    junit: str | None,
    html: str | None,
    sarif: str | None,
    summary: str | None,
    annotations: str | None,
    rows: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - passed through
) -> int:
    """Check that a training graph computes the right gradients.

    MODEL is a forward model, or a training graph from ONNX Runtime's gradient builder; with `--against numeric`,
    also one from differentiate or rewrite; with `--against torch`, a forward model only. A model without a loss
    needs --loss-fn. Exit code 1 if anything differs, or if nothing was compared. The reports are written with exit
    code 2, too: MODEL is an error there, with the reason.

    Documentation: [How validate decides](../explanation/validate.md), [In CI](../guides/ci.md),
    [Reports in a browser](../guides/reports.md).
    """
    from bngrad.cli.console import stdout_console
    from bngrad.cli.error_message import error_message
    from bngrad.cli.outputs import check_outputs
    from bngrad.cli.progress import progress
    from bngrad.io import files
    from bngrad.io.arrays import load_arrays
    from bngrad.reports.annotations import write_report_annotations
    from bngrad.reports.html.validation import write_html
    from bngrad.reports.junit import write_junit
    from bngrad.reports.sarif import write_report_sarif
    from bngrad.reports.summary import write_summary
    from bngrad.reports.text import print_text
    from bngrad.validation.report import failed_report
    from bngrad.validation.validate import validate

    outputs = {
        write: path
        for write, path in (
            (write_junit, junit),
            (write_html, html),
            (write_report_sarif, sarif),
            (write_summary, summary),
            (write_report_annotations, annotations),
        )
        if path is not None
    }
    read = [Path(path) for path in (model, rewritten, inputs) if path is not None]
    destinations = dict(zip(outputs, check_outputs(outputs.values(), dict.fromkeys(read)), strict=True))

    def write_reports(report: Report) -> None:
        for write, path in destinations.items():
            write(report, path)

    @contextmanager
    def errors_reported() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            report = failed_report(str(model), options["against"], options["seed"], error_message(error))
            with suppress(BngradError, OSError):  # the first error is the one to tell
                write_reports(report)
            if as_json:
                print_json(report.to_dict())
            raise

    loaded = {}
    with errors_reported():
        if outputs:
            loaded = {Path(path): files.load(path) for path in (model, rewritten) if path is not None}
        arrays = load_arrays(inputs) if inputs is not None else None
    check_outputs(outputs.values(), loaded)  # their external data
    with errors_reported(), progress() as show:
        report = validate(
            model,
            rewritten=rewritten,
            inputs=arrays,
            dims=dims,
            wrt=list(wrt) or None,
            progress=show,
            **options,
        )
    print_warnings(report.warnings)
    write_reports(report)
    with printing():
        if as_json:
            print_json(report.to_dict())
        else:
            print_text(report, stdout_console(), rows)
    return 0 if report.passed else 1
