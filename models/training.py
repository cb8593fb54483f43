"""What the networks here have in common: parameters, training-mode batch norms, a loss, a command line.

Every parameter is an initializer that is also a graph input: a default which a training loop overrides with
the updated value, and a name that a gradient can be asked for.
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
"""Name and shape of a parameter -> its first value; the methods of ``Parameters`` are such."""

T = TypeVar("T")

OPSET = 17
IR_VERSION = 8
BATCH = "N"
FLOAT = ir.TensorType(ir.DataType.FLOAT)
INT64 = ir.TensorType(ir.DataType.INT64)


def known(value: T | None) -> T:
    """Narrow what onnx-ir types as optional: names, shapes and producers that no graph here lacks."""
    if value is None:
        raise TypeError("a graph element that every network here has is missing")
    return value


def bind_parameter(graph: ir.Graph, parameter: ir.Value, array: npt.NDArray[np.float32]) -> None:
    """Make a value that no node produces an initializer that is also a graph input."""
    parameter.const_value = ir.tensor(array, name=parameter.name)
    parameter.type, parameter.shape = FLOAT, ir.Shape(array.shape)
    graph.register_initializer(parameter)
    graph.inputs.append(parameter)


def add_running_outputs(graph: ir.Graph, y: ir.Value) -> None:
    """Give the training-mode batch norm that makes y its running statistics, named ``<old statistic>_new``.

    They become graph outputs, because ONNX Runtime writes them over inputs 3 and 4 when they are not.
    """
    node = known(y.producer())
    node.resize_outputs(3)
    for old, new in zip(map(known, node.inputs[3:]), node.outputs[1:], strict=True):
        new.name, new.type, new.shape = f"{old.name}_new", FLOAT, old.shape
        graph.outputs.append(new)


def add_loss(graph: ir.Graph, logits: ir.Value, classes: int) -> None:
    """End a graph in softmax cross entropy: input 1 is ``labels``, outputs 0, 1 are ``loss``, ``logits``."""
    logits.name, logits.type, logits.shape = "logits", FLOAT, ir.Shape([BATCH, classes])
    labels = ir.Value(name="labels", type=INT64, shape=ir.Shape([BATCH]))
    graph.inputs.insert(1, labels)
    # ORT's gradient builder asks for the second output too.
    node = ir.node("SoftmaxCrossEntropyLoss", [logits, labels], num_outputs=2, name="loss")
    loss, log_prob = node.outputs
    loss.name, loss.type, loss.shape = "loss", FLOAT, ir.Shape([])
    log_prob.name = "log_prob"
    graph.append(node)
    graph.outputs[:0] = [loss, logits]


def finish(model: ir.Model) -> onnx.ModelProto:
    """Return a finished network as a ModelProto that onnx's checker and strict shape inference accept."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def command_line(description: str) -> argparse.ArgumentParser:
    """Return the options that both generators have."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .onnx file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters (default: 0)")
    return parser


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in one step: a reader finds the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        new = Path(folder, path.name)
        new.write_bytes(model.SerializeToString(deterministic=True))
        new.replace(path)
