"""``bngrad inspect``."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bngrad.cli.console import print_json, print_line, print_warnings, printing
from bngrad.cli.help import Command
from bngrad.cli.options import (
    annotations_option,
    models_argument,
    option,
    sarif_option,
)
from bngrad.errors import BngradError, InputError

if TYPE_CHECKING:
    from bngrad.inspection.inspect import Inspection


@click.command(
    "inspect",
    cls=Command,
    examples="""
        $ bngrad inspect model.onnx
        $ bngrad inspect training_model.onnx --json
        $ bngrad inspect training_model.onnx network.onnx \\
            --fail-on hazard --sarif inspect.sarif
    """,
)
@models_argument
@option(
    "--fail-on",
    type=click.Choice(["none", "hazard", "warning"]),
    default="none",
    show_default=True,
    help="Exit with code 1 if a model has a [hazard](warnings.md#hazards) (hazard), or a hazard or a "
    "[warning](warnings.md) (warning). Each is named on stderr.",
)
@option(
    "--html", type=click.Path(), metavar="FILE", help="Write an [HTML report](../guides/reports.md) of one MODEL."
)
@option(
    "--device",
    metavar="DEVICE",
    help="List the nodes that ONNX Runtime leaves to the CPU in a session on `cuda`, `cuda:1` or `webgpu` "
    "([GPUs](../guides/gpu.md)).",
)
@sarif_option
@annotations_option
def inspect_command(
    models: tuple[Path, ...],
    fail_on: str,
    device: str | None,
    html: str | None,
    sarif: str | None,
    annotations: str | None,
    as_json: bool,
) -> int:
    """List batch norms, and whether a model can be trained.

    Names the inputs and outputs, the number of weights, the loss, and the command that builds [the training
    step](training-step.md). Whether `step` takes MODEL comes from a dry run with its default options, or with
    `--training '*'` if MODEL alone freezes its batch norms: what it refuses is a line, and ops without a gradient
    are counted. A model without a loss needs a [loss function](../guides/losses.md): those that its outputs can
    take are named.

    Lists each batch norm with its op, mode, axes, element type, the shape of X, and the op that computes its
    gradient. Names the ops that stock ONNX Runtime lacks, and counts the batch norms that are spelled [in
    primitives](dialects/primitives.md), by kind.

    Names hazards as well: a training-mode `BatchNormalization` whose running outputs are not graph outputs
    overwrites its inputs on stock ONNX Runtime, and one without running outputs crashes it.

    Several models are inspected one after the other; with `--json`, the document is a list, in which each model
    has its path as `model`. If a model cannot be read, the others are inspected, its entry has `model` and
    `error`, and the exit code is 2.
    """
    from bngrad.cli.outputs import check_outputs
    from bngrad.reports.annotations import write_annotations
    from bngrad.reports.findings import fails, findings_of_inspection, unreadable
    from bngrad.reports.sarif import write_sarif

    models = tuple(dict.fromkeys(models))
    several = len(models) > 1
    if several and html is not None:
        raise InputError("--html is the report of one model; expected one MODEL, or no --html")
    outputs = [output for output in (html, sarif, annotations) if output is not None]
    check_outputs(outputs, dict.fromkeys(models))
    documents, findings = [], []
    for model in models:
        result = _inspect(model, outputs, html, device, several=several)
        if isinstance(result, str):
            print_line("error", result)
            findings.append(unreadable(str(model), result))
            documents.append({"model": str(model), "error": result})
            continue
        findings += findings_of_inspection(str(model), result)
        documents.append({"model": str(model)} | result.to_dict() if several else result.to_dict())
        where = f"{model}: " if several else ""
        print_warnings([where + text for text in result.warnings], [where + text for text in result.notes])
        if not as_json:
            with printing():
                _print(result, where)
    failed = [finding for finding in findings if fails(finding, fail_on)]
    for finding in failed:
        print_line("failed", f"{finding.model}: {finding.message}")
    exit_code = 2 if any("error" in document for document in documents) else 1 if failed else 0
    if sarif is not None:
        write_sarif(Path(sarif), "inspect", [*map(str, models)], findings, exit_code=exit_code)
    if annotations is not None:
        write_annotations(Path(annotations), findings)
    if as_json:
        with printing():
            print_json(documents if several else documents[0])
    return exit_code


def _inspect(
    model: Path, outputs: list[str], html: str | None, device: str | None, *, several: bool
) -> Inspection | str:
    """Returns the inspection of a model; a message if it is one of several and cannot be read."""
    from bngrad.cli.outputs import check_outputs
    from bngrad.inspection.identity import identity
    from bngrad.inspection.inspect import inspect
    from bngrad.inspection.placement import nodes_on_cpu
    from bngrad.io.files import load
    from bngrad.training.dry_run import trainability

    try:
        loaded = load(model)
        inspection = replace(inspect(loaded), training=trainability(loaded, str(model)))
        if device is not None:
            inspection = replace(inspection, on_cpu=nodes_on_cpu(model, device))
    except BngradError as error:
        if not several:
            raise
        if click.get_current_context().obj:  # --debug
            traceback.print_exc()
        return str(error)
    check_outputs(outputs, {model: loaded})  # its external data
    if html is not None:
        from bngrad.inspection.graph_nodes import graph_nodes
        from bngrad.reports.html.inspection import write_html

        write_html(inspection, str(model), identity(loaded, model), Path(html), graph_nodes(loaded))
    return inspection


def _print(inspection: Inspection, where: str) -> None:
    from rich.box import HEAVY_HEAD

    from bngrad.cli.console import stdout_console
    from bngrad.reports.tables import Column, print_table, print_text_line
    from bngrad.reports.training_lines import training_lines

    console = stdout_console()
    opset = f"ai.onnx {inspection.opset}, IR version {inspection.ir_version}"
    modes = Counter(batch_norm.mode for batch_norm in inspection.batch_norms)
    kinds = f" ({', '.join(f'{count} {mode}' for mode, count in modes.items())})" if modes else ""
    print_text_line(console, f"{where}batch norms: {len(inspection.batch_norms)}{kinds}; {opset}")
    if inspection.batch_norms:
        columns = [Column("batch norm", name=True)]
        columns += [Column(heading) for heading in ("op", "mode", "axes", "type", "X", "gradient op")]
        rows = [
            (
                batch_norm.name,
                batch_norm.op,
                batch_norm.mode,
                batch_norm.axes_text,
                batch_norm.dtype,
                batch_norm.shape,
                batch_norm.gradient or "-",
            )
            for batch_norm in inspection.batch_norms
        ]
        print_table(console, columns, rows, style=HEAVY_HEAD)
    for batch_norm in inspection.batch_norms:
        for hazard in batch_norm.hazards:
            print_text_line(console, f"hazard: {batch_norm.name}: {hazard}")
    if inspection.in_primitives:
        listed = ", ".join(f"{count} {kind}" for kind, count in inspection.in_primitives.items())
        print_text_line(console, f"batch norms in primitives: {listed}")
    if inspection.not_in_stock:
        listed = ", ".join(f"{op} ({count})" for op, count in sorted(inspection.not_in_stock.items()))
        print_text_line(console, f"not in stock ONNX Runtime: {listed}")
    else:
        print_text_line(console, "all ops are in stock ONNX Runtime or in bngrad")
    for line in training_lines(inspection):
        print_text_line(console, line)
    if inspection.on_cpu is not None:
        print_text_line(console, f"nodes left to the CPU: {len(inspection.on_cpu)}")
        if inspection.on_cpu:
            names = [(node.name or "-", node.op) for node in inspection.on_cpu]
            print_table(console, [Column("node", name=True), Column("op")], names, style=HEAVY_HEAD)
