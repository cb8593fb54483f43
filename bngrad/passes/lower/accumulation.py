"""The accumulation of gradients over steps in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.nodes import raise_refusals
from bngrad.passes.lower.lowering import lowering
from bngrad.passes.prepare.return_state import return_state

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


def accumulator_refusal(node: ir.Node) -> str | None:
    """Returns the reason why an accumulation cannot be lowered; None if it can."""
    if len(node.inputs) < 2 or None in node.inputs[:2]:
        return "it lacks an input; expected an accumulation buffer and a gradient"
    buffer = node.inputs[0]
    if buffer is not None and sum(user.op_type == node.op_type for user, _ in buffer.uses()) > 1:
        return f"its buffer {buffer.name!r} is updated by another node too; expected a buffer for each"
    return None


@lowering("InPlaceAccumulatorV2", refusal=accumulator_refusal)
def in_place_accumulator(site: Site) -> Outputs:
    """InPlaceAccumulatorV2(buffer, gradient, reset) -> done = true, new = reset ? gradient : buffer + gradient.

    ONNX Runtime writes the new value over the buffer. Here it is a graph output: output 1 if the node has it, else
    ``<buffer>_new``.
    """
    model, buffer, reset = site.context.model, site.x(0), site.optional(2)
    if site.node.graph is not model.graph:
        reason = "it is in a subgraph or a function, which cannot return the new value of its buffer"
        raise_refusals([(site.node, f"{reason}; expected it in the main graph")])
    gradient = site.cast(site.x(1), buffer.dtype) if buffer.dtype is not None else site.x(1)
    new = site.op("Add", buffer, gradient)
    if reset is not None:
        # A scalar, so that the sum keeps its own rank, even 0.
        new = site.op("Where", site.op("Reshape", reset, site.int64([])), gradient, new)
    new.type, new.shape = buffer.type, buffer.shape
    done = site.constant([True], ir.DataType.BOOL)
    outputs = site.node.outputs
    if len(outputs) > 1 and outputs[1].name:
        if buffer.producer() is None:
            return_state(model, buffer, outputs[1])
        return [done, new]
    if buffer.producer() is None:
        return_state(model, buffer, site.name(new, site.names.fresh(f"{buffer.name}_new")))
    return [done]
