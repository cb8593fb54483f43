"""TensorFlow's gradient ops, and its fused losses, as tf2onnx leaves them -> the training ops of ONNX Runtime.

`passes.lower` makes standard ONNX of those. The domain may be any but those with ops of the same names, bngrad's
and ONNX Runtime's. The attributes T, Tlabels and the like are ignored, and those that begin with an underscore.

A module of `passes.imports.tensorflow` registers the rule of each of its ops with `tensorflow_op`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.node_reader import attribute_refusal
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.lower_training import OPSET
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.opset.op_attributes import Attributes

    Refusal = Callable[[ir.Node], str | None]
    Rewrite = Callable[[Site], Sequence[ir.Value]]

_MODULES = (
    "convolution_gradients",
    "elementwise_gradients",
    "pooling_gradients",
    "shapes",
    "softmax_cross_entropy",
)
_UNREAD = ("T", "Tlabels", "Tindices", "Tdim", "use_cudnn_on_gpu", "U")


class Rule(NamedTuple):
    """How an op of TensorFlow is rewritten."""

    rewrite: Rewrite
    """Makes the nodes, and returns the value of each output."""
    inputs: Sequence[str]
    """TensorFlow's names of the inputs, all of which a node has."""
    refusal: Refusal
    """Why a node cannot be rewritten; None if it can."""
    attributes: Attributes
    """The attributes that the op may have, as `attribute_refusal` takes them."""


RULES: dict[str, Rule] = {}
"""The rules by op type; empty until the modules are imported."""


def tensorflow_op(
    op_type: str,
    *inputs: str,
    refusal: Refusal = lambda _: None,
    attributes: Attributes | None = None,
) -> Callable[[Rewrite], Rewrite]:
    """Registers a function as the rule of an op; see `Rule`. An op without ``inputs`` has any number of them."""

    def register(function: Rewrite) -> Rewrite:
        RULES[op_type] = Rule(function, inputs, refusal, attributes or {})
        return function

    return register


class ImportTensorflowGradientsPass(RewritePass):
    """Rewrites every op of TensorFlow that has a rule.

    Matches: nodes in any domain except bngrad's and ONNX Runtime's; MaxPoolGrad of the default domain with three
    inputs, for ONNX Runtime's has two.
    Refuses: other numbers of inputs, unknown attributes and formats, and what a rule refuses, such as a filter
    whose shape is unknown.
    """

    minimum = OPSET

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """See `RewritePass`."""
        graphs = {node.graph for node in self._found(model)}
        if graphs:
            model.opset_imports.setdefault(MICROSOFT, 1)
        for function in model.functions.values():
            if function.graph in graphs:
                function.opset_imports.setdefault(MICROSOFT, 1)
        return super().call(model)

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        if node.op_type not in _rules() or node.domain in (DOMAIN, MICROSOFT):
            return False
        return (node.domain, node.op_type) != ("", "MaxPoolGrad") or len(node.inputs) != 2

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        rule = _rules()[node.op_type]
        present = sum(value is not None for value in node.inputs)
        if rule.inputs and (present != len(rule.inputs) or len(node.inputs) != present):
            return f"it has {present} inputs; expected {len(rule.inputs)}: {', '.join(rule.inputs)}"
        unread = [name for name in node.attributes if name in _UNREAD or name.startswith("_")]
        known = {**rule.attributes, **dict.fromkeys(unread, ())}
        return attribute_refusal(node, known) or rule.refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        site = Site(node, context)
        site.replace(dict(enumerate(_rules()[node.op_type].rewrite(site))))


def _rules() -> Mapping[str, Rule]:
    if not RULES:
        for name in _MODULES:
            import_module(f"bngrad.passes.imports.tensorflow.{name}")
    return RULES
