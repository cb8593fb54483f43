"""``bngrad step``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.loss_options import loss_fn_options
from bngrad.cli.optimizer_options import optimizer_options
from bngrad.cli.options import (
    model_argument,
    option,
    options_of,
)
from bngrad.reports.visible import visible
from bngrad.training.options import OPTIMIZER, StepOptions

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import StepDocument
    from bngrad.training.optimizers import Optimizer, ParameterGroup


def _parse_scales(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[str, float]]:
    """Parses values of the form NAME=X."""
    scales = []
    for value in values:
        name, _, number = value.rpartition("=")
        try:
            scales.append((name, float(number)))
        except ValueError:
            name = ""
        if not name:
            raise click.BadParameter(f"{value!r} is not of the form NAME=X with a number X")
    return scales


@click.command(
    "step",
    cls=Command,
    examples="""
        $ bngrad step model.onnx -o step.onnx --momentum 0.9
        $ bngrad step network.onnx -o step.onnx --loss-fn cross_entropy
        $ bngrad step model.onnx -o step.onnx --optimizer adamw \\
            --weight-decay 0.05 --no-decay-1d
        $ bngrad step model.onnx -o step.onnx --frozen 'layer1.*' --layout flat
    """,
)
@model_argument
@option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    help="File to write the step to, such as step.onnx. The evaluation graph goes to step.eval.onnx, the initial "
    "state to step.safetensors, in the same folder.",
)
@optimizer_options
@option(
    "--no-decay",
    multiple=True,
    metavar="NAME",
    group=OPTIMIZER,
    help="Weight, or pattern such as `'*.bias'`, without weight decay (repeatable).",
)
@option(
    "--no-decay-1d",
    is_flag=True,
    group=OPTIMIZER,
    help="No weight decay for biases and scales: weights of rank 0 or 1.",
)
@option(
    "--lr-scale",
    multiple=True,
    metavar="NAME=X",
    callback=_parse_scales,
    group=OPTIMIZER,
    help="Multiply the learning rate of a weight, or of those a pattern matches, by X (repeatable). If several "
    "match, the first counts.",
)
@loss_fn_options
@options_of(StepOptions)
def step_command(
    model: Path,
    output: str,
    optimizer: Optimizer,
    no_decay: tuple[str, ...],
    no_decay_1d: bool,
    lr_scale: list[tuple[str, float]],
    as_json: bool,
    **options: Any,  # noqa: ANN401 - hyperparameters, and what is passed through
) -> None:
    """Build a training step: forward, backward, optimizer.

    MODEL is a forward model; a model without a loss needs --loss-fn. [The step](training-step.md) is one graph. A
    training loop in any language feeds the data, the learning rate and the state, and takes the loss and the new
    state. The metadata of OUTPUT record what each input and output is.
    """
    from bngrad.errors import UnsupportedNodeError
    from bngrad.io import files
    from bngrad.training.kernels import refuse_without_kernels
    from bngrad.training.step import build_step
    from bngrad.training.step_files import check_step_output, save_step
    from bngrad.training.step_info import KEY

    source = files.load(model)
    path = check_step_output(output, model, source)
    step = build_step(
        source,
        optimizer=optimizer,
        groups=_groups(no_decay, no_decay_1d, lr_scale),
        **options,
    )
    try:
        for graph in (step.model, step.evaluation):
            refuse_without_kernels(graph)
    except UnsupportedNodeError as error:
        if options["precision"] != "mixed-bfloat16":
            raise
        raise UnsupportedNodeError(f"{error}; or give --precision mixed, which the CPU runs in float16") from error
    written = save_step(step, path)
    print_warnings(step.warnings, step.notes)
    if as_json:
        document: StepDocument = {
            "model": str(model),
            "files": [str(file) for file in written],
            "notes": step.notes,
            "warnings": step.warnings,
            "step": json.loads(step.model.metadata_props[KEY]),
        }
        print_json(document)
    else:
        info = step.info
        sizes = count_text(len(info.names("weight")), "weight")
        sizes += f", {count_text(len(info.names('running_statistic')), 'running statistic')}"
        if info.quantization is not None:
            sizes += f", {count_text(len(info.quantization.weights), 'quantized layer')}"
        click.echo(visible(f"{path}: {info.optimizer['name']} step of {info.loss}: {sizes}"))
        click.echo(f"evaluation graph: {written[0]}; initial state: {written[1]}")


def _groups(no_decay: tuple[str, ...], no_decay_1d: bool, scales: list[tuple[str, float]]) -> list[ParameterGroup]:
    """Returns the parameter groups of the options."""
    from bngrad.training.optimizers import ParameterGroup

    rank = 1 if no_decay_1d else None
    groups = [ParameterGroup(names=[name], learning_rate_scale=scale) for name, scale in scales]
    if no_decay or no_decay_1d:
        groups.append(ParameterGroup(names=no_decay, max_rank=rank, weight_decay=0))
    return groups
