"""Every training op that stock ONNX Runtime lacks -> standard ONNX.

Batch norm is not among them: `ImportOrtPass` makes it an op of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.node_reader import attribute_refusal
from bngrad.graph.nodes import default_opset, raise_refusals
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower import LOWERINGS
from bngrad.passes.lower.site import Site
from bngrad.passes.lower.training_kernels import has_kernel

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 16
"""The oldest ai.onnx opset that has what lowerings use: a ScatterElements that adds."""


def is_lowered(node: ir.Node, *, for_training_build: bool) -> bool:
    """Whether a node has an entry in `LOWERINGS`, and a training build, if it is for one, has no kernel for it."""
    known = (node.domain, node.op_type) in LOWERINGS
    return known and not (for_training_build and has_kernel(node))


class LowerTrainingPass(RewritePass):
    """Lowers every node that has an entry in `LOWERINGS`, in the order of the graph.

    Requires: ai.onnx 16 or newer, where there is one.
    Refuses: an ai.onnx opset newer than `NEWEST_OPSET`, an attribute that an entry does not know, and what an
    entry refuses, such as a pooling whose input has an unknown shape.

    Args:
        for_training_build: Whether to lower those alone that a training build cannot run on a CPU.
    """

    minimum = OPSET

    def __init__(self, *, for_training_build: bool = False) -> None:
        super().__init__()
        self._for_training_build = for_training_build

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `RewritePass`."""
        version, node = default_opset(model) or 0, next(self._found(model), None)
        if node is not None and version > NEWEST_OPSET:
            expected = f"expected {NEWEST_OPSET} or older, whose ops bngrad knows"
            raise_refusals([(node, f"the model imports ai.onnx {version}; {expected}")])
        return super().call(model)

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return is_lowered(node, for_training_build=self._for_training_build)

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        lowering = LOWERINGS[node.domain, node.op_type]
        return attribute_refusal(node, lowering.attributes) or _type_refusal(node) or lowering.refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        site = Site(node, context)
        values = LOWERINGS[node.domain, node.op_type].rewrite(site)
        site.replace({index: value for index, value in enumerate(values) if value is not None})


_ONE_TYPE = {
    "DropoutGrad": 1,
    "InPlaceAccumulatorV2": 1,
    "LayerNormalizationGrad": 1,
    "ResizeGrad": 2,
    "Scale": 1,
    "SimplifiedLayerNormalizationGrad": 1,
}
"""How many of an op's inputs are of one type with its first, where not all are."""


def _type_refusal(node: ir.Node) -> str | None:
    """Why its tensors cannot have the types that the model says."""
    alike = [*node.inputs[: _ONE_TYPE.get(node.op_type)], *(() if node.op_type in _ONE_TYPE else node.outputs)]
    types = {value.dtype.name.lower() for value in alike if value is not None and value.dtype in SUPPORTED_DTYPES}
    if len(types) > 1:
        return f"its tensors are {' and '.join(sorted(types))}; expected one type"
    for value in node.outputs if node.op_type.endswith("Grad") else ():
        if value.dtype is not None and value.dtype not in SUPPORTED_DTYPES:
            expected = ", ".join(sorted(dtype.name.lower() for dtype in SUPPORTED_DTYPES))
            return f"its output {value.name!r} is {value.dtype.name.lower()}; expected one of {expected}"
    return None
