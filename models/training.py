"""What the networks here have in common: a training-mode batch norm, a loss, and how they are written.

Every parameter is an initializer that is also a graph input: a default that a training loop overrides with the
updated value, and a name that a gradient can be asked for.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

OPSET = 17
IR_VERSION = 8
BATCH = "N"
FLOAT = ir.TensorType(ir.DataType.FLOAT)


def add_parameter(graph: ir.Graph, name: str, value: npt.NDArray[np.float32]) -> ir.Value:
    """Add an initializer that is also a graph input."""
    parameter = ir.Value(name=name)
    bind_parameter(graph, parameter, value)
    return parameter


def bind_parameter(graph: ir.Graph, parameter: ir.Value, array: npt.NDArray[np.float32]) -> None:
    """Make an existing value an initializer that is also a graph input."""
    parameter.const_value = ir.tensor(array, name=parameter.name)
    parameter.type, parameter.shape = FLOAT, ir.Shape(array.shape)
    graph.register_initializer(parameter)
    graph.inputs.append(parameter)


def add_running_outputs(graph: ir.Graph, node: ir.Node) -> None:
    """Give a training-mode BatchNormalization its running statistics, as graph outputs named ``<input>_new``.

    They are graph outputs because ONNX Runtime writes them over inputs 3 and 4 when they are not.
    """
    node.resize_outputs(3)
    for old, new in zip(node.inputs[3:5], node.outputs[1:], strict=True):
        assert old is not None  # noqa: S101  BatchNormalization has no optional inputs
        new.name, new.type, new.shape = f"{old.name}_new", FLOAT, old.shape
        graph.outputs.append(new)


def add_loss(graph: ir.Graph, logits: ir.Value, classes: int) -> None:
    """End the graph with a softmax cross entropy: input ``labels``, outputs ``loss`` and ``logits``.

    ORT's gradient builder needs the node's second output, ``log_prob``.
    """
    logits.name, logits.type, logits.shape = "logits", FLOAT, ir.Shape([BATCH, classes])
    labels = ir.Value(name="labels", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([BATCH]))
    node = ir.node("SoftmaxCrossEntropyLoss", [logits, labels], num_outputs=2, name="loss")
    loss, log_prob = node.outputs
    loss.name, loss.type, loss.shape = "loss", FLOAT, ir.Shape([])
    log_prob.name = "log_prob"
    graph.append(node)
    graph.inputs.insert(1, labels)
    graph.outputs[:0] = [loss, logits]


def finish(model: ir.Model) -> onnx.ModelProto:
    """Check a finished network, strictly, and return it as a ModelProto."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    return proto


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in one step: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(model.SerializeToString(deterministic=True))
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
