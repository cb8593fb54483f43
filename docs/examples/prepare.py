"""Writes what the examples train on, so that each language trains on the same batches of scikit-learn's digits.

``python docs/examples/prepare.py`` writes to docs/examples/data, or to the folder that ``-o`` names:

- ``step.onnx``, ``step.eval.onnx``, ``step.safetensors``: the training step of models/digits_resnet20.onnx
- ``inference.onnx``: images -> logits, with the state as an input
- ``digits.safetensors``: the images and labels for training and for tests, and ``batches``, the rows of each step
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx.utils import Extractor
from safetensors.numpy import save

import bngrad

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from models import digits_resnet20  # noqa: E402 - models/ is not part of the package

if TYPE_CHECKING:
    from bngrad.training.step_info import Layout

MODEL = ROOT / "models" / "digits_resnet20.onnx"
TEST = 360
BATCH = 64
EPOCHS = 15
FILES = ("step.onnx", "step.eval.onnx", "step.safetensors", "inference.onnx", "digits.safetensors")


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("data"), help="the folder")
    parser.add_argument("--layout", choices=["flat", "named"], default="flat", help="the layout of the state")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    write_step(options.output, options.layout)
    # save_file makes a file that other users cannot read.
    (options.output / "digits.safetensors").write_bytes(save(digits()))
    print("wrote", *(options.output / name for name in FILES), sep="\n  ")  # noqa: T201 - a script


def write_step(folder: Path, layout: Layout) -> None:
    """Writes the training step, and its evaluation model without labels and loss."""
    step = bngrad.training_step(MODEL, optimizer=bngrad.SGD(momentum=0.9, weight_decay=5e-4), layout=layout)
    step.save(folder / "step.onnx")
    inputs = [value.name for value in step.evaluation.graph.input if value.name != "labels"]
    onnx.save(Extractor(step.evaluation).extract_model(inputs, ["logits"]), folder / "inference.onnx")


def digits() -> dict[str, np.ndarray]:
    """Returns the arrays of digits.safetensors; equal calls give equal arrays."""
    images, labels = digits_resnet20.digits()
    generator = np.random.default_rng(0)
    order = generator.permutation(len(images))
    test, training = order[:TEST], order[TEST:]
    rows = len(training) // BATCH * BATCH
    epochs = [generator.permutation(len(training))[:rows] for _ in range(EPOCHS)]
    return {
        "training/images": images[training],
        "training/labels": labels[training],
        "test/images": images[test],
        "test/labels": labels[test],
        "batches": np.concatenate(epochs).reshape(-1, BATCH).astype(np.int32),
    }


if __name__ == "__main__":
    main()
