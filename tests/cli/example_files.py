"""The files that the examples of the help texts name: small models, data, a training step, weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import bngrad
from cli.compared_files import case, write_bench, write_log
from training.trainer_cases import TEXT, network, samples

JOINT = Path(__file__).parents[1] / "passes" / "decomposed" / "files" / "joint_conv_bn_relu.onnxtxt"
WITHOUT_LOSS = TEXT.replace("(float loss, ", "(").replace(
    "    loss = SoftmaxCrossEntropyLoss (logits, labels)\n", ""
)


def write_example_files(folder):
    """Writes the files into a folder; run.safetensors, a and b are the initial state of the step."""
    onnx.save(named(network()), folder / "model.onnx")
    onnx.save(named(network(WITHOUT_LOSS.replace(", int64[N] labels", ""))), folder / "network.onnx")
    onnx.save(onnx.parser.parse_model(JOINT.read_text(encoding="utf-8")), folder / "joint.onnx")
    onnx.save(bngrad.differentiate(named(network()), target="ort"), folder / "training_model.onnx")
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in network(seed=1).graph.initializer}
    np.savez(folder / "trained.npz", **weights)
    bngrad.training_step(named(network()), optimizer=bngrad.SGD(momentum=0.9)).save(folder / "step.onnx")
    bngrad.Trainer(folder / "step.onnx", learning_rate=0).save(folder / "run.safetensors")
    for name in ("a", "b"):
        bngrad.Trainer(folder / "step.onnx", learning_rate=0).save(folder / f"{name}.safetensors", samples=44)
    np.savez(folder / "train.npz", **samples(44))
    np.savez(folder / "test.npz", **samples(20, seed=1))
    for name, rate in (("sgd", 0.9), ("adamw", 0.8)):
        write_log(folder / f"{name}.jsonl", rate, options={"optimizer": name})
    for name, milliseconds in (("before", 3), ("after", 1)):
        spread = (milliseconds - 0.1, milliseconds, milliseconds + 0.1)
        write_bench(folder / f"{name}.json", case([32, 64, 56, 56], *spread))


def named(model):
    """The model with a name for its batch norm that patterns such as 'layer1.*' match."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.name = "layer1.bn"
    return model
