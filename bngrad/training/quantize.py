"""Quantization-aware training: what a step rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.arguments import is_count
from bngrad.errors import InputError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.passes.optimize.fold_affine import FoldAffinePass
from bngrad.passes.quantize.form import quantizable
from bngrad.passes.quantize.plan import float_batch_norms, plan
from bngrad.passes.quantize.quantization import require_range, require_scale
from bngrad.training.finalize import finalize

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.passes.quantize.quantization import Quantization
    from bngrad.training.options import StepOptions

    Array = NDArray[Any]


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
        values = {name: getattr(options, name) for name in ("symmetric", "learned_scales", "freeze_ranges")}
        for name in (name for name, value in values.items() if value is not None and value is not False):
            raise InputError(f"{name} is for quantize, which is not given; add --quantize (quantize=)")
        return None, []
    freeze = options.freeze_ranges
    if freeze is not None and not is_count(freeze, 0):
        raise InputError(f"freeze_ranges is {freeze!r}; expected a number of updates (int), at least 0")
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
    quantization = plan(
        deployed,
        options.quantize,
        Names(model, deployed),
        symmetric=options.symmetric,
        learned=options.learned_scales,
    )
    notes = []
    if names := float_batch_norms(deployed):
        notes.append(
            f"{listed(names)}: not folded into a layer, and not quantized; expected a Conv or a Gemm before the "
            "batch norm, whose result nothing else reads"
        )
    return quantization, notes


def require_initial(quantization: Quantization | None, initial: Mapping[str, Array]) -> None:
    """Checks the initial ranges and learned scales of a step.

    Raises:
        InputError: A number is not finite, 0 is not in a range, or a scale is negative.
    """
    if quantization is not None:
        for name in quantization.ranges.values():
            require_range(name, initial[name])
        for name in quantization.scales.values():
            require_scale(name, initial[name])
