"""``bngrad finalize``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bngrad.cli.console import count_text, print_json, print_warnings
from bngrad.cli.help import Command
from bngrad.cli.options import (
    external_data_option,
    model_argument,
    option,
    options_of,
)
from bngrad.cli.shell_completion import complete_files
from bngrad.training.options import StepOptions

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.cli.documents import FinalizeDocument
    from bngrad.io.external_data import ExternalData


@click.command(
    "finalize",
    cls=Command,
    examples="""
        $ bngrad finalize model.onnx --weights trained.npz -o inference.onnx
        $ bngrad finalize model.onnx --weights run.safetensors -o inference.onnx
    """,
)
@model_argument
@option("-o", "--output", required=True, type=click.Path(), help="File to write the inference model to.")
@option(
    "--weights",
    required=True,
    type=click.Path(),
    metavar="FILE",
    shell_complete=complete_files(".npz", ".safetensors"),
    help="An .npz or .safetensors file of trained weights and running statistics, by the names of the training "
    "graph's inputs or, for a running statistic, of the output with the new value; or a state or checkpoint of a "
    "training step, whose optimizer state is left out, and whose values are cast for 16-bit weights. Values that "
    "are not given stay as they are.",
)
@option(
    "--keep",
    multiple=True,
    metavar="NAME",
    help="Output to keep (repeatable).  [default: all except losses and running statistics]",
)
@options_of(StepOptions, "batch_statistics")
@external_data_option
def finalize_command(
    model: Path,
    output: str,
    weights: str,
    keep: tuple[str, ...],
    batch_statistics: bool,
    external_data: ExternalData | None,
    as_json: bool,
) -> None:
    """Write trained weights into a forward model, for inference.

    MODEL is the forward model. The result is an inference model:

    - Batch norms use their running statistics, and Dropout becomes the identity, also in bodies of If, Loop and
      Scan. A batch norm [in primitives](dialects/primitives.md#limits) that normalizes by the batch is refused.
    - Losses are removed. A loss is a float scalar, or what depends on SoftmaxCrossEntropyLoss or
      NegativeLogLikelihoodLoss; where there is neither, the only float output of one element.
    - Functions are inlined. The opset stays.

    An ambiguous name, of values that training separates, is refused, and the message states what to give
    instead. So is an output that depends on a random op, such as RandomNormalLike.
    """
    from bngrad.cli.outputs import data_notes
    from bngrad.io import files, writing
    from bngrad.training.finalize import finalize
    from bngrad.training.weights_file import load_weights

    source = files.load(model)
    path = writing.check_output(output, model, source)
    state = load_weights(weights)
    result = finalize(
        source,
        state.arrays,
        outputs=list(keep) or None,
        from_state=state.is_state,
        batch_statistics=batch_statistics,
        quantization=state.quantization,
    )
    files.save(result.model, path, external_data)
    print_warnings((), data_notes(path))
    if as_json:
        document: FinalizeDocument = {
            "model": str(model),
            "output": str(path),
            "weights": result.weights,
            "kept": result.kept,
        }
        print_json(document)
    else:
        kept = f", {len(result.kept)} unchanged" if result.kept else ""
        click.echo(f"{path}: {count_text(len(result.weights), 'new value')}{kept}")
