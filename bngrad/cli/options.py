"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path

import click

model_argument = click.argument("model", type=click.Path(path_type=Path))

# `cli.run` looks for --debug itself, because an error may occur before the options are parsed.
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback on errors.")

loss_option = click.option(
    "--loss", help="Name of the float scalar to differentiate; needed if MODEL has more than one."
)

wrt_option = click.option(
    "--wrt",
    multiple=True,
    metavar="NAME",
    help="Input or initializer to differentiate with respect to (repeatable).  [default: all weights]",
)

functions_option = click.option(
    "--functions/--no-functions",
    default=True,
    show_default=True,
    help="Embed the definitions of the ops, so that the result runs without the native library.",
)

fuse_option = click.option(
    "--fuse/--no-fuse",
    default=True,
    show_default=True,
    help="Fuse a ReLU gradient with the batch-norm gradient that follows it.",
)

recognize_option = click.option(
    "--recognize/--no-recognize",
    default=True,
    show_default=True,
    help="Replace batch norms that are spelled in primitives, such as Sub, Mul and ReduceMean.",
)

shared_statistics_option = click.option(
    "--shared-statistics",
    type=click.Choice(["separate", "chain"]),
    help="How batch norms that read the same running statistic update it: each its own copy (separate), or one "
    "statistic in sequence (chain).  [default: chain for those that MODEL records as calls of one PyTorch module, "
    "else separate]",
)

external_data_option = click.option(
    "--external-data",
    type=click.Choice(["copied", "shared"]),
    help="Copy the weights to OUTPUT.data, or leave external data in its files, which must be in OUTPUT's folder "
    "or below it. By default, weights are stored in OUTPUT, or copied if it would exceed protobuf's 2 GB limit.",
)

frozen_option = click.option(
    "--frozen",
    multiple=True,
    metavar="NAME",
    help="Batch norm, or pattern such as 'layer1.*', that uses its running statistics (repeatable).",
)

training_option = click.option(
    "--training",
    multiple=True,
    metavar="NAME",
    help="Batch norm, or pattern, that uses the statistics of the batch (repeatable). If --frozen matches too, "
    "the more specific one wins. Batch norms that neither matches follow MODEL, and PyTorch's mode where MODEL "
    "records it; 'auto' requires that it does.",
)

running_variance_option = click.option(
    "--running-variance",
    type=click.Choice(["biased", "unbiased"]),
    help="Batch variance that updates the running variance: biased, as in ONNX, or unbiased, M / (M - 1) times as "
    "large, as in PyTorch and TensorFlow.  [default: unbiased if MODEL is from PyTorch, else biased]",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def _parse_dims(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Parses values of the form NAME=N."""
    dims = {}
    for value in values:
        name, _, size = value.partition("=")
        if not name or not size.isdecimal():
            raise click.BadParameter(f"{value!r} is not of the form NAME=N with an integer N")
        dims[name] = int(size)
    return dims


dims_option = click.option(
    "--dim",
    "dims",
    metavar="NAME=N",
    multiple=True,
    callback=_parse_dims,
    help="Size of a symbolic dimension of MODEL (repeatable).",
)
