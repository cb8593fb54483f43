"""ConvTransposeGrad of ONNX Runtime's dialect -> Conv for dX, and ConvGrad with dY and X exchanged for dW.

::

    dX, dW, dB = ConvTransposeGrad(dY, X, W)
    =>  dX = Conv(dY, W); _, dW = ConvGrad(X, dY, W); dB = ReduceSum(dY)

`ConvGradOpPass` makes that ConvGrad an op, which has a kernel on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.opset.conv_grad import NAME
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.lower_training import OPSET, LowerTrainingPass
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    import onnx_ir as ir

_DECLARED = ("", "NOTSET", "VALID")
"""The values of auto_pad with which a ConvTranspose has the declared padding."""


class ConvTransposeGradOpPass(RewritePass):
    """Converts every ConvTransposeGrad whose padding is declared and whose weights have a known shape.

    Requires: ai.onnx `OPSET` or newer.
    Refuses: what `LowerTrainingPass` refuses.
    Guarantees: others, such as those with output_shape, stay for that pass.
    """

    minimum = OPSET

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is a ConvTransposeGrad that is converted."""
        if (node.domain, node.op_type, len(node.inputs)) != (MICROSOFT, "ConvTransposeGrad", 3):
            return False
        w = node.inputs[2]
        return w is not None and static_shape(w) is not None and has_declared_pads(node)

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        return LowerTrainingPass().refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node."""
        site = Site(node, context)
        dY, x, w = (site.x(index) for index in range(3))
        attributes = {**transposed_attributes(site, w), "group": site.attribute("group", 1)}
        del attributes["output_padding"]  # below the stride it is room for no further window
        results = {}
        if site.has_output(0):
            results[0] = site.op("Conv", dY, w, **attributes)
        if site.has_output(1):
            _, results[1] = site.outputs_of(NAME, x, dY, w, outputs=["", "dW"], domain=MICROSOFT, **attributes)
        if site.has_output(2):
            axes = [0, *range(2, 2 + len(attributes["kernel_shape"]))]
            results[2] = site.reduce("ReduceSum", dY, axes, keepdims=False)
        site.replace(results)


def has_declared_pads(node: ir.Node) -> bool:
    """Returns whether a ConvTranspose, or its gradient, has declared padding, and no room for further windows."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    strides, added = read_attribute(node, "strides", ()), read_attribute(node, "output_padding", ())
    fits = all(0 <= number < stride for number, stride in zip(added, strides or [1] * len(added), strict=False))
    declared = read_attribute(node, "auto_pad", "NOTSET") in _DECLARED
    return fits and declared and not read_attribute(node, "output_shape", ())


def transposed_attributes(site: Site, w: ir.Value) -> dict[str, Any]:
    """Returns the attributes of a ConvTranspose with declared padding, with their defaults, but group.

    Args:
        site: The node, or its gradient.
        w: The weights, of a known shape.
    """
    kernel = list(static_shape(w) or ())[2:]
    rank = len(kernel)
    ones, zeros = [1] * rank, [0] * rank
    declared = [] if site.attribute("auto_pad", "NOTSET") == "VALID" else site.attribute("pads", ())
    return {
        "dilations": list(site.attribute("dilations", ())) or ones,
        "kernel_shape": kernel,
        "output_padding": list(site.attribute("output_padding", ())) or zeros,
        "pads": list(declared) or zeros * 2,
        "strides": list(site.attribute("strides", ())) or ones,
    }
