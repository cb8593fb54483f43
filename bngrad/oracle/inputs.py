"""Turn initializers into graph inputs where ORT's gradient builder needs that.

ORT merges initializers with equal contents, such as the zeros and ones of fresh batch norms. A weight that was
merged away cannot be differentiated by ("Node arg is not found"). Worse, BatchNormInternal writes the new running
statistics over the old ones, and so over whatever was merged with them: measured, a bias of ones that had become
the running variance. Graph inputs are never merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bngrad.oracle.graph import label, namer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bngrad.oracle.session import Array


def make_inputs(graph: onnx.GraphProto, wrt: Iterable[str]) -> dict[str, Array]:
    """Make graph inputs of the constants among `wrt`, and of every batch norm's running statistics.

    Returns:
        The value of each new input, and of each that was an initializer as well.
    """
    wanted = {*wrt, *_own_statistics(graph)}
    constants = _constants(graph)
    inputs = {value.name for value in graph.input}
    values = {}
    for name in [name for name in constants if name in wanted]:
        values[name] = np.array(numpy_helper.to_array(constants[name]))
        if name not in inputs:
            graph.input.append(
                helper.make_tensor_value_info(name, constants[name].data_type, constants[name].dims)
            )
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in wanted:
            del graph.initializer[index]
    for index in reversed(range(len(graph.node))):
        if graph.node[index].op_type == "Constant" and graph.node[index].output[0] in wanted:
            del graph.node[index]
    return values


def _own_statistics(graph: onnx.GraphProto) -> list[str]:
    """The running statistics of all batch norms; constants that several share are copied first.

    Exporters write equal initializers once, with an Identity for every other user; ORT removes these again.
    """
    constants = _constants(graph)
    sources = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    readers: dict[str, int] = {value.name: 1 for value in graph.output}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    fresh = namer(graph)
    statistics = []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        for slot, what in ((3, "running_mean"), (4, "running_var")):
            name = node.input[slot]
            while name in sources:
                name = sources[name]
            if name in constants and (name != node.input[slot] or readers[name] > 1):
                copy = onnx.TensorProto()
                copy.CopyFrom(constants[name])
                copy.name = fresh(f"{label(node)}/{what}")
                graph.initializer.append(copy)
                node.input[slot] = name = copy.name
            statistics.append(name)
    return statistics


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The tensors that are in the graph: initializers and the values of Constant nodes."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for entry in node.attribute:
                if entry.name == "value":
                    constants[node.output[0]] = entry.t
                elif entry.name in {"value_float", "value_floats"}:
                    value = np.array(list(entry.floats) if entry.name.endswith("s") else entry.f, np.float32)
                    constants[node.output[0]] = numpy_helper.from_array(value)
    return constants
