"""``bngrad rewrite``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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

    from bngrad.io.external_data import ExternalData
    from bngrad.passes.pipeline import Target


@click.command("rewrite")
@model_argument
@click.option("-o", "--output", required=True, type=click.Path(), help="Where the rewritten model goes.")
@click.option(
    "--target",
    type=click.Choice(["stock", "training"]),
    default="stock",
    show_default=True,
    help="What the result runs on: any ONNX Runtime, or a training build that has the other training ops.",
)
@functions_option
@fuse_option
@external_data_option
@json_option
@debug_option
def rewrite_command(
    model: Path,
    output: str,
    target: Target,
    functions: bool,
    fuse: bool,
    external_data: ExternalData | None,
    as_json: bool,
) -> None:
    """Make a training graph one that stock ONNX Runtime runs.

    Every batch norm becomes a bngrad op, every other training op standard ONNX. State that ONNX Runtime's training
    ops update in place becomes an output: feed it back in the next step.
    """
    from bngrad.io import files
    from bngrad.passes.pipeline import rewrite

    source = files.load(model)
    path = files.check_output(output, source=model)
    result = rewrite(source, target=target, functions=functions, fuse=fuse)
    files.save(result.model, path, external_data)
    if as_json:
        document = {
            "model": str(model),
            "output": str(path),
            "target": target,
            "rewritten": result.rewritten,
            "lowered": result.lowered,
            "state": result.state,
            "notes": result.notes,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        changed = ", ".join(f"{count} {op}" for op, count in result.rewritten.items())
        lowered = ", ".join(f"{count} {op}" for op, count in result.lowered.items())
        parts = [changed] if changed else []
        parts += [f"in standard ONNX {lowered}"] if lowered else []
        parts += [f"{len(result.state)} outputs to feed back (--json lists them)"] if result.state else []
        click.echo(f"{path}: {'; '.join(parts)}")
        for note in result.notes:
            click.echo(f"note: {note}")
