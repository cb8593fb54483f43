"""Convolutions and their gradients with channels last; those with a kernel of 1 are products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.graph.conv_channels_last import conv_channels_last
from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.opset import conv_grad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker

    ToLast: TypeAlias = Callable[[ir.Value, ir.Node], ir.Value]
    Outputs: TypeAlias = Sequence[tuple[ir.Value, ir.Value, bool]]
    """An output of the old node, the value that replaces it, and whether that has channels last."""


def convolution_last(model: ir.Model, node: ir.Node, make: NodeMaker, to_last: ToLast) -> Outputs:
    """Makes the nodes for a Conv; none if it has groups or a padding that is not known."""
    x, w, *bias = node.inputs
    attributes = _attributes_of(node, w)
    if x is None or w is None or x.shape is None or attributes is None or attributes["group"] != 1:
        return ()
    data = to_last(x, node)
    if _is_product(attributes):
        y = make.op("MatMul", data, make.op("Transpose", _matrix(make, w), perm=[1, 0]))
    else:
        y = conv_channels_last(make, model, data, to_last(w, node), **attributes)
    if any(bias):
        y = make.op("Add", y, *bias)
    return [(node.outputs[0], y, True)]


def gradients_last(node: ir.Node, make: NodeMaker, to_last: ToLast) -> Outputs:
    """Makes the nodes for a ConvGrad with a kernel of 1: the gradients of a product of matrices; else none."""
    dY, x, w = node.inputs
    shape = static_shape(w)
    attributes: dict[str, Any] = {name: value.value for name, value in node.attributes.items()}
    if dY is None or x is None or w is None or shape is None or not _is_product(attributes):
        return ()
    dY, x = to_last(dY, node), to_last(x, node)
    replaced: list[tuple[ir.Value, ir.Value, bool]] = []
    for name, output in zip(conv_grad.OUTPUTS, node.outputs, strict=False):
        if not output.name:
            continue
        if name == "dX":
            value = make.op("MatMul", dY, _matrix(make, w))
        elif name == "dW":
            rows, columns = (
                make.op("Reshape", v, make.int64([-1, n])) for v, n in ((dY, shape[0]), (x, shape[1]))
            )
            value = make.op("Reshape", make.op("Gemm", rows, columns, transA=1), make.int64(shape))
        else:
            value = make.op("ReduceSum", dY, make.int64([*range(len(shape) - 1)]), keepdims=0)
        replaced.append((output, value, name == "dX"))
    return replaced


def _attributes_of(node: ir.Node, w: ir.Value | None) -> dict[str, Any] | None:
    """All attributes of a Conv; None if its kernel or its padding is not known."""
    shape = static_shape(w)
    if shape is None or read_attribute(node, "auto_pad", "NOTSET") not in ("", "NOTSET", "VALID"):
        return None
    rank = len(shape) - 2
    defaults = {"dilations": [1] * rank, "group": 1, "pads": [0] * (2 * rank), "strides": [1] * rank}
    values = {name: read_attribute(node, name, value) for name, value in defaults.items()}
    lists = {name: list(value) for name, value in values.items() if name != "group"}
    return {**lists, "group": values["group"], "kernel_shape": list(shape[2:])}


def _is_product(attributes: dict[str, Any]) -> bool:
    """Tests whether each output reads one position of the data, at the same place."""
    ones = all(size == 1 for name in ("kernel_shape", "strides") for size in attributes[name])
    return ones and attributes["group"] == 1 and not any(attributes["pads"])


def _matrix(make: NodeMaker, w: ir.Value) -> ir.Value:
    """The weights of a kernel of 1 as a matrix, [M, C]."""
    return make.op("Reshape", w, make.int64((static_shape(w) or ())[:2]))


def _rows(make: NodeMaker, value: ir.Value, columns: int) -> ir.Value:
    return make.op("Reshape", value, make.int64([-1, columns]))
