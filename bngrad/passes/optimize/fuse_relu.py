"""The gradient of a ReLU in front of that of a batch norm -> one op.

::

    dY = com.microsoft.ReluGrad(dZ, Z);  dX, dscale, dbias = bngrad.BatchNormalizationGrad(dY, X, ...)
    =>  dX, dscale, dbias = bngrad.BatchNormalizationReluGrad(dZ, Z, X, ...)

dY is neither written nor read again. ORT's builder hands ReluGrad the ReLU's input or its output; Z > 0 says the
same of both.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.nodes import all_nodes, remove
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT


class FuseReluPass(ir.passes.InPlacePass):
    """Fuses every ReluGrad whose result nothing but a batch-norm gradient reads.

    Leaves alone: a result that is an output of the graph, or has another reader: it would be computed twice.
    Guarantees: no other pair is left; the batch-norm gradient keeps its name and its outputs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = [node for node in all_nodes(model) if _fits(node)]
        fused: list[ir.Node] = []
        for node in found:
            dY = node.inputs[0]
            assert dY is not None  # noqa: S101 - see `_fits`
            relu_grad = dY.producer()
            assert relu_grad is not None  # noqa: S101
            operands = [*relu_grad.inputs, *node.inputs[1:]]
            node.op_type = "BatchNormalizationReluGrad"
            node.resize_inputs(len(operands))
            for index, value in enumerate(operands):
                node.replace_input_with(index, value)
            fused.append(relu_grad)
        remove(fused)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No batch-norm gradient reads a ReluGrad that nothing else reads."""
        for node in filter(_fits, all_nodes(model)):
            raise ir.passes.PostconditionError(f"{node.name} can still be fused")


def _fits(node: ir.Node) -> bool:
    dY = node.inputs[0] if (node.domain, node.op_type) == (DOMAIN, "BatchNormalizationGrad") else None
    if dY is None or dY.is_graph_output() or len(dY.uses()) != 1:
        return False
    relu_grad = dY.producer()
    return (
        relu_grad is not None
        and (relu_grad.domain, relu_grad.op_type) == (MICROSOFT, "ReluGrad")
        and relu_grad.graph is node.graph
    )
