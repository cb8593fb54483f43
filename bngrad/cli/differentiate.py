"""``bngrad differentiate``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.loss_options import loss_fn_options
from bngrad.cli.options import (
    external_data_option,
    model_argument,
    option,
    options_of,
)
from bngrad.option_fields import OUTPUT
from bngrad.reports.visible import visible
from bngrad.training.options import DifferentiateOptions

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import DifferentiateDocument
    from bngrad.io.external_data import ExternalData


@click.command(
    "differentiate",
    cls=Command,
    examples="""
        $ bngrad differentiate model.onnx -o train.onnx
        $ bngrad differentiate model.onnx -o train.onnx --frozen 'layer1.*'
        $ bngrad differentiate network.onnx -o train.onnx --loss-fn cross_entropy
        $ bngrad differentiate model.onnx -o train.onnx --no-defaults \\
            --state state.safetensors
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the training graph to.")
@loss_fn_options
@options_of(DifferentiateOptions)
@option(
    "--state",
    "state_file",
    type=click.Path(),
    metavar="FILE.safetensors",
    group=OUTPUT,
    help="File to write the initial weights and running statistics to, by the names of their inputs.",
)
@external_data_option
def differentiate_command(
    model: Path,
    output: str,
    state_file: str | None,
    external_data: ExternalData | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - passed through
) -> None:
    """Build the training graph of a forward model.

    MODEL is a forward model. [The training graph](training-graph.md) has an output NAME_grad for the gradient with
    respect to NAME. Weights and running statistics become inputs with default values; updated running statistics
    become outputs. The metadata of OUTPUT records the role of each.

    Batch norms that MODEL spells [in primitives](dialects/primitives.md) are differentiated as one op. A model
    without a loss needs --loss-fn: [losses](../guides/losses.md).
    """
    from bngrad.cli.outputs import data_notes
    from bngrad.io import files, writing
    from bngrad.io.tensor_files import arrays_of, writing_tensors
    from bngrad.training.differentiate import differentiate

    source = files.load(model)
    path = writing.check_output(output, model, source)
    state = None if state_file is None else _check_state(writing.check_output(state_file, model, source), path)
    result = differentiate(source, **options)
    with contextlib.ExitStack() as stack:
        if state is not None:  # it gets its name when the model is written
            stack.enter_context(writing_tensors(state, arrays_of(result.state), {}))
        files.save(result.model, path, external_data)
    print_warnings(result.warnings, [*result.notes, *data_notes(path)])
    if as_json:
        document: DifferentiateDocument = {
            "model": str(model),
            "output": str(path),
            "loss": result.loss,
            "gradients": result.gradients,
            "running_statistics": result.running_statistics,
            "target": result.target,
            "state": None if state is None else str(state),
            "notes": result.notes,
            "warnings": result.warnings,
        }
        print_json(document)
    else:
        running = result.running_statistics
        statistics = f", {count_text(len(running), 'running statistic')}" if running else ""
        values = count_text(len(result.gradients), "value")
        gradients = f"the gradient of {result.loss} with respect to {values}"
        click.echo(visible(f"{path}: {gradients}{statistics}"))


def _check_state(state: Path, output: Path) -> Path:
    from bngrad.errors import InputError

    if state.resolve() == output.resolve():
        raise InputError(f"--state {state} is the output; choose another file")
    return state
