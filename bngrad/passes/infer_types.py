"""Types and shapes of all values, also of those behind ops that onnx infers nothing for."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from bngrad.ort_dialect import MICROSOFT
from bngrad.passes.nodes import SUPPORTED_DTYPES, all_nodes
from bngrad.passes.set_aside import set_aside

_LIKE_FIRST_INPUT = {
    ("", "GroupNormalization"),
    *((MICROSOFT, op_type) for op_type in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
}
"""Forward ops whose output has the type and shape of the first input, which onnx does not know.

Giving it schemas is no way out: its reference evaluator takes no op type, such as Gelu, in two domains.
"""


_SHAPED_BY_FLOATS = ("Cast", "Range", "Resize", "Upsample")
"""Ops whose output has a shape, or is one, that a float among their inputs says."""


class InferTypesPass(ir.passes.InPlacePass):
    """Runs onnx's shape inference, in which the ops that it lacks take part as Identity.

    Guarantees: nodes are as before. What cannot be inferred, or contradicts what the model says, stays as it is.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        disguised = [
            (node, node.domain, node.op_type)
            for node in all_nodes(model)
            if (node.domain, node.op_type) in _LIKE_FIRST_INPUT
        ]
        for node, _, _ in disguised:
            node.domain, node.op_type = "", "Identity"
        try:
            with set_aside(model.graph, _says_no_shape):
                return ShapeInferencePass(check_type=False, strict_mode=False)(model)
        finally:
            for node, domain, op_type in disguised:
                node.domain, node.op_type = domain, op_type


def _says_no_shape(initializer: ir.Value) -> bool:
    """Whether an initializer is a weight, whose numbers no shape depends on."""
    return initializer.dtype in SUPPORTED_DTYPES and not any(
        node.op_type in _SHAPED_BY_FLOATS for node, _ in initializer.uses()
    )
