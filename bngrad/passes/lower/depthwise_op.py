"""Conv and ConvGrad with a group for each channel -> DepthwiseConv and DepthwiseConvGrad of ``bngrad``.

ONNX Runtime's Conv copies the data of each group before it multiplies, for few products. The functions of the ops
are the nodes that would be written otherwise; ONNX Runtime inlines them where the library is not registered, and
in sessions on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.graph.nodes import is_read, op_nodes
from bngrad.graph.overloads import function_of
from bngrad.opset.convolutions import ATTRIBUTES
from bngrad.opset.depthwise import CONV, GRAD_SIGNATURE, GRADS, SPATIAL_RANKS, conv_function
from bngrad.opset.domain import DOMAIN
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.conv_grad_op import attributes_of, definition_of, has_fixed_pads
from bngrad.passes.lower.lower_training import OPSET, LowerTrainingPass
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from bngrad.opset.known_shapes import KnownShape

_GRADIENT = (MICROSOFT, "ConvGrad")
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_OUTPUTS = tuple(GRAD_SIGNATURE[1])
_LARGEST_STRIDE = 2
"""The stride along a row up to which the kernel has vector code; with larger ones it copies single elements."""


class DepthwiseOpPass(RewritePass):
    """Converts depthwise convolutions whose weights get a gradient, and adds the functions of the ops.

    Requires: ai.onnx `OPSET` or newer.
    Refuses: what `LowerTrainingPass` refuses.
    Guarantees: a ConvGrad stays for that pass if it has three or more spatial dimensions, weights of unknown
    shape, padding that depends on unknown sizes, or a form for which no name is left.
    """

    minimum = OPSET

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[ir.Node, str] = {}
        """The op of each node that is converted."""

    def requires(self, model: ir.Model) -> None:
        """A model with a matching node imports `minimum` or newer."""
        self._names = _names_of(model)
        super().requires(model)

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is converted."""
        return node in self._names

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        return LowerTrainingPass().refusal(node) if node.domain == MICROSOFT else None

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node by one of the op."""
        (_gradients if node.domain == MICROSOFT else _convolution)(Site(node, context), self._names[node])


def _names_of(model: ir.Model) -> dict[ir.Node, str]:
    """The op of each node that is converted; gradients of one form have the same."""
    free = iter([name for name in GRADS if (DOMAIN, name, "") not in model.functions])
    names: dict[ir.Node, str] = {}
    of_forms: dict[tuple[object, ...], str] = {}
    trained: set[ir.Value | None] = set()
    nodes = list(op_nodes(model))
    for node in nodes:
        if (node.domain, node.op_type) != _GRADIENT or not _is_depthwise(node, 1, 2):
            continue
        form = _form(node)
        if form not in of_forms:
            name = next(free, None)
            if name is None:
                continue
            of_forms[form] = name
        names[node] = of_forms[form]
        trained.add(node.inputs[2])
    for node in nodes:
        is_conv = (node.domain, node.op_type) == ("", "Conv") and len(node.inputs) > 1
        if is_conv and node.inputs[1] in trained and _is_depthwise(node, 0, 1):
            names[node] = CONV
    return names


def _is_depthwise(node: ir.Node, data: int, weights: int) -> bool:
    """Tests whether the kernel has the convolution of these inputs."""
    if len(node.inputs) <= weights or not any(map(is_read, node.outputs)):
        return False
    x, w = node.inputs[data], node.inputs[weights]
    if x is None or w is None or w.dtype not in _DTYPES or (shape := static_shape(w)) is None:
        return False
    group = read_attribute(node, "group", 1)
    sizes = known_shape(x)
    if group < 2 or len(shape) - 2 not in SPATIAL_RANKS or shape[1] != 1 or shape[0] % group or 0 in shape:
        return False
    if sizes is not None and (len(sizes) != len(shape) or sizes[1] not in (group, None)):
        return False
    declared, dilations = read_attribute(node, "pads", ()), read_attribute(node, "dilations", ())
    if (read_attribute(node, "strides", ()) or [1])[-1] > _LARGEST_STRIDE:
        return False
    window = [(size - 1) * step + 1 for size, step in zip(shape[2:], dilations or [1] * len(shape), strict=False)]
    inside = all(0 <= pad < length for pad, length in zip(declared, window * 2, strict=False))
    return inside and has_fixed_pads(node, x)


def _form(node: ir.Node) -> tuple[object, ...]:
    """The attributes, types and shapes that the function of a ConvGrad depends on."""
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    shapes: list[KnownShape | None] = [known_shape(value) for value in node.inputs]
    needed = [is_read(value) for value in node.outputs]
    return *attributes, *needed, *shapes, node.inputs[2].dtype if node.inputs[2] is not None else None


def _convolution(site: Site, name: str) -> None:
    functions = site.context.model.functions
    if (DOMAIN, name, "") not in functions:
        functions[DOMAIN, name, ""] = function_of(name, "", conv_function(site.opset), ATTRIBUTES)
    x, w = site.x(0), site.x(1)
    attributes = attributes_of(site, x, site.node.outputs[0], w)
    (y,) = site.outputs_of(name, x, w, outputs=["Y"], domain=DOMAIN, **attributes)
    if len(site.node.inputs) > 2 and site.node.inputs[2] is not None:
        rank = len(attributes["kernel_shape"])
        bias = site.op("Unsqueeze", site.x(2), site.int64(list(range(1, 1 + rank))))
        y = site.op("Add", y, bias)
    site.replace({0: y})


def _gradients(site: Site, name: str) -> None:
    functions = site.context.model.functions
    inputs = [site.x(index) for index in range(len(GRAD_SIGNATURE[0]))]
    attributes = attributes_of(site, inputs[1], inputs[0], inputs[2])
    words = [word if site.has_output(index) else "" for index, word in enumerate(_OUTPUTS)]
    outputs: dict[int, ir.Value] = {}
    if any(words):
        words = words[: max(index for index, word in enumerate(words, 1) if word)]
        if (DOMAIN, name, "") not in functions:
            definition = definition_of(site.node, attributes, words, site.opset)
            functions[DOMAIN, name, ""] = function_of(name, "", definition, ATTRIBUTES)
        values = site.outputs_of(name, *inputs, outputs=words, domain=DOMAIN, **attributes)
        outputs = {index: value for index, value in enumerate(values) if value.name}
    if site.has_output(2):
        axes = [0, *range(2, 2 + len(attributes["kernel_shape"]))]
        outputs[2] = site.reduce("ReduceSum", inputs[0], axes, keepdims=False)
    site.replace(outputs)
