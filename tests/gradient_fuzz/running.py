"""Running graphs: on stock ONNX Runtime in four ways, and in float64."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime

import bngrad
from bngrad.validation.float64 import evaluate
from gradient_fuzz.interpreter import wide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.options import Implementation
    from gradient_fuzz.cases import Case

    Arrays = Mapping[str, np.ndarray]

DISABLED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
WAYS: tuple[tuple[Implementation, onnxruntime.GraphOptimizationLevel], ...] = (
    ("native", ALL),
    ("function", DISABLED),
    ("function", ALL),
    ("native", DISABLED),
)
SIXTEEN_BITS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def session_of(
    content: bytes, level: onnxruntime.GraphOptimizationLevel, implementation: Implementation = "function"
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.graph_optimization_level = level
    bngrad.register(options, implementation)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def effective(case: Case) -> onnx.ModelProto:
    """The forward model with the modes of batch norms that the case has, and with weights as inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name in case.wrt
    )
    for node in model.graph.node:
        if node.name in case.frozen or node.name in case.training:
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(
                [*kept, onnx.helper.make_attribute("training_mode", int(node.name in case.training))]
            )
            if node.name in case.training:
                node.output.extend([f"{node.output[0]}_{i}" for i in range(len(node.output), 3)])
    return model


def why_forward_fails(case: Case, level: onnxruntime.GraphOptimizationLevel) -> str | None:
    """Returns the reason why ONNX Runtime does not run the forward graph; None if it does."""
    try:
        model = effective(case)
        session_of(model.SerializeToString(), level, "native").run(["loss"], dict(case.feeds))
    except Exception as error:  # noqa: BLE001 - see above
        return str(error)
    return None


def crashes_forward(case: Case) -> bool:
    """Returns whether ONNX Runtime ends the process with the forward graph itself, in a fork."""
    child = os.fork()
    if child == 0:
        for level in (ALL, DISABLED):
            why_forward_fails(case, level)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


def in_float64(case: Case, training: onnx.ModelProto, names: list[str]) -> Arrays:
    """Values of the training graph in float64, whatever its type is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(training)
    graphs = [copy.graph, *copy.functions]
    for graph in graphs:
        if isinstance(graph, onnx.GraphProto):
            for value in (*graph.input, *graph.output, *graph.value_info):
                if value.type.tensor_type.elem_type in SIXTEEN_BITS:
                    value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            for tensor in graph.initializer:
                _widen(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    _widen(attribute.t)
                elif attribute.name in ("to", "dtype") and attribute.i in SIXTEEN_BITS:
                    attribute.i = onnx.TensorProto.FLOAT
    return evaluate(copy, {name: wide(array) for name, array in case.feeds.items()}, names)


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in SIXTEEN_BITS:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
