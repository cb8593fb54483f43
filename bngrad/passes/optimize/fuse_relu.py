"""The gradient of a ReLU followed by that of a batch norm -> one op.

::

    dX, dscale, dbias = bngrad.BatchNormalizationGrad(dY, X, ...), dY = dZ where Z > 0, else 0
    =>  dX, dscale, dbias = bngrad.BatchNormalizationReluGrad(dZ, Z, X, ...)

dY is neither written nor read again. ORT's builder passes ReluGrad the ReLU's input or its output; Z > 0 holds for
both or neither. `relu_gradients` has the spellings.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.nodes import all_nodes, remove_unused
from bngrad.opset.functions import DOMAIN
from bngrad.passes.optimize.relu_gradients import ReluGradient, relu_gradient


class FuseReluPass(ir.passes.InPlacePass):
    """Fuses every gradient of a ReLU whose result only a batch-norm gradient reads.

    Does not change: a result that is an output of the graph, or has another reader: it would be computed twice.
    Guarantees: no other pair is left; the batch-norm gradient keeps its name and its outputs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        pairs = [(node, relu) for node in all_nodes(model) if (relu := _relu_before(node)) is not None]
        fused = []
        for node, relu in pairs:
            dY = node.inputs[0]
            maker = None if dY is None else dY.producer()
            assert maker is not None, "see `relu_gradient`"  # noqa: S101
            operands = [*relu, *node.inputs[1:]]
            node.op_type = "BatchNormalizationReluGrad"
            node.resize_inputs(len(operands))
            for index, value in enumerate(operands):
                node.replace_input_with(index, value)
            fused.append(maker)
        remove_unused(fused)
        return ir.passes.PassResult(model, modified=bool(pairs))

    def ensures(self, model: ir.Model) -> None:
        """No batch-norm gradient reads the gradient of a ReLU that nothing else reads."""
        for node in all_nodes(model):
            if _relu_before(node) is not None:
                raise ir.passes.PostconditionError(f"{node.name} can still be fused")


def _relu_before(node: ir.Node) -> ReluGradient | None:
    """The operands of the ReLU's gradient that only a batch-norm gradient reads."""
    dY = node.inputs[0] if (node.domain, node.op_type) == (DOMAIN, "BatchNormalizationGrad") else None
    if dY is None or dY.is_graph_output() or len(dY.uses()) != 1:
        return None
    maker = dY.producer()
    return relu_gradient(dY) if maker is not None and maker.graph is node.graph else None
