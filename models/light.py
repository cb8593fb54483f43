"""The four convolutional networks that the onnx package carries for its own tests, made trainable.

They are ResNet-50, DenseNet-121, Inception v2 and ShuffleNet: the real topologies, at opset 9 and for
inference, with a batch of 1 and most weights left out (a ConstantOfShape stands for each). ``prepare`` gives
them weights, a free batch size, training-mode batch norms and a loss.

``python models/light.py densenet121 -o build/densenet121.onnx`` writes one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

if not __package__:  # run as a file: Python put this folder on its path, and not the one above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import training
from models.parameters import Parameters
from models.training import known

BATCH_NORMS = {"resnet50": 53, "densenet121": 121, "inception_v2": 69, "shufflenet": 49}
"""Every network that ``prepare`` knows, with its number of batch norms."""

_CLASSES = 1000
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

_DRAWS = {
    ("Conv", 1): Parameters.weight,
    ("Conv", 2): Parameters.around_zero,
    ("Gemm", 1): Parameters.weight,  # they all have transB = 1
    ("Gemm", 2): Parameters.around_zero,
    ("BatchNormalization", 1): Parameters.around_one,
    ("BatchNormalization", 2): Parameters.around_zero,
    ("BatchNormalization", 3): Parameters.around_zero,
    ("BatchNormalization", 4): Parameters.variance,
    ("Mul", 1): Parameters.around_one,  # Caffe's Scale layer: a Mul and an Add behind each batch norm
    ("Add", 1): Parameters.around_zero,
}
"""How a parameter is drawn, by the op and the input that it feeds."""


def prepare(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network of ``BATCH_NORMS`` as a training forward pass; equal seeds give equal models.

    Inputs are the images float [N, 3, 224, 224], under the name they had, and ``labels`` int64 [N]; outputs
    are ``loss``, ``logits`` and every batch norm's new running statistics. Nodes and parameters keep their
    names.
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
        node.name = node.name or node.outputs[0].name  # the version converter's Constants have none
        if node.op_type == "BatchNormalization":
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            training.add_running_outputs(graph, node.outputs[0])
        elif node.op_type == "Sum":  # ORT's gradient builder knows Add, not Sum; each Sum here has two inputs
            node.op_type = "Add"
    training.add_loss(graph, logits, _CLASSES)
    RemoveUnusedNodesPass()(model)
    return training.finish(model)


def _keep_only_images(graph: ir.Graph) -> None:
    """Make every input that has a default an initializer alone: IR 3 asked for both."""
    (images,) = (value for value in graph.inputs if value.name not in graph.initializers)
    graph.inputs[:] = [images]


def _draw_parameters(graph: ir.Graph, parameters: Parameters) -> None:
    """Replace every float initializer and every ConstantOfShape by a drawn parameter, in the order of use."""
    for node in list(graph):
        for index, old in enumerate(map(known, node.inputs)):
            shape = _parameter_shape(old)
            if shape is None:
                continue
            role = (node.op_type, index)
            if node.op_type == "Unsqueeze":  # a vector made [C, 1, 1] for the Mul or the Add that follows
                ((consumer, consumer_index),) = node.outputs[0].uses()
                role = (consumer.op_type, consumer_index)
            name = known(old.name)
            new = ir.Value(name=name)
            old.replace_all_uses_with(new)
            graph.initializers.pop(name, None)
            training.bind_parameter(graph, new, _DRAWS[role](parameters, name, shape))
    # The ConstantOfShape nodes have lost their uses; they go with the other unused nodes.


def _parameter_shape(value: ir.Value) -> list[int] | None:
    """Return the shape of a parameter whose value is still the file's, else None."""
    producer = value.producer()
    if producer is not None and producer.op_type == "ConstantOfShape":
        shape = known(known(producer.inputs[0]).const_value)
        return [int(size) for size in shape.numpy()]
    if value.is_initializer() and not value.is_graph_input():
        tensor = known(value.const_value)
        return list(tensor.numpy().shape) if tensor.dtype == ir.DataType.FLOAT else None
    return None


def _free_batch(graph: ir.Graph) -> None:
    """Make the batch dimension symbolic; a Reshape to [1, ...] copies it instead."""
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
    """Return the network's answer before its Softmax, as [N, classes]."""
    (answer,) = graph.outputs
    node = known(answer.producer())
    if node.op_type == "Softmax":
        return known(node.inputs[0])
    # DenseNet-121 ends in a 1x1 convolution, [N, classes, 1, 1].
    flatten = ir.node("Flatten", [answer], {"axis": 1}, name="flatten")
    graph.append(flatten)
    return flatten.outputs[0]


if __name__ == "__main__":
    parser = training.command_line(__doc__)
    parser.add_argument("name", choices=list(BATCH_NORMS), help="the network")
    arguments = parser.parse_args()
    training.save(prepare(arguments.name, arguments.seed), arguments.output)
