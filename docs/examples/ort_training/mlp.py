# ruff: noqa: ANN401, T201 - a script
"""Trains a two-layer perceptron with AdamW, evaluates it, resumes from a checkpoint and exports it.

    python mlp.py bngrad.ort_training
    python mlp.py onnxruntime.training

The argument is the package that has `artifacts` and `api`. The result is one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

PACKAGE = sys.argv[1] if len(sys.argv) > 1 else "bngrad.ort_training"
artifacts = importlib.import_module(f"{PACKAGE}.artifacts")
api = importlib.import_module(f"{PACKAGE}.api")

WEIGHTS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
STEPS = 40  # The learning rate climbs over all of them.


def perceptron() -> onnx.ModelProto:
    """Returns a classifier of 20 features into 4 classes."""
    random = np.random.default_rng(0)
    values = {
        "fc1.weight": random.normal(0, 0.3, (32, 20)),
        "fc1.bias": np.zeros(32),
        "fc2.weight": random.normal(0, 0.3, (4, 32)),
        "fc2.bias": np.zeros(4),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["features", "fc1.weight", "fc1.bias"], ["hidden"], "fc1", transB=1),
            helper.make_node("Relu", ["hidden"], ["activated"], "relu"),
            helper.make_node("Gemm", ["activated", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
        ],
        "perceptron",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", 20])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()],
    )
    # 1.19.2 reads models up to this version.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def batches(number: int, seed: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Yields batches of features and of the classes that a fixed linear map gives them."""
    random = np.random.default_rng(seed)
    true = np.random.default_rng(1).normal(size=(20, 4))
    for _ in range(number):
        features = random.normal(size=(64, 20)).astype(np.float32)
        yield features, np.argmax(features @ true, axis=1)


def train(module: Any, optimizer: Any, scheduler: Any, data: Iterable[tuple[Any, Any]]) -> list[float]:
    """Takes one optimizer step for each batch, and returns the losses."""
    losses = []
    module.train()
    for features, labels in data:
        losses.append(float(module(features, labels)))
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
    return losses


def evaluate(module: Any, data: Iterable[tuple[Any, Any]]) -> float:
    """Returns the mean loss over batches."""
    module.eval()
    return float(np.mean([float(module(features, labels)) for features, labels in data]))


def main() -> None:
    """Generates the artifacts, trains and prints the losses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts.generate_artifacts(
            perceptron(),
            requires_grad=WEIGHTS,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        files = [str(folder / f"{stem}_model.onnx") for stem in ("training", "eval", "optimizer")]

        state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        module = api.Module(files[0], state, files[1])
        optimizer = api.Optimizer(files[2], module)
        scheduler = api.LinearLRScheduler(optimizer, STEPS, STEPS, 0.05)
        losses = train(module, optimizer, scheduler, batches(30, seed=2))
        evaluated = evaluate(module, batches(4, seed=3))

        api.CheckpointState.save_checkpoint(state, str(folder / "trained"), include_optimizer_state=True)
        resumed_state = api.CheckpointState.load_checkpoint(str(folder / "trained"))
        resumed = api.Module(files[0], resumed_state, files[1])
        optimizer = api.Optimizer(files[2], resumed)
        scheduler = api.LinearLRScheduler(optimizer, STEPS, STEPS, 0.05)
        losses += train(resumed, optimizer, scheduler, batches(STEPS - 30, seed=4))

        resumed.export_model_for_inferencing(str(folder / "inference.onnx"), ["logits"])
        session = onnxruntime.InferenceSession(folder / "inference.onnx", providers=["CPUExecutionProvider"])
        (features, labels), *_ = batches(1, seed=5)
        (logits,) = session.run(["logits"], {"features": features})
        accuracy = float(np.mean(np.argmax(logits, axis=1) == labels))

        result = {
            "inputs": module.input_names(),
            "outputs": module.output_names(),
            "parameters": [name for name, _ in resumed_state.parameters],
            "losses": losses,
            "evaluated": evaluated,
            "accuracy": accuracy,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
