"""``bngrad rewrite``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import count_text, print_json, print_warnings, stdout_console
from bngrad.cli.help import Command
from bngrad.cli.options import (
    external_data_option,
    model_argument,
    option,
    options_of,
)
from bngrad.options import RewriteOptions

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import RewriteDocument
    from bngrad.io.external_data import ExternalData


@click.command(
    "rewrite",
    cls=Command,
    examples="""
        $ bngrad rewrite training_model.onnx -o train.onnx
        $ bngrad rewrite training_model.onnx -o train.onnx --target training
        $ bngrad rewrite joint.onnx -o train.onnx --explain
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the rewritten model to.")
@options_of(RewriteOptions)
@option(
    "--explain",
    is_flag=True,
    help="Print each candidate for a batch norm in primitives: its node, its kind, and `recognized` or "
    "[why it was left alone](dialects/primitives.md#what-is-left-alone). `--json` always has them, under "
    "`candidates`, and the number of each kind under `recognized`.",
)
@option(
    "--html",
    type=click.Path(),
    metavar="FILE",
    help="Write a [page](../guides/reports.md#rewrite) with the graph before and after.",
)
@external_data_option
def rewrite_command(
    model: Path,
    output: str,
    explain: bool,
    html: str | None,
    external_data: ExternalData | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - passed through
) -> None:
    """Convert a training graph for stock ONNX Runtime.

    Batch norms and AdamW updates become `bngrad` ops; other training ops become standard ONNX. MODEL is a training
    graph of [ONNX Runtime](../guides/onnxruntime-training.md), one with the batch-norm nodes of
    [another system](dialects/index.md), one whose batch norms are spelled
    [in primitives](dialects/primitives.md), or one with nodes of the op [Gradient](gradients.md#the-op-gradient).

    State that ONNX Runtime's training ops update in place becomes an output: feed it back in the next step.
    `--json` lists the pairs under `state`.
    """
    from bngrad.autodiff.gradient_nodes import rewrite
    from bngrad.cli.outputs import check_outputs, data_notes
    from bngrad.io import files
    from bngrad.reports.tables import print_text_line

    source = files.load(model)
    path, *pages = check_outputs([output, *([] if html is None else [html])], {model: source})
    result = rewrite(source, **options)
    files.save(result.model, path, external_data)
    print_warnings((), data_notes(path))
    recognized = Counter(candidate.kind for candidate in result.candidates if candidate.taken)
    for page in pages:
        from bngrad.reports.html.rewriting import write_html

        by_op = {"New": result.rewritten, "Lowered to standard ONNX": result.lowered}
        write_html(page, (str(model), str(path)), (source, result.model), by_op, result.candidates)
    if as_json:
        document: RewriteDocument = {
            "model": str(model),
            "output": str(path),
            "target": options["target"],
            "rewritten": result.rewritten,
            "lowered": result.lowered,
            "state": result.state,
            "notes": result.notes,
            "recognized": recognized,
            "candidates": result.candidates,
        }
        print_json(document)
    else:
        changed = ", ".join(f"{count} {op}" for op, count in result.rewritten.items())
        lowered = ", ".join(f"{count} {op}" for op, count in result.lowered.items())
        outputs = count_text(len(result.state), "output")
        summary = [changed] if changed else []
        summary += [f"lowered to standard ONNX: {lowered}"] if lowered else []
        counts = ", ".join(f"{count} {kind}" for kind, count in recognized.items())
        summary += [f"recognized in primitives: {counts}"] if counts else []
        summary += [f"{outputs} to feed back (--json lists them)"] if result.state else []
        console = stdout_console()
        print_text_line(console, f"{path}: {'; '.join(summary)}")
        for note in result.notes:
            print_text_line(console, f"note: {note}")
        for candidate in result.candidates if explain else ():
            outcome = "recognized" if candidate.taken else candidate.reason
            print_text_line(console, f"{candidate.name}: {candidate.kind}: {outcome}")
