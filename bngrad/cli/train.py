"""``bngrad train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bngrad.cli.help import Command
from bngrad.cli.options import DATA, data_option, option
from bngrad.cli.shell_completion import complete_files
from bngrad.option_fields import OUTPUT
from bngrad.runtime.device import CPU

_NOT_FINITE, _INTERRUPTED = 1, 130
"""Exit codes."""

_DEVICE, _RATE, _RANKS = "Device", "Learning rate", "Distributed"


@click.command(
    "train",
    cls=Command,
    examples="""
        $ bngrad train step.onnx --data train.npz --learning-rate 0.05 \\
            -o trained.onnx
        $ bngrad train step.onnx --data train.npz --validation test.npz \\
            --learning-rate 0.05 --checkpoint run.safetensors --plot loss.svg
        $ bngrad train step.onnx --data train.npz --validation test.npz \\
            --resume run.safetensors --epochs 20 -o trained.onnx
    """,
)
@click.argument("step", type=click.Path(path_type=Path), shell_complete=complete_files(".onnx"))
@data_option("STEP's data inputs")
@option(
    "--validation",
    multiple=True,
    metavar="FILE.npz",
    group=DATA,
    shell_complete=complete_files(".npz", ".npy"),
    help="Validation data, like --data (repeatable).",
)
@option(
    "--validation-split",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    group=DATA,
    help="Fraction of the data to validate on instead: a random choice, which depends on --seed.",
)
@option(
    "--batch-size", type=click.IntRange(1), group=DATA, help="Samples in a batch.  [default: 32, or that of STEP]"
)
@option("--drop-last", is_flag=True, group=DATA, help="Leave out the last batch of an epoch if it is smaller.")
@option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    group=DATA,
    help="Seed of the order of the samples and of the validation split.",
)
@option("--epochs", type=click.IntRange(1), default=10, show_default=True, help="Passes over the data.")
@option("--patience", type=click.IntRange(1), help="Epochs without a lower validation loss to stop after.")
@option(
    "--on-nan",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="What to do if a loss is not finite: stop with exit code 1, or leave out the batch.",
)
@option(
    "--threads",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Threads for one op; 0: ONNX Runtime chooses.",
)
@option(
    "--implementation",
    type=click.Choice(["native", "python", "function"]),
    default="native",
    show_default=True,
    help="Implementation of the ops.",
)
@option(
    "--device",
    default=CPU,
    show_default=True,
    metavar="DEVICE",
    group=_DEVICE,
    help="Device to train on: `cpu`, `cuda`, `cuda:1` or `webgpu` ([GPUs](../guides/gpu.md)).",
)
@option(
    "--tf32",
    is_flag=True,
    group=_DEVICE,
    help="Round the factors of convolutions and matrix products to TF32 (`cuda`).",
)
@option(
    "--cuda-graph",
    is_flag=True,
    group=_DEVICE,
    help="Run steps as CUDA graphs, with batches of one size: needs --drop-last if the last batch is smaller.",
)
@option(
    "--learning-rate",
    type=float,
    group=_RATE,
    help="The learning rate, or the highest one of the schedule; required, except with --resume.",
)
@option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine", "step"]),
    default="constant",
    show_default=True,
    group=_RATE,
    help="[How the learning rate changes](../guides/training.md#learning-rates).",
)
@option(
    "--warmup",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    group=_RATE,
    help="Updates of a linear warm-up (linear, cosine).",
)
@option(
    "--warmup-start",
    type=float,
    default=1 / 3,
    group=_RATE,
    help="Factor of the learning rate at the start of the warm-up.  [default: 1/3]",
)
@option("--minimum", type=float, default=0.0, show_default=True, group=_RATE, help="Last learning rate (cosine).")
@option("--decay-every", type=click.IntRange(1), group=_RATE, help="Updates between two decays (step).")
@option(
    "--decay-factor", type=float, default=0.1, show_default=True, group=_RATE, help="Factor of each decay (step)."
)
@option(
    "-o",
    "--output",
    type=click.Path(),
    group=OUTPUT,
    help="File to write the inference model to: with the lowest validation loss, or without validation data with "
    "the last state.",
)
@option("--state-out", type=click.Path(), group=OUTPUT, help="File to write that state to (.safetensors).")
@option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    group=OUTPUT,
    help="File for a checkpoint after each epoch and on Ctrl-C. The state with the lowest validation loss goes to "
    "the same name with `.best` before the suffix.  [default: that of --resume]",
)
@option("--checkpoint-every", type=click.IntRange(1), metavar="N", group=OUTPUT, help="Also after every N steps.")
@option(
    "--resume",
    type=click.Path(path_type=Path),
    group=OUTPUT,
    shell_complete=complete_files(".safetensors"),
    help="Checkpoint to continue from, with [its options](../guides/training.md#checkpoints) where none are "
    "given.",
)
@option(
    "--resume-anyway",
    is_flag=True,
    group=OUTPUT,
    help="Continue from a checkpoint of another model or optimizer, too, or of other data within an epoch, if its "
    "tensors fit; a warning names what differs.",
)
@option(
    "--log",
    type=click.Path(),
    metavar="FILE.jsonl",
    group=OUTPUT,
    help="File for a line of JSON for each step (`step`, `epoch`, `loss`, `learning_rate`, `seconds`) and each "
    "epoch "
    "(`training_loss`, `validation_loss`, `accuracy`).",
)
@option(
    "--plot",
    type=click.Path(),
    group=OUTPUT,
    help="File for the loss curve: .svg, .png or .pdf. Needs matplotlib (`pip install 'bngrad[plot]'`).",
)
@option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=OUTPUT,
    help="File for a [web page](../guides/reports.md#train), which is written again as the run goes on.",
)
@option(
    "--tensorboard",
    type=click.Path(file_okay=False),
    metavar="DIR",
    group=OUTPUT,
    help="Folder for an event file of TensorBoard.",
)
@option(
    "--distributed",
    is_flag=True,
    group=_RANKS,
    help="Train on all processes that an MPI launcher has started, as with `mpiexec -n 4 bngrad train ...`. Each "
    "takes a part of every batch. STEP has to be built with `bngrad step --sync`.",
)
@option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    group=_RANKS,
    help="How long to wait for another process.",
)
@click.pass_context
def train_command(context: click.Context, /, step: Path, as_json: bool, **options: Any) -> int:  # noqa: ANN401
    """Train a model with its training step.

    STEP is a [training step](training-step.md), a file that `bngrad step` wrote. A resumed run is bit-identical to
    one that was not interrupted, and takes options that are not given from the checkpoint. Exit code 1 if the loss
    is not finite.

    Documentation: [Training](../guides/training.md).
    """
    from bngrad.cli.ranks import joined
    from bngrad.cli.train_run import run
    from bngrad.errors import InputError

    if not options["distributed"] and context.get_parameter_source("timeout") is not ParameterSource.DEFAULT:
        raise InputError("--timeout is for --distributed, which is not given")
    with joined({**options, "json": as_json}, STEP=str(step)) as ranks:
        return run(context, step, ranks, options, as_json=as_json)
