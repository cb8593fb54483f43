"""TensorFlow's gradient ops, and its fused losses, as tf2onnx leaves them -> the training ops of ONNX Runtime.

`passes.lower` converts those to standard ONNX. The domain may be any except those with ops of the same names,
bngrad's and ONNX Runtime's. Attributes such as T and Tlabels are ignored, and those that begin with an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_reader import attribute_refusal
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.checks import input_refusal
from bngrad.passes.imports.tensorflow import (
    convolution_gradients,
    elementwise_gradients,
    pooling_gradients,
    shapes,
    softmax_cross_entropy,
)
from bngrad.passes.lower.lower_training import OPSET
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from bngrad.passes.imports.tensorflow.rule import Rule

_RULES: Mapping[str, Rule] = {
    **convolution_gradients.RULES,
    **elementwise_gradients.RULES,
    **pooling_gradients.RULES,
    **shapes.RULES,
    **softmax_cross_entropy.RULES,
}
"""The rules by op type."""
_UNREAD = ("T", "Tlabels", "Tindices", "Tdim", "use_cudnn_on_gpu", "U")


class ImportTensorflowGradientsPass(RewritePass):
    """Rewrites every op of TensorFlow that has a rule.

    Matches: nodes in any domain except bngrad's and ONNX Runtime's; MaxPoolGrad of the default domain with three
    inputs, for ONNX Runtime's has two.
    Refuses: other numbers of inputs, unknown attributes and formats, and nodes that a rule refuses, such as one
    with a filter whose shape is unknown.
    """

    minimum = OPSET

    def call(self, model: ir.Model) -> ir.passes.PassResult:  # noqa: D102
        graphs = {node.graph for node in self._matching(model)}
        if graphs:
            model.opset_imports.setdefault(MICROSOFT, 1)
        for function in model.functions.values():
            if function.graph in graphs:
                function.opset_imports.setdefault(MICROSOFT, 1)
        return super().call(model)

    def matches(self, node: ir.Node) -> bool:  # noqa: D102
        if node.op_type not in _RULES or node.domain in (DOMAIN, MICROSOFT):
            return False
        return (node.domain, node.op_type) != ("", "MaxPoolGrad") or len(node.inputs) != 2

    def refusal(self, node: ir.Node) -> str | None:  # noqa: D102
        rule = _RULES[node.op_type]
        if rule.inputs and (reason := input_refusal(node, rule.inputs)):
            return reason
        unread = [name for name in node.attributes if name in _UNREAD or name.startswith("_")]
        attributes = {**rule.attributes, **dict.fromkeys(unread, ())}
        return attribute_refusal(node, attributes) or rule.refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:  # noqa: D102
        site = Site(node, context)
        values = enumerate(_RULES[node.op_type].rewrite(site))
        site.replace({index: value for index, value in values if value is not None})
