"""The gradient of If: an If with the same condition, whose branches differentiate the branches taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.autodiff.control_flow.body_copy import BodyCopy, require_tensors, zeros_like
from bngrad.autodiff.control_flow.repetition import body_of
from bngrad.graph.signs import is_singular
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

BRANCHES = ("then_branch", "else_branch")


def branches_of(node: ir.Node) -> list[ir.Graph] | None:
    """Returns the branches of an If; None for another node, and if a branch has other outputs than the node."""
    if node.domain or node.op_type != "If" or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    bodies = [body for name in BRANCHES if (body := body_of(node, name)) is not None]
    fits = len(bodies) == len(BRANCHES) and all(len(body.outputs) == len(node.outputs) for body in bodies)
    return bodies if fits else None


def gradients_of_if(back: Backward) -> Gradients:
    """Returns the gradients of the values that the branches of an If read; that of the condition is None."""
    node, captured = back.node, back.captured
    first = len(node.inputs)
    wrt = [value for index, value in enumerate(captured, first) if back.needs(index)]
    require_tensors(back, wrt)
    bodies = branches_of(node)
    if bodies is None:
        back.refuse("its outputs are not those of its branches; expected as many")
    copies = [BodyCopy(back, body) for body in bodies]
    branches = [_gradients(back, copy, wrt) for copy in copies]
    back.unbounded |= any(map(is_singular, (inner for body in bodies for inner in nodes_of(body))))
    reached = [
        value for index, value in enumerate(wrt) if any(gradients[index] is not None for gradients in branches)
    ]
    if not reached:
        for copy in copies:
            copy.discard()
        return [None] * (first + len(captured))
    graphs: dict[str, Any] = {}
    for name, copy, gradients in zip(BRANCHES, copies, branches, strict=True):
        by_value = dict(zip(wrt, gradients, strict=True))
        outputs = [
            zeros_like(copy.make, value) if (gradient := by_value[value]) is None else gradient
            for value in reached
        ]
        copy.set_outputs(outputs)
        graphs[name] = copy.finish([])
    words = [f"of_{value.name}" for value in reached]
    results = dict(zip(reached, back.outputs_of("If", back.x(0), outputs=words, **graphs), strict=True))
    return [*[None] * first, *(results.get(value) for value in captured)]


def _gradients(back: Backward, copy: BodyCopy, wrt: Sequence[ir.Value]) -> Sequence[ir.Value | None]:
    seeds = {copy.result(index): dY for index, dY in enumerate(back.all_dY) if dY is not None}
    return back.bodies.in_body(copy.graph, seeds, wrt, unbounded=back.unbounded)
