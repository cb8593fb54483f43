"""Common parts of the networks: parameters, batch norms in training mode, the loss, and the command line.

Every parameter is both an initializer and a graph input, so that a training loop can feed the updated value and a
gradient can be requested by its name.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

Draw = Callable[[str, Sequence[int]], npt.NDArray[np.float32]]
"""(name, shape) of a parameter -> its initial value, such as a method of `Parameters`."""

T = TypeVar("T")

OPSET = 17
IR_VERSION = 8
BATCH = "N"
FLOAT = ir.TensorType(ir.DataType.FLOAT)
INT64 = ir.TensorType(ir.DataType.INT64)


def known(value: T | None) -> T:
    """Returns a name, shape or producer that is optional in onnx-ir but present in all networks.

    Raises:
        TypeError: The value is None.
    """
    if value is None:
        raise TypeError("a name, shape or producer is missing in the graph")
    return value


def bind_parameter(graph: ir.Graph, parameter: ir.Value, array: npt.NDArray[np.float32]) -> None:
    """Makes a value both an initializer and a graph input."""
    parameter.const_value = ir.tensor(array, name=parameter.name)
    parameter.type, parameter.shape = FLOAT, ir.Shape(array.shape)
    graph.register_initializer(parameter)
    graph.inputs.append(parameter)


def add_running_outputs(graph: ir.Graph, y: ir.Value) -> None:
    """Adds the outputs ``<running statistic>_new`` to the batch norm in training mode that makes y.

    They become graph outputs because ONNX Runtime would otherwise overwrite inputs 3 and 4.
    """
    node = known(y.producer())
    node.resize_outputs(3)
    for old, new in zip(map(known, node.inputs[3:]), node.outputs[1:], strict=True):
        new.name, new.type, new.shape = f"{old.name}_new", FLOAT, old.shape
        graph.outputs.append(new)


def add_loss(graph: ir.Graph, logits: ir.Value, classes: int) -> None:
    """Adds softmax cross entropy: input 1 becomes ``labels``, outputs 0 and 1 ``loss`` and ``logits``."""
    logits.name, logits.type, logits.shape = "logits", FLOAT, ir.Shape([BATCH, classes])
    labels = ir.Value(name="labels", type=INT64, shape=ir.Shape([BATCH]))
    graph.inputs.insert(1, labels)
    # ORT's gradient builder requires the second output.
    node = ir.node("SoftmaxCrossEntropyLoss", [logits, labels], num_outputs=2, name="loss")
    loss, log_prob = node.outputs
    loss.name, loss.type, loss.shape = "loss", FLOAT, ir.Shape([])
    log_prob.name = "log_prob"
    graph.append(node)
    graph.outputs[:0] = [loss, logits]


def finish(model: ir.Model) -> onnx.ModelProto:
    """Returns a network as a ModelProto after a full check by onnx's checker."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def command_line(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of both generators."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .onnx file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters (default: 0)")
    return parser


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        new = Path(folder, path.name)
        new.write_bytes(model.SerializeToString(deterministic=True))
        new.replace(path)
