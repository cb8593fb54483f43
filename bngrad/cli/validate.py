"""``bngrad validate``."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bngrad.cli.console import print_json, print_warnings, printing
from bngrad.cli.help import Command, command_line
from bngrad.cli.loss_options import loss_fn_options
from bngrad.cli.options import (
    REPORT,
    annotations_option,
    dims_option,
    model_argument,
    option,
    options_of,
    rows_option,
    sarif_option,
)
from bngrad.cli.shell_completion import complete_files
from bngrad.errors import BngradError, InputError
from bngrad.validation.options import ValidateOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bngrad.validation.report import Report


@click.command(
    "validate",
    cls=Command,
    examples="""
        $ bngrad validate model.onnx --batch-size 2
        $ bngrad validate network.onnx --against numeric --batch-size 2 \\
            --loss-fn cross_entropy
        $ bngrad validate model.onnx --against reference --dim N=2 \\
            --junit report.xml --html report.html
        $ bngrad validate --suite hard-batch-norms CPUExecutionProvider \\
            --implementation native
    """,
)
@model_argument
@option(
    "--suite",
    type=click.Choice(["hard-batch-norms"]),
    help="Check another system with a set of cases: MODEL is then an execution provider of ONNX Runtime, a "
    "custom-op library, or an .npz file of results ([Hard batch norms](../reference/hard-batch-norms.md)).",
)
@option(
    "--write-cases",
    type=click.Path(),
    metavar="FILE.zip",
    help="Write the models, inputs and float64 results of the suite's cases.",
)
@loss_fn_options
@options_of(ValidateOptions)
@option(
    "--rewritten",
    type=click.Path(),
    shell_complete=complete_files(".onnx"),
    help="Validate this rewrite of MODEL instead of a new one.",
)
@option(
    "--inputs",
    type=click.Path(),
    metavar="FILE.npz",
    shell_complete=complete_files(".npz"),
    help="Arrays by input name; other inputs are random.",
)
@dims_option
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
@rows_option("Rows to show per check; failed ones are always shown.")
@click.pass_context
def validate_command(
    context: click.Context,
    /,
    model: Path,
    suite: str | None,
    write_cases: str | None,
    inputs: str | None,
    rewritten: str | None,
    dims: dict[str, int],
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
    also one from differentiate or rewrite; with `--against torch`, a forward model only; with `--suite`, another
    system. A model without a loss needs --loss-fn. A model that ONNX Runtime's gradient builder does not support
    is compared with `reference` instead of `ort`; the report says so at its end. Exit code 1 if anything
    differs, 3 if nothing does but a check that decides could not be run. The reports are written with exit code 2,
    too: MODEL is an error there, with the reason.

    Documentation: [How validate decides](../explanation/validate.md), [In CI](../guides/ci.md),
    [Reports in a browser](../guides/reports.md).
    """
    from bngrad.cli.console import stdout_console
    from bngrad.cli.error_message import error_message
    from bngrad.cli.outputs import check_outputs
    from bngrad.cli.progress import progress
    from bngrad.io import files
    from bngrad.io.arrays import load_arrays
    from bngrad.reports.text import print_text
    from bngrad.validation.hard_batch_norms.run import check_hard_batch_norms
    from bngrad.validation.report import EXIT_CODES, failed_report
    from bngrad.validation.validate import validate

    _check_suite_options(context, suite)
    outputs = {
        write: path
        for write, path in zip(_writers(), (junit, html, sarif, summary, annotations, write_cases), strict=True)
        if path is not None
    }
    sources = [Path(path) for path in (model, rewritten, inputs) if path is not None]
    destinations = dict(zip(outputs, check_outputs(outputs.values(), dict.fromkeys(sources)), strict=True))

    def write_reports(report: Report) -> None:
        report.command = command_line(context)
        for write, path in destinations.items():
            write(report, path)

    @contextmanager
    def errors_reported() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            report = failed_report(str(model), options["against"], options["seed"], error_message(error))
            with suppress(BngradError, OSError):  # the first error is reported
                write_reports(report)
            if as_json:
                print_json(report.to_dict())
            raise

    loaded = {}
    with errors_reported():
        if outputs and suite is None:
            loaded = {Path(path): files.load(path) for path in (model, rewritten) if path is not None}
        arrays = load_arrays(inputs) if inputs is not None else None
    if loaded:
        check_outputs(outputs.values(), loaded)  # their external data
    with errors_reported(), progress("reading the model") as show:
        if suite is not None:
            report = check_hard_batch_norms(str(model), options["implementation"], show)
        else:
            chosen = ValidateOptions(rewritten=rewritten, inputs=arrays, dims=dims, **options)
            report = validate(model, chosen, show)
    print_warnings(report.warnings)
    write_reports(report)
    with printing():
        if as_json:
            print_json(report.to_dict())
        else:
            print_text(report, stdout_console(), rows)
    return EXIT_CODES[report.verdict]


def _writers() -> list[Callable[[Report, Path], None]]:
    """Returns the functions that write the reports, and the cases of a suite."""
    from bngrad.reports.annotations import write_report_annotations
    from bngrad.reports.html.validation import write_html
    from bngrad.reports.junit import write_junit
    from bngrad.reports.sarif import write_report_sarif
    from bngrad.reports.summary import write_summary
    from bngrad.validation.hard_batch_norms import archive

    return [
        *(write_junit, write_html, write_report_sarif, write_summary, write_report_annotations),
        lambda _report, path: archive.write_cases(path),
    ]


_OF_SUITES = {
    "model",
    "suite",
    "write_cases",
    "implementation",
    "junit",
    "html",
    "sarif",
    "summary",
    "annotations",
}
_OF_SUITES |= {"rows", "as_json"}
"""The parameters that a suite has, too."""


def _check_suite_options(context: click.Context, suite: str | None) -> None:
    """Refuses an option that has no effect with or without a suite.

    Raises:
        InputError: There is one.
    """
    for parameter in context.command.params:
        chosen = context.get_parameter_source(str(parameter.name)) not in (None, ParameterSource.DEFAULT)
        if chosen and suite is None and parameter.name == "write_cases":
            raise InputError("--write-cases is for --suite, which is not given")
        if chosen and suite is not None and parameter.name not in _OF_SUITES:
            raise InputError(f"{parameter.opts[0]} is for models, and --suite {suite} has its own; leave it out")
