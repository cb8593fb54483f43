# ruff: noqa: T201 - a script
"""Trains a small convolutional network with batch normalization by SGD, and follows its running statistics.

    python batch_norm_cnn.py bngrad.ort_training
    python batch_norm_cnn.py onnxruntime.training

The argument is the package that has `artifacts` and `api`. The running statistics are frozen parameters: training
moves them, and evaluation, checkpoint and export see them. The result is one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PACKAGE = sys.argv[1] if len(sys.argv) > 1 else "bngrad.ort_training"
artifacts = importlib.import_module(f"{PACKAGE}.artifacts")
api = importlib.import_module(f"{PACKAGE}.api")

WEIGHTS = [
    "conv1.weight", "bn1.scale", "bn1.bias", "conv2.weight", "bn2.scale", "bn2.bias", "fc.weight", "fc.bias",
]  # fmt: skip
STATISTICS = ["bn1.mean", "bn1.var", "bn2.mean", "bn2.var"]


def network() -> onnx.ModelProto:
    """Returns two convolutions, each with a batch norm, and a linear classifier of 1 x 8 x 8 images."""
    random = np.random.default_rng(0)
    values = {
        "conv1.weight": random.normal(0, 0.4, (8, 1, 3, 3)),
        "conv2.weight": random.normal(0, 0.2, (16, 8, 3, 3)),
        "fc.weight": random.normal(0, 0.3, (3, 16)),
        "fc.bias": np.zeros(3),
    }
    for name, channels in (("bn1", 8), ("bn2", 16)):
        values |= {f"{name}.scale": np.ones(channels), f"{name}.bias": np.zeros(channels)}
        values |= {f"{name}.mean": np.zeros(channels), f"{name}.var": np.ones(channels)}

    def block(number: int, x: str, stride: int) -> list[onnx.NodeProto]:
        bn = f"bn{number}"
        convolved, normalized, activated = f"conv{number}.y", f"{bn}.y", f"relu{number}.y"
        return [
            helper.make_node(
                "Conv", [x, f"conv{number}.weight"], [convolved], f"conv{number}",
                kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[stride, stride],
            ),
            helper.make_node(
                "BatchNormalization", [convolved, f"{bn}.scale", f"{bn}.bias", f"{bn}.mean", f"{bn}.var"],
                [normalized], bn, momentum=0.8,
            ),
            helper.make_node("Relu", [normalized], [activated], f"relu{number}"),
        ]  # fmt: skip

    graph = helper.make_graph(
        [
            *block(1, "images", 1),
            *block(2, "relu1.y", 2),
            helper.make_node("GlobalAveragePool", ["relu2.y"], ["pooled"], "pool"),
            helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
            helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1),
        ],
        "network",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()],
    )
    # 1.19.2 reads models up to this version.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def batches(number: int, seed: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Yields batches of noisy stripes, which are horizontal, vertical or diagonal, and of their class."""
    random = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    stripes = np.stack([rows % 4 < 2, columns % 4 < 2, (rows + columns) % 4 < 2]).astype(np.float32)
    for _ in range(number):
        labels = random.integers(0, 3, 24)
        noise = random.normal(2, 0.7, (24, 8, 8))
        yield (3 * stripes[labels] + noise)[:, None].astype(np.float32), labels


def main() -> None:
    """Generates the artifacts, trains, evaluates and exports, and prints what was computed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts.generate_artifacts(
            network(),
            requires_grad=WEIGHTS,
            frozen_params=STATISTICS,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=folder,
            prefix="cnn_",
            additional_output_names=["logits"],
        )
        files = [str(folder / f"cnn_{stem}_model.onnx") for stem in ("training", "eval", "optimizer")]
        state = api.CheckpointState.load_checkpoint(str(folder / "cnn_checkpoint"))
        module = api.Module(files[0], state, files[1])
        optimizer = api.Optimizer(files[2], module)
        optimizer.set_learning_rate(0.2)

        losses, evaluated = [], []
        for epoch in range(4):
            module.train()
            for images, labels in batches(5, seed=epoch):
                loss, _ = module(images, labels)
                losses.append(float(loss))
                optimizer.step()
                module.lazy_reset_grad()
            module.eval()
            results = [module(images, labels) for images, labels in batches(2, seed=100)]
            evaluated.append(float(np.mean([float(loss) for loss, _ in results])))

        module.export_model_for_inferencing(str(folder / "inference.onnx"), ["logits"])
        session = onnxruntime.InferenceSession(folder / "inference.onnx", providers=["CPUExecutionProvider"])
        (images, labels), *_ = batches(1, seed=101)
        (logits,) = session.run(["logits"], {"images": images})

        result = {
            "inputs": module.input_names(),
            "outputs": module.output_names(),
            "parameters": [name for name, _ in state.parameters],
            "losses": losses,
            "evaluated": evaluated,
            "statistics": {name: state.parameters[name].data.tolist() for name in STATISTICS},
            "logits": logits.tolist(),
            "accuracy": float(np.mean(np.argmax(logits, axis=1) == labels)),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
