"""Conv and ConvTranspose of few pixels -> BatchedConv and BatchedConvTranspose of ``bngrad``.

ONNX Runtime's kernels multiply image by image, and read all weights again for each. The functions of the ops are
the nodes themselves; ONNX Runtime inlines them where the library is not registered, and in sessions on a GPU.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.graph_digest import STANDS_FOR
from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.graph.nodes import is_read, op_nodes
from bngrad.graph.overloads import function_of
from bngrad.opset.batched_conv import CONV, SIGNATURES, SPATIAL_RANKS, STANDARD, TRANSPOSE, function
from bngrad.opset.domain import DOMAIN
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.conv_grad_op import attributes_of, has_fixed_pads
from bngrad.passes.lower.conv_transpose_grad_op import has_declared_pads, transposed_attributes
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPS = {("", standard): name for name, standard in STANDARD.items()}
_GRADIENTS = ((MICROSOFT, "ConvGrad"), (MICROSOFT, "ConvTransposeGrad"))
_MOST_PIXELS = 64
"""The windows of an image up to which the ops are faster."""


def weights_of_gradients(model: ir.Model) -> dict[ir.Value, bool]:
    """Returns the weights of convolutions with gradients that are not lowered yet, and whether they get one."""
    weights: dict[ir.Value, bool] = {}
    for node in op_nodes(model):
        w = node.inputs[2] if len(node.inputs) > 2 else None
        if w is not None and (node.domain, node.op_type) in _GRADIENTS:
            weights[w] = weights.get(w, False) or any(map(is_read, node.outputs[1:2]))
    return weights


class BatchedConvOpPass(RewritePass):
    """Converts the convolutions for which it pays, and adds the functions of the ops.

    A node is converted if its weights are computed, or those of a convolution with a gradient; a Conv only if they
    get one, as ONNX Runtime has fast kernels for constant weights. A node with a single image stays: it reads the
    weights once.

    Refuses: nothing.
    Guarantees: convolutions with groups, of types other than float, with more than two spatial dimensions or with
    unknown sizes of images or weights stay.

    Args:
        weights: See `weights_of_gradients`.
    """

    def __init__(self, weights: Mapping[ir.Value, bool] = MappingProxyType({})) -> None:
        super().__init__()
        self._weights = weights

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is converted."""
        name = _OPS.get((node.domain, node.op_type))
        if name is None or len(node.inputs) < 2 or not is_read(node.outputs[0]):
            return False
        x, w = node.inputs[:2]
        if x is None or w is None or w.dtype != ir.DataType.FLOAT or not _has_attributes(node, name, x):
            return False
        is_own = self._weights.get(w, False) if name == CONV else w in self._weights
        if not is_own and not _is_computed(w):
            return False
        shape, sizes = static_shape(w), known_shape(x if name == TRANSPOSE else node.outputs[0])
        if shape is None or sizes is None or len(shape) - 2 not in SPATIAL_RANKS or 0 in shape:
            return False
        pixels = [size for size in sizes[2:] if isinstance(size, int)]
        same_rank = len(pixels) == len(sizes) - 2 == len(shape) - 2
        return same_rank and sizes[0] != 1 and 0 < prod(pixels) <= _MOST_PIXELS

    def refusal(self, node: ir.Node) -> str | None:  # noqa: ARG002
        """Returns None: every node that matches can be rewritten."""
        return None

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node by one of the op."""
        site, name = Site(node, context), _OPS[node.domain, node.op_type]
        functions = context.model.functions
        if (DOMAIN, name, "") not in functions:
            functions[DOMAIN, name, ""] = function_of(name, "", function(name, context.opset), SIGNATURES[name][2])
        x, w = site.x(0), site.x(1)
        attributes = transposed_attributes(site, w) if name == TRANSPOSE else _attributes(site, x, w)
        (y,) = site.outputs_of(name, x, w, outputs=["Y"], domain=DOMAIN, **attributes)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = site.op("Unsqueeze", site.x(2), site.int64(list(range(1, 1 + len(attributes["kernel_shape"])))))
            y = site.op("Add", y, bias)
        maker = y.producer()
        assert maker is not None, "see above"  # noqa: S101
        maker.meta[STANDS_FOR] = ("", node.op_type, ""), dict(node.attributes), tuple(node.inputs)
        site.replace({0: y})


def _is_computed(w: ir.Value) -> bool:
    producer = w.producer()
    return producer is not None and producer.op_type != "Constant"


def _has_attributes(node: ir.Node, name: str, x: ir.Value) -> bool:
    """Tests whether the op has the attributes of a node."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    if read_attribute(node, "group", 1) != 1 or min(read_attribute(node, "pads", ()), default=0) < 0:
        return False
    if name == CONV:
        return has_fixed_pads(node, x)
    return has_declared_pads(node)


def _attributes(site: Site, x: ir.Value, w: ir.Value) -> dict[str, Any]:
    attributes = attributes_of(site, x, site.node.outputs[0], w)
    del attributes["group"]
    return attributes
