"""Compares quantization after and during training on scikit-learn's handwritten digits.

``python models/quantize_digits.py -o build/quantized`` trains ResNet-20 in float, quantizes it with
onnxruntime.quantization, trains it on with rounding, and prints the accuracy of each model on the test images.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_static,
)

if not __package__:  # run as a script: only this folder is on sys.path, but not its parent
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # at the end: an installed bngrad comes first

import bngrad
from models import train_digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

EPOCHS, QUANTIZED_EPOCHS = 30, 6
QUANTIZED_RATE = 0.01
RANGES: dict[str, dict[str, Any]] = {
    "during": {},
    "during_frozen_ranges": {"freeze_ranges": 44},
    "during_learned_scales": {"learned_scales": True},
    "during_learned_scales_later": {"freeze_ranges": 44, "learned_scales": True},
}
"""The options of the trainings with rounding: 44 updates are two epochs."""


class Images(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """The training images, in batches."""

    def __init__(self) -> None:
        (images, _), _ = train_digits.split()
        self._batches = iter([images[start : start + 64] for start in range(0, len(images), 64)])

    def get_next(self) -> dict[str, Array] | None:
        """Returns the next batch."""
        images = next(self._batches, None)
        return None if images is None else {"images": images}


def main() -> None:
    """Trains, quantizes and compares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    state = trained(options.epochs, train_digits.RATE, folder / "float.onnx")
    quant_pre_process(str(folder / "float.onnx"), str(folder / "folded.onnx"))
    for name, per_channel in (("after.onnx", False), ("after_per_channel.onnx", True)):
        quantize_static(
            str(folder / "folded.onnx"),
            str(folder / name),
            Images(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
    for name, ranges in RANGES.items():
        path = folder / f"{name}.onnx"
        trained(QUANTIZED_EPOCHS, QUANTIZED_RATE, path, values=state, quantize="uint8", **ranges)
    for name in ("float", "after", "after_per_channel", *RANGES):
        path = folder / f"{name}.onnx"
        accuracy, loss = test_results(path)
        size = path.stat().st_size
        print(f"{name}: accuracy {accuracy:.2%}, loss {loss:.4f} on the test images, {size:,} bytes")


def trained(epochs: int, rate: float, path: Path, **options: Any) -> dict[str, Array]:  # noqa: ANN401 - of a step
    """Trains the network, writes it, and returns its weights and running statistics."""
    optimizer = bngrad.SGD(momentum=train_digits.MOMENTUM, weight_decay=train_digits.DECAY)
    step = bngrad.training_step(str(train_digits.MODEL), optimizer=optimizer, **options)
    batches = list(train_digits.epoch_batches(epochs))
    trainer = bngrad.Trainer(step, learning_rate=bngrad.CosineSchedule(rate, len(batches)))
    for images, labels in train_digits.tracked(batches):
        trainer.step(images=images, labels=labels)
    trainer.finalize(path)
    state = trainer.state_dict()
    return {name: state[name] for name in step.info.names("weight", "running_statistic")}


def test_results(path: Path) -> tuple[float, float]:
    """Returns the accuracy and the cross entropy of a model on the test images."""
    _, (images, labels) = train_digits.split()
    session = onnxruntime.InferenceSession(onnx.load(path).SerializeToString(), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"images": images})[0].astype(np.float64)
    losses = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    losses -= logits[np.arange(len(labels)), labels]
    return float(np.mean(logits.argmax(axis=1) == labels)), float(losses.mean())


if __name__ == "__main__":
    main()
