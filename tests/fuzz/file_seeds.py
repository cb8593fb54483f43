"""The valid files that the file campaign mutates: a model, its step, data, checkpoints, a log and weights.

python tests/fuzz/file_seeds.py FOLDER       makes them in FOLDER, in a process of its own: it runs ONNX Runtime
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).parents[2]
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x, int64[N] labels) => (float loss, float[N,3] logits) <float[3] b = {0, 0, 0}> {
    [mm] h = MatMul(x, w)
    [bn] y, m2, v2 = BatchNormalization <training_mode = 1> (h, s, o, m, v)
    [relu] r = Relu(y)
    [mm2] z = MatMul(r, u)
    [add] logits = Add(z, b)
    [ce] loss = SoftmaxCrossEntropyLoss(logits, labels)
}"""
SAMPLES = 12
TRAIN = ("train", "step.onnx", "--data", "data.npz", "--validation", "valid.npz", "--batch-size", "4")
RUN = (*TRAIN, "--learning-rate", "0.05", "--epochs", "2", "--checkpoint", "run.safetensors", "--log", "run.jsonl")


def make(folder: Path) -> None:
    """Makes the files in a folder."""
    from bngrad.cli import run

    os.chdir(folder)
    rng = np.random.default_rng(1)
    model = onnx.parser.parse_model(TEXT)
    shapes = {"w": (4, 5), "s": 5, "o": 5, "m": 5, "v": 5, "u": (5, 3)}
    arrays = {name: rng.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, "model.onnx")
    for name in ("data.npz", "valid.npz"):
        x, labels = rng.standard_normal((SAMPLES, 4)).astype(np.float32), rng.integers(0, 3, SAMPLES)
        np.savez(name, x=x, labels=labels)
    np.savez("weights.npz", **arrays)
    np.save("x.npy", x)
    np.save("labels.npy", labels)
    np.save("classes.npy", np.float32([1, 2, 3]))
    for arguments in (
        ("step", "model.onnx", "-o", "step.onnx", "--optimizer", "adam"),
        ("differentiate", "model.onnx", "-o", "training.onnx"),
        ("differentiate", "model.onnx", "-o", "default.onnx", "--target", "ort"),
        RUN,
    ):
        assert run(list(arguments)) == 0, arguments
    shutil.copy("run.jsonl", "other.jsonl")


@cache
def file_seeds() -> dict[str, bytes]:
    """Returns the content of each file by its name."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, folder], check=True, stdout=subprocess.DEVNULL)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    make(Path(sys.argv[1]))
