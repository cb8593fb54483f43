"""Every training op that stock ONNX Runtime lacks -> standard ONNX.

Batch norm is not among them: `ImportOrtPass` converts it to a ``bngrad`` op.
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
"""The oldest ai.onnx opset with the ops that lowerings use: a ScatterElements that adds."""


def is_lowered(node: ir.Node, *, for_training_build: bool) -> bool:
    """Returns whether a node has an entry in `LOWERINGS`, and no kernel in a training build, if it is for one."""
    has_lowering = (node.domain, node.op_type) in LOWERINGS
    return has_lowering and not (for_training_build and has_kernel(node))


class LowerTrainingPass(RewritePass):
    """Lowers every node that has an entry in `LOWERINGS`, in the order of the graph.

    Requires: ai.onnx 16 or newer, where there is one.
    Refuses: an ai.onnx opset newer than `NEWEST_OPSET`, an attribute that is not in the entry, and the nodes that
    the entry refuses, such as a pooling whose input has an unknown shape.

    Args:
        for_training_build: Whether to lower only nodes that a training build cannot run on a CPU.
        ordered: See `Site`.
    """

    minimum = OPSET

    def __init__(self, *, for_training_build: bool = False, ordered: bool = False) -> None:
        super().__init__()
        self._ordered = ordered
        self._for_training_build = for_training_build

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        version, node = default_opset(model) or 0, next(self._matching(model), None)
        if node is not None and version > NEWEST_OPSET:
            expected = f"expected {NEWEST_OPSET} or older, whose ops bngrad knows"
            raise_refusals([(node, f"the model imports ai.onnx {version}; {expected}")])
        return super().call(model)

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is to be lowered."""
        return is_lowered(node, for_training_build=self._for_training_build)

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        lowering = LOWERINGS[node.domain, node.op_type]
        return attribute_refusal(node, lowering.attributes) or _type_refusal(node) or lowering.refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Lowers a node."""
        site = Site(node, context, ordered=self._ordered)
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
"""The number of an op's leading inputs that have one type, for ops whose inputs have several."""


def _type_refusal(node: ir.Node) -> str | None:
    """Returns the reason why a node's tensors cannot have the types that the model states; None if they can."""
    alike = [*node.inputs[: _ONE_TYPE.get(node.op_type)], *(() if node.op_type in _ONE_TYPE else node.outputs)]
    types = {value.dtype.name.lower() for value in alike if value is not None and value.dtype in SUPPORTED_DTYPES}
    if len(types) > 1:
        return f"its tensors are {' and '.join(sorted(types))}; expected one type"
    for value in node.outputs if node.op_type.endswith("Grad") else ():
        if value.dtype is not None and value.dtype not in SUPPORTED_DTYPES:
            expected = ", ".join(sorted(dtype.name.lower() for dtype in SUPPORTED_DTYPES))
            return f"its output {value.name!r} is {value.dtype.name.lower()}; expected one of {expected}"
    return None
