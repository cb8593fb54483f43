"""ConvGrad of ONNX Runtime's dialect -> ConvGrad of ``bngrad``, whose functions are what lowering writes.

ONNX Runtime inlines a function where no kernel of the op is registered, so one file runs everywhere, and takes a
kernel where there is one. The nodes of a function depend on attributes and shapes: nodes that agree in these share
a function, which their overload names.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from bngrad.graph.node_reader import dtype_of, static_shape
from bngrad.graph.nodes import is_read
from bngrad.opset.conv_grad import ATTRIBUTES, INPUTS, MIN_IR_VERSION, NAME, OUTPUTS
from bngrad.opset.domain import DOMAIN
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.convolution import kernel_of
from bngrad.passes.lower.geometry import declared_pads, windows_of
from bngrad.passes.lower.lower_training import OPSET, LowerTrainingPass
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

_RESOLVED = ("", "NOTSET", "VALID")
"""The values of auto_pad with which the padding does not depend on the size of the data."""
_REQUIRES = "bngrad.requires"
"""The domain of a node that no runtime has."""


class ConvGradOpPass(RewritePass):
    """Converts every ConvGrad whose kernel and padding are known to the op of ``bngrad``, and adds the functions.

    Requires: ai.onnx `OPSET` or newer.
    Refuses: what `LowerTrainingPass` refuses.
    Guarantees: other ConvGrads, such as those with auto_pad and data of symbolic sizes, stay for that pass.
    """

    minimum = OPSET

    def __init__(self) -> None:
        super().__init__()
        self._overloads: dict[tuple[object, ...], str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        self._overloads.clear()
        result = super().call(model)
        if self._overloads:
            _refuse_old_runtimes(model.functions, model.opset_imports[""])
        return result

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is a ConvGrad with values for all attributes of the op."""
        if (node.domain, node.op_type) != (MICROSOFT, NAME) or len(node.inputs) != len(INPUTS):
            return False
        _, x, w = node.inputs
        if w is None or w.dtype is None or static_shape(w) is None or not any(map(is_read, node.outputs)):
            return False
        mode, sizes = node.attributes.get("auto_pad"), known_shape(x)
        fixed = sizes is not None and all(isinstance(size, int) for size in sizes[2:])
        return fixed or mode is None or mode.value in _RESOLVED

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        return LowerTrainingPass().refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node by a call of the function for its attributes and shapes."""
        site = Site(node, context)
        attributes = _attributes(site)
        words = [name if site.has_output(index) else "" for index, name in enumerate(OUTPUTS)]
        words = words[: max(index for index, word in enumerate(words, 1) if word)]
        inputs = [site.x(index) for index in range(len(INPUTS))]
        form = (repr(attributes), *words, *((value.dtype, known_shape(value)) for value in inputs))
        if form not in self._overloads:
            functions = context.model.functions
            overload = next(name for name in map(str, count(1)) if (DOMAIN, NAME, name) not in functions)
            definition = _definition(node, attributes, words, context.opset)
            functions[DOMAIN, NAME, overload] = _function(overload, definition)
            self._overloads[form] = overload
            context.model.ir_version = max(context.model.ir_version or 0, MIN_IR_VERSION)
        values = site.outputs_of(NAME, *inputs, outputs=words, domain=DOMAIN, **attributes)
        call = values[0].producer()
        assert call is not None, "the site has just made it"  # noqa: S101
        call.overload = self._overloads[form]
        site.replace({index: value for index, value in enumerate(values) if value.name})


def _function(overload: str, graph: ir.Graph) -> ir.Function:
    attributes = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in ATTRIBUTES]
    return ir.Function(DOMAIN, NAME, overload, graph=graph, attributes=attributes)


def _refuse_old_runtimes(functions: MutableMapping[ir.OperatorIdentifier, ir.Function], opset: int) -> None:
    """Adds a last overload, which no node calls, with a node that no runtime has.

    ONNX Runtime below 1.27 takes the last overload for each call, and would compute wrong gradients.
    """
    inputs = [ir.Value(name=name) for name in INPUTS]
    node = ir.node(
        "OnnxRuntime_1_27_or_newer", inputs, domain=_REQUIRES, num_outputs=len(OUTPUTS), name="requirement"
    )
    for value, name in zip(node.outputs, OUTPUTS, strict=True):
        value.name = name
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": opset, _REQUIRES: 1}, name=NAME)
    functions.pop((DOMAIN, NAME, _REQUIRES), None)
    functions[DOMAIN, NAME, _REQUIRES] = _function(_REQUIRES, graph)


def _attributes(site: Site) -> dict[str, Any]:
    """The attributes of the op, with auto_pad resolved."""
    kernel = kernel_of(site)
    windows = windows_of(site, site.x(1), site.x(0), kernel)
    begin, end = zip(*declared_pads(site, windows.rank), strict=True)
    return {
        "dilations": windows.dilation,
        "group": site.attribute("group", 1),
        "kernel_shape": list(kernel),
        "pads": windows.pads if windows.same else [*begin, *end],
        "strides": windows.stride,
    }


def _definition(node: ir.Node, attributes: Mapping[str, Any], words: Sequence[str], opset: int) -> ir.Graph:
    """The nodes that `LowerTrainingPass` writes for a node; an output that the node omits is an empty tensor."""
    inputs = [_named(value, name) for name, value in zip(INPUTS, node.inputs, strict=True)]
    original = ir.node(NAME, inputs, attributes, domain=MICROSOFT, num_outputs=len(words), name=NAME)
    for value, word, old in zip(original.outputs, words, node.outputs, strict=False):
        value.name, value.type, value.shape = word, old.type, old.shape
    computed = [value for value in original.outputs if value.name]
    imports = {"": opset, MICROSOFT: 1}
    graph = ir.Graph(inputs, computed, nodes=[original], opset_imports=imports, name=NAME)
    LowerTrainingPass()(ir.Model(graph, ir_version=MIN_IR_VERSION))
    dtype = dtype_of(inputs[-1])
    empty = ir.tensor(np.zeros(0, dtype.numpy()), dtype=dtype)
    for index, (name, word) in enumerate(zip(OUTPUTS, words, strict=False)):
        if not word:
            constant = ir.node("Constant", [], {"value": empty}, name=name)
            constant.outputs[0].name = name
            graph.append(constant)
            graph.outputs.insert(index, constant.outputs[0])
    RemoveUnusedOpsetsPass()(ir.Model(graph, ir_version=MIN_IR_VERSION))
    return graph


def _named(value: ir.Value | None, name: str) -> ir.Value:
    """A value of another graph, with the type and shape of one of the node's."""
    assert value is not None, "`matches` and the site check it"  # noqa: S101
    return ir.Value(name=name, type=value.type, shape=value.shape)
