"""Quantization-aware training: what a step rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.passes.optimize.fold_affine import FoldAffinePass
from bngrad.passes.quantize.form import quantizable
from bngrad.passes.quantize.plan import float_batch_norms, plan
from bngrad.training.finalize import finalize

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.quantize.quantization import Quantization
    from bngrad.training.options import StepOptions


def quantization_of(model: ir.Model, options: StepOptions) -> tuple[Quantization | None, list[str]]:
    """Returns what a step rounds, from the model as it is deployed, and notes; None for nothing.

    Args:
        model: The forward model with its loss; it is not changed.
        options: The options of the step.

    Raises:
        InputError: Options contradict each other.
        ModelError: The model cannot be quantized, or has no output but the loss.
        UnsupportedNodeError: A layer has another type than float.
    """
    if options.quantize is None:
        if options.symmetric:
            raise InputError("symmetric is for quantize, which is not given; add --quantize (quantize=)")
        return None, []
    contradictions = {
        "--precision (precision=)": options.precision != "model",
        "--sync (sync=)": options.sync,
        "--no-straight-through (straight_through=False)": not options.straight_through,
    }
    for option, is_given in contradictions.items():
        if is_given:
            raise InputError(f"--quantize (quantize=) cannot be combined with {option}; leave one of them out")
    inputs = {value.name for value in model.graph.inputs}
    weights = {name: array for name, array in (options.values or {}).items() if name in inputs}
    deployed = quantizable(finalize(model, weights, random=True, batch_statistics=True).model)
    FoldAffinePass()(deployed)  # as in a training graph
    quantization = plan(deployed, options.quantize, Names(model, deployed), symmetric=options.symmetric)
    notes = []
    if names := float_batch_norms(deployed):
        notes.append(
            f"{listed(names)}: not folded into a layer, and not quantized; expected a Conv or a Gemm before the "
            "batch norm, whose result nothing else reads"
        )
    return quantization, notes
