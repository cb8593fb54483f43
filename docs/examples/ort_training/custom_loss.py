# ruff: noqa: T201 - a script
"""Trains an autoencoder with a loss of its own: the error of what it decodes, and a penalty on its code.

    python custom_loss.py bngrad.ort_training
    python custom_loss.py onnxruntime.training

The argument is the package that has `artifacts`, `onnxblock` and `api`. Gradients are accumulated over two batches
and clipped; the first layer is frozen. The result is one line of JSON.
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
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PACKAGE = sys.argv[1] if len(sys.argv) > 1 else "bngrad.ort_training"
artifacts = importlib.import_module(f"{PACKAGE}.artifacts")
onnxblock = importlib.import_module(f"{PACKAGE}.onnxblock")
api = importlib.import_module(f"{PACKAGE}.api")

ACCUMULATED = 2


class SparseCodeLoss(onnxblock.Block):
    """0.9 mean((decoded - signal)^2) + 0.1 mean(|code|)."""

    def __init__(self) -> None:
        super().__init__()
        self.error = onnxblock.loss.MSELoss()
        self.size = onnxblock.blocks.Abs()
        self.mean = onnxblock.blocks.ReduceMean(keepdims=False)
        self.weights = onnxblock.blocks.Constant(0.9), onnxblock.blocks.Constant(0.1)
        self.mul = onnxblock.blocks.Mul()
        self.add = onnxblock.blocks.Add()

    def build(self, decoded: str, code: str) -> str:
        """Appends the loss, with the graph's input as the target."""
        of_error, of_size = (weight() for weight in self.weights)
        error = self.mul(self.error(decoded, target_name="signal"), of_error)
        size = self.mul(self.mean(self.size(code)), of_size)
        return self.add(error, size)


def autoencoder() -> onnx.ModelProto:
    """Returns an autoencoder of signals with 12 values, whose code has 6."""
    random = np.random.default_rng(0)
    values = {
        "mix.weight": np.linalg.qr(random.normal(size=(12, 12)))[0],
        "encode.weight": random.normal(0, 0.4, (12, 6)),
        "encode.bias": np.zeros(6),
        "decode.weight": random.normal(0, 0.4, (6, 12)),
        "decode.bias": np.zeros(12),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["signal", "mix.weight"], ["mixed"], "mix"),
            helper.make_node("Gemm", ["mixed", "encode.weight", "encode.bias"], ["encoded"], "encode"),
            helper.make_node("Tanh", ["encoded"], ["code"], "tanh"),
            helper.make_node("Gemm", ["code", "decode.weight", "decode.bias"], ["decoded"], "decode"),
        ],
        "autoencoder",
        [helper.make_tensor_value_info("signal", TensorProto.FLOAT, ["N", 12])],
        [
            helper.make_tensor_value_info("decoded", TensorProto.FLOAT, ["N", 12]),
            helper.make_tensor_value_info("code", TensorProto.FLOAT, ["N", 6]),
        ],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()],
    )
    # 1.19.2 reads models up to this version.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def signals(number: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """Yields batches of signals that lie near a plane of four dimensions."""
    plane = np.random.default_rng(1).normal(0, 0.5, (4, 12))
    random = np.random.default_rng(seed)
    for _ in range(number):
        yield (random.normal(size=(32, 4)) @ plane + random.normal(0, 0.05, (32, 12))).astype(np.float32)


def main() -> None:
    """Generates the artifacts, trains and prints the losses, the gradients' norms and the weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts.generate_artifacts(
            autoencoder(),
            requires_grad=["encode.weight", "encode.bias", "decode.weight", "decode.bias"],
            frozen_params=["mix.weight"],
            loss=SparseCodeLoss(),
            optimizer=onnxblock.optim.AdamW(
                betas=(0.8, 0.99), weight_decay=0.01, clip_grad=onnxblock.optim.ClipGradNorm(0.5)
            ),
            artifact_directory=folder,
            nominal_checkpoint=True,
        )
        files = [str(folder / f"{stem}_model.onnx") for stem in ("training", "eval", "optimizer")]
        state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        module = api.Module(files[0], state, files[1])
        optimizer = api.Optimizer(files[2], module)
        optimizer.set_learning_rate(0.02)

        losses, norms = [], []
        module.train()
        for number, signal in enumerate(signals(60, seed=2), start=1):
            losses.append(float(np.squeeze(module(signal))))
            if number % ACCUMULATED == 0:
                gradients = [p.grad for _, p in state.parameters if p.requires_grad]
                norms.append(float(np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradients))))
                optimizer.step()
                module.lazy_reset_grad()
        module.eval()
        evaluated = [float(np.squeeze(module(signal))) for signal in signals(2, seed=3)]

        result = {
            "inputs": module.input_names(),
            "losses": losses,
            "norms": norms,
            "evaluated": evaluated,
            "trainable": module.get_parameters_size(),
            "parameters": module.get_contiguous_parameters().numpy().tolist(),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
