"""Concat and Split as training writes them, in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.shapes import lengths_of
from bngrad.opset.op_attributes import AXIS
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


@lowering("ConcatTraining", attributes=AXIS)
def concat_training(site: Site) -> Outputs:
    """ConcatTraining(X_0, X_1, ...) {axis} -> Y, and the length of each X_i along the axis."""
    inputs, axis = [site.x(index) for index in range(len(site.node.inputs))], site.attribute("axis", 0)
    lengths = lengths_of(site, inputs, axis) if site.has_output(1) else None
    return [site.op("Concat", *inputs, axis=axis), lengths]


@lowering("SplitTraining", attributes=AXIS)
def split_training(site: Site) -> Outputs:
    """SplitTraining(X, lengths) {axis} -> the pieces of X with these lengths."""
    # Split must have all its outputs, even unused ones.
    names = [f"piece_{index}" for index in range(len(site.node.outputs))]
    return site.outputs_of("Split", site.x(0), site.x(1), outputs=names, axis=site.attribute("axis", 0))
