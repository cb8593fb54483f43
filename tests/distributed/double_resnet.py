"""ResNet-20 in double, of ops that ONNX Runtime has in double: convolutions are products of slices and weights."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper

from bngrad.validation.widening import to_float64
from models import digits_resnet20

SIDE = {"stage1": 8, "stage2": 4, "stage3": 2}
"""The height and width of the outputs of a stage."""


def double_resnet() -> onnx.ModelProto:
    """The network of `digits_resnet20`, with the same weights."""
    model = to_float64(digits_resnet20.build())
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Conv":
            nodes += _convolution(node, shapes[node.input[1]], model.graph)
        elif node.op_type == "GlobalAveragePool":
            nodes.append(helper.make_node("ReduceMean", node.input, node.output, node.name, axes=[2, 3]))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _convolution(node, kernel, graph):
    c_out, c_in, size, _ = kernel
    stride = next((attribute.ints[0] for attribute in node.attribute if attribute.name == "strides"), 1)
    side = next((side for stage, side in SIDE.items() if node.name.startswith(stage)), 8)
    name, (x, weight), (y,) = node.name, node.input, node.output
    nodes = []

    def add(op, inputs, suffix, **attributes):
        nodes.append(helper.make_node(op, inputs, [f"{name}/{suffix}"], f"{name}/{suffix}", **attributes))
        return f"{name}/{suffix}"

    def constant(suffix, values):
        graph.initializer.append(helper.make_tensor(f"{name}/{suffix}", TensorProto.INT64, [len(values)], values))
        return f"{name}/{suffix}"

    border = size // 2
    padded = add("Pad", [x, constant("pads", [0, 0, border, border] * 2)], "padded") if border else x
    steps, axes = constant("steps", [stride] * 2), constant("axes", [2, 3])
    parts = []
    for row in range(size):
        for column in range(size):
            begin = constant(f"begin{row}{column}", [row, column])
            end = constant(f"end{row}{column}", [row + stride * (side - 1) + 1, column + stride * (side - 1) + 1])
            parts.append(add("Slice", [padded, begin, end, axes, steps], f"part{row}{column}"))
    columns = add("Concat", parts, "columns", axis=1)
    flat = add("Reshape", [columns, constant("flat_shape", [0, size * size * c_in, side * side])], "flat")
    moved = add("Transpose", [weight], "moved", perm=[0, 2, 3, 1])
    matrix = add("Reshape", [moved, constant("matrix_shape", [c_out, -1])], "matrix")
    product = add("MatMul", [matrix, flat], "product")
    nodes.append(helper.make_node("Reshape", [product, constant("shape", [0, c_out, side, side])], [y], name))
    return nodes


def weights(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
