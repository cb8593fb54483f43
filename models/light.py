"""Four convolutional networks from the tests of the onnx package, made trainable.

They are ResNet-50, DenseNet-121, Inception v2 and ShuffleNet with the original topologies. The files have opset 9,
batch size 1 and batch norms in inference mode, and a ConstantOfShape in place of most weights. ``prepare`` adds
weights, a symbolic batch size, batch norms in training mode and a loss.

``python models/light.py densenet121 -o build/densenet121.onnx`` writes a network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

if not __package__:  # run as a script: only this folder is on sys.path, but not its parent
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # at the end: an installed bngrad comes first

from models import training
from models.parameters import Parameters
from models.training import known

BATCH_NORMS = {"resnet50": 53, "densenet121": 121, "inception_v2": 69, "shufflenet": 49}
"""The networks and their numbers of batch norms."""

_CLASSES = 1000
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

_DRAWS = {
    ("Conv", 1): Parameters.weight,
    ("Conv", 2): Parameters.around_zero,
    ("Gemm", 1): Parameters.weight,  # all have transB = 1
    ("Gemm", 2): Parameters.around_zero,
    ("BatchNormalization", 1): Parameters.around_one,
    ("BatchNormalization", 2): Parameters.around_zero,
    ("BatchNormalization", 3): Parameters.around_zero,
    ("BatchNormalization", 4): Parameters.variance,
    ("Mul", 1): Parameters.around_one,  # Caffe's Scale layer: a Mul and an Add after each batch norm
    ("Add", 1): Parameters.around_zero,
}
"""The distribution of a parameter, by op type and input index."""


def prepare(name: str, seed: int = 0) -> onnx.ModelProto:
    """Returns a network of `BATCH_NORMS` as a forward pass for training; equal seeds give equal models.

    The inputs are the images float [N, 3, 224, 224] with their original name, ``labels`` int64 [N] and the
    parameters. The outputs are ``loss``, ``logits`` and the new running statistics of every batch norm. Nodes and
    parameters keep their names.

    Raises:
        ValueError: There is no network of this name.
    """
    if name not in BATCH_NORMS:
        raise ValueError(f"unknown network {name!r}: expected one of {', '.join(BATCH_NORMS)}")
    original = onnx.load(_FOLDER / f"light_{name}.onnx")
    model = ir.from_proto(onnx.version_converter.convert_version(original, training.OPSET))
    model.ir_version = training.IR_VERSION
    graph = model.graph
    _keep_only_images(graph)
    _draw_parameters(graph, Parameters(seed))
    _free_batch(graph)
    logits = _find_logits(graph)
    graph.outputs.clear()
    for node in graph:
        node.name = node.name or node.outputs[0].name  # Constants of the version converter have no name
        if node.op_type == "BatchNormalization":
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            training.add_running_outputs(graph, node.outputs[0])
        elif node.op_type == "Sum":  # ORT's gradient builder supports only Add; each Sum here has two inputs
            node.op_type = "Add"
    training.add_loss(graph, logits, _CLASSES)
    RemoveUnusedNodesPass()(model)
    return training.finish(model)


def _keep_only_images(graph: ir.Graph) -> None:
    """Removes the inputs that are also initializers, as IR version 3 required."""
    (images,) = (value for value in graph.inputs if value.name not in graph.initializers)
    graph.inputs[:] = [images]


def _draw_parameters(graph: ir.Graph, parameters: Parameters) -> None:
    """Replaces every float initializer and ConstantOfShape by a random parameter, in the order of use."""
    for node in list(graph):
        for index, old in enumerate(map(known, node.inputs)):
            shape = _parameter_shape(old)
            if shape is None:
                continue
            role = (node.op_type, index)
            if node.op_type == "Unsqueeze":  # reshapes a vector to [C, 1, 1] for the Mul or Add after it
                ((consumer, consumer_index),) = node.outputs[0].uses()
                role = (consumer.op_type, consumer_index)
            name = known(old.name)
            new = ir.Value(name=name)
            old.replace_all_uses_with(new)
            graph.initializers.pop(name, None)
            training.bind_parameter(graph, new, _DRAWS[role](parameters, name, shape))
    # The ConstantOfShape nodes are unused now and are removed with the other unused nodes.


def _parameter_shape(value: ir.Value) -> list[int] | None:
    """Returns the shape of a parameter that was not replaced yet; None for other values."""
    producer = value.producer()
    if producer is not None and producer.op_type == "ConstantOfShape":
        shape = known(known(producer.inputs[0]).const_value)
        return [int(size) for size in shape.numpy()]
    if value.is_initializer() and not value.is_graph_input():
        tensor = known(value.const_value)
        return list(tensor.numpy().shape) if tensor.dtype == ir.DataType.FLOAT else None
    return None


def _free_batch(graph: ir.Graph) -> None:
    """Makes the batch dimension symbolic; Reshapes to [1, ...] copy it from their input."""
    images = graph.inputs[0]
    images.shape = ir.Shape([training.BATCH, *known(images.shape)[1:]])
    for node in graph:
        for output in node.outputs:
            output.shape = None
        if node.op_type == "Reshape":
            target = known(node.inputs[1])
            shape = known(target.const_value).numpy().copy()
            shape[0] = 0
            target.const_value = ir.tensor(shape, name=target.name)


def _find_logits(graph: ir.Graph) -> ir.Value:
    """Returns the input of the final Softmax, as [N, classes]."""
    (output,) = graph.outputs
    node = known(output.producer())
    if node.op_type == "Softmax":
        return known(node.inputs[0])
    # DenseNet-121 ends with a 1x1 convolution of shape [N, classes, 1, 1] and has no Softmax.
    flatten = ir.node("Flatten", [output], {"axis": 1}, name="flatten")
    graph.append(flatten)
    return flatten.outputs[0]


if __name__ == "__main__":
    parser = training.command_line(__doc__)
    parser.add_argument("name", choices=list(BATCH_NORMS), help="the network")
    arguments = parser.parse_args()
    training.save(prepare(arguments.name, arguments.seed), arguments.output)
