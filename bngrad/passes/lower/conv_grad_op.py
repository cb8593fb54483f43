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
from bngrad.graph.nodes import all_nodes, is_read, known_rank
from bngrad.graph.overloads import function_of, refuse_old_runtimes
from bngrad.opset.conv_grad import CHANNELS_LAST, INPUTS, LAID_OUT, NAME, OUTPUTS, REQUIRED
from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.domain import DOMAIN
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.geometry import declared_pads, windows_of
from bngrad.passes.lower.lower_training import OPSET, LowerTrainingPass
from bngrad.passes.lower.shapes import spatial_sizes
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RESOLVED = ("", "NOTSET", "VALID")
"""The values of auto_pad with which the padding does not depend on the size of the data."""


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
            refuse_old_runtimes(model, NAME, INPUTS, OUTPUTS, REQUIRED)
        return result

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is a ConvGrad with values for all attributes of the op."""
        if (node.domain, node.op_type) != (MICROSOFT, NAME) or len(node.inputs) != len(INPUTS):
            return False
        _, x, w = node.inputs
        if w is None or w.dtype is None or static_shape(w) is None or not any(map(is_read, node.outputs)):
            return False
        return has_fixed_pads(node, x)

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        return LowerTrainingPass().refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node by a call of the function for its attributes and shapes."""
        site = Site(node, context)
        attributes = attributes_of(site, site.x(1), site.x(0), site.x(2))
        words = [name if site.has_output(index) else "" for index, name in enumerate(OUTPUTS)]
        words = words[: max(index for index, word in enumerate(words, 1) if word)]
        inputs = [site.x(index) for index in range(len(INPUTS))]
        form = (repr(attributes), *words, *((value.dtype, known_shape(value)) for value in inputs))
        if form not in self._overloads:
            functions = context.model.functions
            overload = _free_overload(functions)
            definition = definition_of(node, attributes, words, context.opset)
            functions[DOMAIN, NAME, overload] = function_of(NAME, overload, definition, REQUIRED)
            self._overloads[form] = overload
        values = site.outputs_of(NAME, *inputs, outputs=words, domain=DOMAIN, **attributes)
        call = values[0].producer()
        assert call is not None, "the site has just made it"  # noqa: S101
        call.overload = self._overloads[form]
        site.replace({index: value for index, value in enumerate(values) if value.name})


def to_channels_last(nodes: Iterable[ir.Node], model: ir.Model) -> None:
    """Converts ConvGrad nodes of ``bngrad`` to those with channels_last = 1, and adds their functions.

    The caller converts the tensors: afterwards dY, X, W, dX and dW have the channels as their last dimension.
    Functions that no node calls any more are removed.

    Args:
        nodes: Nodes with channels_last = 0, each with the overload of a function of the model.
        model: The model of the nodes.
    """
    functions, overloads = model.functions, {}
    for node in nodes:
        if node.overload not in overloads:
            overload = overloads[node.overload] = _free_overload(functions)
            rank = 2 + len(node.attributes["kernel_shape"].as_ints())
            function = functions[node.op_identifier()]
            functions[DOMAIN, NAME, overload] = _channels_last_function(function, overload, rank)
        node.overload = overloads[node.overload]
        node.attributes[CHANNELS_LAST] = ir.AttrInt64(CHANNELS_LAST, 1)
    called = {node.op_identifier() for node in all_nodes(model)}
    for key in {(DOMAIN, NAME, overload) for overload in overloads} - called:
        del functions[key]
    if overloads:
        refuse_old_runtimes(model, NAME, INPUTS, OUTPUTS, REQUIRED)  # by the last function


def _channels_last_function(function: ir.Function, overload: str, rank: int) -> ir.Function:
    """The nodes of a function between Transposes to and from the layout of its tensors."""
    result = function.clone()
    result.overload = overload
    result.attributes[CHANNELS_LAST] = ir.Attr(CHANNELS_LAST, ir.AttributeType.UNDEFINED, None)
    to_last, to_first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    for index, (name, inner) in enumerate(zip(INPUTS, tuple(result.inputs), strict=True)):
        outer = ir.Value(name=name, type=inner.type, shape=_permuted(inner.shape, to_last))
        result.inputs[index] = outer
        if not is_read(inner):
            continue
        node = _transpose(outer, to_first, f"{name}_channels_first", inner)
        inner.replace_all_uses_with(node.outputs[0])
        result.insert_before(result[0], node)
    for index, (name, inner) in enumerate(zip(LAID_OUT, tuple(result.outputs), strict=False)):
        producer = inner.producer()
        assert producer is not None, "an input is no output of a function of `definition_of`"  # noqa: S101
        if producer.op_type == "Constant":  # an output that the node omits
            continue
        inner.name = f"{name}_channels_first"
        outer = ir.Value(type=inner.type, shape=_permuted(inner.shape, to_last))
        node = _transpose(inner, to_last, name, outer)
        result.append(node)
        result.outputs[index] = node.outputs[0]
    return result


def _transpose(value: ir.Value, perm: Sequence[int], name: str, like: ir.Value) -> ir.Node:
    node = ir.node("Transpose", [value], {"perm": perm}, name=name)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, like.type, like.shape
    return node


def _permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])


def _free_overload(functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> str:
    return next(name for name in map(str, count(1)) if (DOMAIN, NAME, name) not in functions)


def has_fixed_pads(node: ir.Node, x: ir.Value | None) -> bool:
    """Returns whether the padding of a convolution is known.

    Args:
        node: A node with the attributes of Conv.
        x: The data.
    """
    mode, sizes = node.attributes.get("auto_pad"), known_shape(x)
    fixed = sizes is not None and all(isinstance(size, int) for size in sizes[2:])
    return fixed or mode is None or mode.value in _RESOLVED


def attributes_of(site: Site, x: ir.Value, y: ir.Value, w: ir.Value) -> dict[str, Any]:
    """Returns the attributes of the op, with auto_pad resolved.

    Args:
        site: A node with the attributes of Conv.
        x: The data.
        y: The result, or its gradient.
        w: The weights.
    """
    declared = tuple(site.attribute("kernel_shape", ()))
    kernel = declared or spatial_sizes(w, (known_rank([x, y, w]) or 2) - 2)
    windows = windows_of(site, x, y, kernel)
    begin, end = zip(*declared_pads(site, windows.rank), strict=True)
    return {
        "dilations": windows.dilation,
        "group": site.attribute("group", 1),
        "kernel_shape": list(kernel),
        "pads": windows.pads if windows.same else [*begin, *end],
        "strides": windows.stride,
    }


def definition_of(node: ir.Node, attributes: Mapping[str, Any], words: Sequence[str], opset: int) -> ir.Graph:
    """Returns the nodes that `LowerTrainingPass` writes for a ConvGrad.

    Args:
        node: The ConvGrad.
        attributes: Its attributes, see `attributes_of`.
        words: Its outputs; one that the node omits is an empty string, and an empty tensor of the result.
        opset: The ai.onnx opset.
    """
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
