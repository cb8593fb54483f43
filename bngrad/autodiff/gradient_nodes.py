"""Replaces Gradient of ``ai.onnx.preview.training``, which no runtime executes, by the nodes of the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.ghost_batches import refuse_ghost_batches
from bngrad.autodiff.gradient_request import GradientRequest, is_gradient_node
from bngrad.graph.nodes import all_nodes, op_nodes, raise_refusals
from bngrad.passes import pipeline
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass

if TYPE_CHECKING:
    from typing import Unpack

    import onnx_ir as ir

    from bngrad.options import RewriteKeywords
    from bngrad.passes.pipeline import Rewritten


def rewrite(model: ir.Model, **options: Unpack[RewriteKeywords]) -> Rewritten:
    """Returns a copy of a training graph that stock ONNX Runtime runs; see `pipeline.rewrite`.

    Raises:
        UnsupportedNodeError: As `pipeline.rewrite`; or a Gradient cannot be replaced.
    """
    refuse_ghost_batches(all_nodes(model), "rewrite")
    result, count = without_gradient_nodes(model)
    return pipeline.rewrite(result, lowered_before={"Gradient": count} if count else {}, **options)


def without_gradient_nodes(model: ir.Model) -> tuple[ir.Model, int]:
    """Returns a model without Gradient nodes, and their number: the model itself, or a copy.

    Raises:
        UnsupportedNodeError: A node names values that the graph does not have, or that are not independent; y is
            no float of one element, or has no gradient; or the node is in a function or the body of another node.
    """
    nodes = [node for node in op_nodes(model) if is_gradient_node(node)]
    if not nodes:
        return model, 0
    from bngrad.autodiff.gradient_graph import replace_gradient  # noqa: PLC0415 - rarely needed
    from bngrad.autodiff.prepare_forward import OPSET  # noqa: PLC0415

    main = set(model.graph)
    where = "it is in a function or in the body of another node; expected one of the main graph"
    raise_refusals([(node, where) for node in nodes if node not in main])
    model = RaiseOpsetPass(OPSET)(model).model
    while pending := [node for node in model.graph if is_gradient_node(node)]:
        InferTypesPass()(model)
        requests = [GradientRequest(node) for node in pending]
        raise_refusals([(r.node, reason) for r in requests if (reason := r.name_refusal())])
        # y may be computed from the outputs of another Gradient, as second derivatives are.
        ready = next((r for r in requests if not any(map(is_gradient_node, r.nodes))), None)
        if ready is None:
            raise_refusals(
                [(pending[0], "its y depends on its own results, or on a Gradient that depends on them")]
            )
        else:
            if reason := ready.value_refusal():
                raise_refusals([(ready.node, reason)])
            named = {name for request in requests for name in (*request.names, request.y)}
            replace_gradient(model, ready, [value for value in ready.values.values() if value.name in named])
    return model, len(nodes)
