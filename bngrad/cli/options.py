"""Arguments and options shared by several commands."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from bngrad.cli.help import COMMON, Option
from bngrad.cli.shell_completion import complete_files

BATCH_NORMS = "Batch norms"
OUTPUT = "Output"
REPORT = "Report"

option = functools.partial(click.option, cls=Option)

model_argument = click.argument("model", type=click.Path(path_type=Path), shell_complete=complete_files(".onnx"))

models_argument = click.argument(
    "models",
    metavar="MODEL...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=complete_files(".onnx"),
)

# `cli.run` looks for --debug itself, because an error may occur before the options are parsed.
debug_option = option(
    "--debug", is_flag=True, expose_value=False, group=COMMON, help="Show a traceback on errors."
)

loss_option = option(
    "--loss",
    metavar="NAME",
    help="Float scalar to differentiate.  [default: the only one of MODEL]",
)

wrt_option = option(
    "--wrt",
    multiple=True,
    metavar="NAME",
    help="Input or initializer to differentiate with respect to (repeatable).  [default: all weights]",
)

functions_option = option(
    "--functions/--no-functions",
    default=True,
    show_default=True,
    group=OUTPUT,
    help="Embed the definitions of the `bngrad` ops, so that the result also runs without the native library.",
)

fuse_option = option(
    "--fuse/--no-fuse",
    default=True,
    show_default=True,
    group=OUTPUT,
    help="Fuse the gradient of a ReLU with that of the batch norm in front of it.",
)

sync_option = option(
    "--sync",
    is_flag=True,
    group=BATCH_NORMS,
    help="Make the result that of one rank of a [distributed run](../guides/distributed.md): batch norms in "
    "training mode use the statistics of the whole batch, and the loss and the gradients are those of the whole "
    "batch on every rank.",
)

batch_statistics_option = option(
    "--batch-statistics",
    is_flag=True,
    group=BATCH_NORMS,
    help="Keep batch norms [in primitives](dialects/primitives.md#limits), which use the statistics of the batch "
    "in inference, too. Without this option, MODEL is refused if an output depends on one.",
)

recognize_option = option(
    "--recognize/--no-recognize",
    default=True,
    show_default=True,
    help="Replace batch norms [in primitives](dialects/primitives.md), such as Sub, Mul and ReduceMean, forward "
    "and "
    "backward.",
)

shared_statistics_option = option(
    "--shared-statistics",
    type=click.Choice(["separate", "chain"]),
    group=BATCH_NORMS,
    help="How batch norms that read the same running statistic update it: each its own copy (separate), or one "
    "statistic in sequence (chain).  [default: chain for calls of one PyTorch module that MODEL records, else "
    "separate]",
)

external_data_option = option(
    "--external-data",
    type=click.Choice(["copied", "shared"]),
    group=OUTPUT,
    help="Copy the weights to OUTPUT.data (copied), or leave external data in its files, which must be in "
    "OUTPUT's "
    "folder or below it (shared). They are never read into memory.  [default: weights are stored in OUTPUT, or "
    "copied if it would exceed protobuf's 2 GB limit]",
)

frozen_option = option(
    "--frozen",
    multiple=True,
    metavar="NAME",
    group=BATCH_NORMS,
    help="Batch norm, or pattern such as `'layer1.*'`, that uses its running statistics (repeatable).",
)

training_option = option(
    "--training",
    multiple=True,
    metavar="NAME",
    group=BATCH_NORMS,
    help="Batch norm, or pattern, that uses the statistics of the batch (repeatable). If --frozen matches too, "
    "the more specific one wins. Batch norms that neither matches follow MODEL, and "
    "[PyTorch's mode](../guides/pytorch.md#you-have-only-a-file) where MODEL records it. `auto` refuses a MODEL "
    "that does not record it for a batch norm in inference mode.",
)

running_variance_option = option(
    "--running-variance",
    type=click.Choice(["biased", "unbiased"]),
    group=BATCH_NORMS,
    help="Batch variance that updates [the running variance](training-graph.md#the-running-variance): biased, as "
    "in "
    "ONNX, or unbiased, M / (M - 1) times as large, as in PyTorch and TensorFlow.  [default: unbiased if MODEL is "
    "from PyTorch, else biased]",
)

sarif_option = option(
    "--sarif",
    type=click.Path(),
    metavar="FILE",
    group=REPORT,
    help="Write the findings as SARIF 2.1.0, for [code scanning](../guides/ci.md#code-scanning).",
)

annotations_option = option(
    "--annotations",
    type=click.Path(),
    metavar="FILE",
    group=REPORT,
    help="Write the findings as [annotations of GitHub Actions](../guides/ci.md#the-files).",
)

json_option = option(
    "--json",
    "as_json",
    is_flag=True,
    group=COMMON,
    help="Print one [JSON document](json.md) on stdout.",
)


def _parse_dims(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Parses values of the form NAME=N."""
    dims = {}
    for value in values:
        name, _, size = value.partition("=")
        if not name or not size.isdecimal():
            raise click.BadParameter(f"{value!r} is not of the form NAME=N with an integer N")
        dims[name] = int(size)
    return dims


dims_option = option(
    "--dim",
    "dims",
    metavar="NAME=N",
    multiple=True,
    callback=_parse_dims,
    help="Size of a symbolic dimension of MODEL (repeatable).",
)


def option_name(key: str) -> str:
    """Returns the option that a parameter of a command is: ``--batch-size`` of ``batch_size``."""
    return "--" + key.replace("_", "-")
