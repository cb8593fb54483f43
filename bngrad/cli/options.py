"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

model_argument = click.argument("model", type=click.Path(path_type=Path))

# `cli.run` looks for --debug itself, since an error may come before any option is parsed.
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback on errors.")

functions_option = click.option(
    "--functions/--no-functions",
    default=True,
    show_default=True,
    help="Embed the ops' definitions, so that the result runs where nothing is registered.",
)

fuse_option = click.option(
    "--fuse/--no-fuse",
    default=True,
    show_default=True,
    help="Make one op of a ReLU's gradient and the batch norm's behind it.",
)

shared_statistics_option = click.option(
    "--shared-statistics",
    type=click.Choice(["separate", "chain"]),
    help="What batch norms get that read the same running statistic: each its own (separate, the default), or one "
    "for all of them, which each updates in turn (chain).",
)

external_data_option = click.option(
    "--external-data",
    type=click.Choice(["copied", "shared"]),
    help="Have the weights in a file OUTPUT.data, or leave those in files where they are, which must be OUTPUT's "
    "folder or below. By default they are in OUTPUT, or copied where that would exceed protobuf's 2 GB.",
)

frozen_option = click.option(
    "--frozen",
    multiple=True,
    metavar="NAME",
    help="A batch norm, or a pattern such as 'layer1.*', that uses its running statistics (repeatable).",
)

training_option = click.option(
    "--training",
    multiple=True,
    metavar="NAME",
    help="The same for one that uses the batch's statistics; by default each does what MODEL says. "
    "Where both match, the narrower decides.",
)

running_variance_option = click.option(
    "--running-variance",
    type=click.Choice(["biased", "unbiased"]),
    help="Which variance of the batch the running variance takes in: ONNX's, or PyTorch's and TensorFlow's, which "
    "is M / (M - 1) times as large. The default is PyTorch's for a MODEL from PyTorch, else ONNX's.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def _parse_dims(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """NAME=N, several of them."""
    dims = {}
    for value in values:
        name, _, extent = value.partition("=")
        if not name or not extent.isdecimal():
            raise click.BadParameter(f"{value!r} is not NAME=N with a whole number N")
        dims[name] = int(extent)
    return dims


dims_option = click.option(
    "--dim",
    "dims",
    metavar="NAME=N",
    multiple=True,
    callback=_parse_dims,
    help="Size of a symbolic dimension of MODEL (repeatable).",
)
