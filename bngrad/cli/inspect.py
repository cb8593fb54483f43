"""``bngrad inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bngrad.cli.console import print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.options import debug_option, json_option, model_argument, option

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.inspection.inspect import Inspection


@click.command(
    "inspect",
    cls=Command,
    examples="""
        $ bngrad inspect model.onnx
        $ bngrad inspect training_model.onnx --json
    """,
)
@model_argument
@option("--html", type=click.Path(), metavar="FILE", help="Write an HTML report.")
@json_option
@debug_option
def inspect_command(model: Path, html: str | None, as_json: bool) -> None:
    """List batch norms, and ops that stock ONNX Runtime lacks.

    Lists each batch norm with its op, mode, axes, element type, the shape of X, and the op that computes its
    gradient. Names the ops that stock ONNX Runtime lacks, and counts the batch norms that are spelled [in
    primitives](dialects/primitives.md), by kind.

    Names hazards as well: a training-mode `BatchNormalization` whose running outputs are not graph outputs
    overwrites its inputs on stock ONNX Runtime, and one without running outputs crashes it.
    """
    from bngrad.inspection.identity import identity
    from bngrad.inspection.inspect import inspect
    from bngrad.io.files import check_output, load

    loaded = load(model)
    page = None if html is None else check_output(html, source=model, model=loaded)
    found = inspect(loaded)
    print_warnings(found.warnings, found.notes)
    if page is not None:
        from bngrad.reports.html.inspection import write_html

        write_html(found, str(model), identity(loaded, model), page)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)


def _print(found: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from bngrad.cli.console import stdout_console

    console = stdout_console()
    console.print(f"batch norms: {len(found.batch_norms)}; ai.onnx {found.opset}, IR version {found.ir_version}")
    if found.batch_norms:
        table = Table()
        for heading in ("batch norm", "op", "mode", "axes", "type", "X", "gradient op"):
            table.add_column(heading, overflow="fold")
        for batch_norm in found.batch_norms:
            axes = "?" if batch_norm.axes is None else ",".join(map(str, batch_norm.axes))
            cells = (
                batch_norm.name,
                batch_norm.op,
                batch_norm.mode,
                axes,
                batch_norm.dtype,
                batch_norm.shape,
                batch_norm.gradient or "-",
            )
            table.add_row(*map(Text, cells))  # Text: a name may contain rich's markup
        console.print(table)
    for batch_norm in found.batch_norms:
        for hazard in batch_norm.hazards:
            console.print(f"hazard: {batch_norm.name}: {hazard}", markup=False, soft_wrap=True)
    if found.in_primitives:
        listed = ", ".join(f"{count} {kind}" for kind, count in found.in_primitives.items())
        console.print(f"batch norms in primitives: {listed}", markup=False, soft_wrap=True)
    if found.not_in_stock:
        listed = ", ".join(f"{op} ({count})" for op, count in sorted(found.not_in_stock.items()))
        console.print(f"not in stock ONNX Runtime: {listed}", markup=False, soft_wrap=True)
    else:
        console.print("all ops are in stock ONNX Runtime or in bngrad")
