"""The whole life of a network: folded, restored, trained by clients, estimated anew, quantized, and run in Node.

``python models/whole_life.py resnet20 -o build/whole_life`` prints the accuracy of the network of the digits at
each stop; ``mobilenet_v2``, on digits of 64x64 pixels, needs PyTorch and torchvision. Node needs the packages of
docs/examples/node, `npm ci --ignore-scripts` there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from safetensors.numpy import save

if not __package__:  # run as a script: only this folder is on sys.path, but not its parent
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # at the end: an installed bngrad comes first

import bngrad
from bngrad.federated import average
from models import train_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

NODE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "node"
CLIENTS, BATCH = 4, 32


class Network(NamedTuple):
    """A network, the images that it takes, and the lengths of its trainings."""

    model: onnx.ModelProto
    inputs: tuple[str, str]
    """The names of the images and of the labels."""
    scale: int
    """The pixels of an image for one of the digits."""
    images: int
    """The images of all clients."""
    first: int
    """Those of the first training."""
    epochs: int
    """The epochs of the first training."""
    rounds: int
    quantized_epochs: int
    rate: float


def resnet20() -> Network:
    """The ResNet-20 of the digits."""
    return Network(onnx.load(train_digits.MODEL), ("images", "labels"), 1, 1437, 300, 15, 10, 4, 0.05)


def mobilenet_v2() -> Network:
    """The MobileNetV2 of torchvision, with ten classes."""
    import torch  # noqa: PLC0415 - not needed for the other network
    import torchvision  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    import bngrad.torch  # noqa: PLC0415

    torch.manual_seed(0)
    example = torch.randn(4, 3, 64, 64), torch.zeros(4, dtype=torch.int64)
    module = torchvision.models.mobilenet_v2(num_classes=10, dropout=0.0)
    model = bngrad.torch.export(module, torch.nn.functional.cross_entropy, example, check=False)
    return Network(model, ("x", "target"), 8, 480, 300, 5, 2, 1, 0.05)


NETWORKS = {"resnet20": resnet20, "mobilenet_v2": mobilenet_v2}


class Calibration(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """The batches that give the ranges of activations."""

    def __init__(self, batches: Iterable[dict[str, Array]]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, Array] | None:
        """Returns the next batch."""
        return next(self._batches, None)


class Life:
    """The stops of a network, each of which gets the model or state of the one before.

    Args:
        network: The network.
        folder: The folder that the models are written to.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        (self.images, self.labels), test = train_digits.split()
        self.test_images, self.test_labels = self.enlarged(test[0]), test[1]
        self.rows = np.arange(network.images)
        self.clients = np.array_split(self.rows, CLIENTS)
        data = {"test/images": self.test_images, "test/labels": self.test_labels}
        (folder / "test.safetensors").write_bytes(save(data))

    def enlarged(self, images: Array) -> Array:
        """The images as the network takes them."""
        scale = self.network.scale
        channels = 3 if scale > 1 else 1
        large = images.repeat(scale, axis=2).repeat(scale, axis=3)
        return np.ascontiguousarray(np.broadcast_to(large, (len(large), channels, *large.shape[2:])))

    def batches(self, rows: Array, seed: int) -> Iterator[dict[str, Array]]:
        """The batches of an epoch, without a small last one."""
        order = np.random.default_rng(seed).permutation(rows)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield dict(
                zip(self.network.inputs, (self.enlarged(self.images[chosen]), self.labels[chosen]), strict=True)
            )

    def train(self, trainer: bngrad.Trainer, rows: Array, epochs: int) -> None:
        """Trains epochs."""
        for epoch in range(epochs):
            for batch in self.batches(rows, epoch):
                trainer.step(**batch)

    def report(self, stop: str, model: onnx.ModelProto, name: str) -> onnx.ModelProto:
        """Writes the model of a stop, and prints its accuracy."""
        path = self.folder / f"{name}.onnx"
        onnx.save(model, path)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        parts = np.array_split(self.test_images, 6)
        logits = np.concatenate([session.run(None, {name: part})[0] for part in parts])
        accuracy = (logits.argmax(1) == self.test_labels).mean()
        print(f"| {stop} | {accuracy:.2%} | {path.stat().st_size:,} |", flush=True)
        return model

    def folded(self) -> onnx.ModelProto:
        """The network after a training on some of the images, with its batch norms folded."""
        step = bngrad.training_step(self.network.model, optimizer=bngrad.SGD(momentum=0.9), training=["*"])
        trainer = bngrad.Trainer(step, learning_rate=self.network.rate)
        rows = self.rows[: self.network.first]
        self.train(trainer, rows, self.network.epochs)
        trainer.estimate_statistics(self.batches(rows, 0))
        return bngrad.edit_batch_norms(trainer.finalize(), fold=True)

    def restored(self, folded: onnx.ModelProto) -> onnx.ModelProto:
        """The network with batch norms that have the statistics of the training images."""
        images, _ = self.network.inputs
        batches = ({images: batch[images]} for batch in self.batches(self.rows, 0))
        return bngrad.restore_batch_norms(folded, batches)

    def step(self, model: onnx.ModelProto, **options: Any) -> bngrad.TrainingStep:  # noqa: ANN401 - of a step
        """The training step of a restored network."""
        optimizer = bngrad.SGD(momentum=0.9)
        return bngrad.training_step(model, loss_fn="cross_entropy", optimizer=optimizer, training=["*"], **options)

    def federated(self, trainer: bngrad.Trainer) -> None:
        """Trains by clients, each an epoch a round."""
        state: Any = trainer.state_dict()
        for number in range(self.network.rounds):
            states: list[Any] = []
            for rows in self.clients:
                trainer.load_state_dict(state)
                for batch in self.batches(rows, number):
                    trainer.step(**batch)
                states.append(trainer.state_dict())
            state = average(states, [len(rows) for rows in self.clients], optimizer="reset")
        trainer.load_state_dict(state)

    def estimated(self, trainer: bngrad.Trainer) -> None:
        """Gives the average of the clients the statistics of its own activations, on the data of all clients."""
        state, states = trainer.state_dict(), list[Any]()
        for rows in self.clients:
            trainer.load_state_dict(state)
            trainer.estimate_statistics(self.batches(rows, 0))
            states.append(trainer.state_dict())
        trainer.load_state_dict(average(states, [len(rows) for rows in self.clients], optimizer="reset"))

    def calibrated(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The network quantized without training, by the ranges of its activations on the training images."""
        images, _ = self.network.inputs
        calibration = Calibration({images: batch[images]} for batch in self.batches(self.rows, 0))
        source, path = self.folder / "before.onnx", self.folder / "after.onnx"
        onnx.save(model, source)
        quant_pre_process(str(source), str(source), skip_symbolic_shape=True)  # it fails on lists as constants
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
        quantize_static(str(source), str(path), calibration, quant_format=QuantFormat.QDQ, **types)
        source.unlink()
        return onnx.load(path)

    def live(self) -> None:
        """Prints the table."""
        print("| | accuracy on 360 test images | size in bytes |\n|---|---|---|")
        folded = self.report("folded file", self.folded(), "folded")
        restored = self.report("restored batch norms", self.restored(folded), "restored")
        self.network = network = self.network._replace(inputs=(self.network.inputs[0], "labels"))
        trainer = bngrad.Trainer(self.step(restored), learning_rate=network.rate / 2)
        self.federated(trainer)
        self.report(f"trained by {CLIENTS} clients", trainer.finalize(), "federated")
        self.estimated(trainer)
        estimated = self.report("statistics estimated anew", trainer.finalize(), "estimated")
        self.report("quantized after training, with onnxruntime.quantization", self.calibrated(estimated), "after")
        state = trainer.state_dict()
        values = {name: state[name] for name in trainer.info.names("weight", "running_statistic")}
        step = self.step(restored, quantize="uint8", values=values)
        trainer = bngrad.Trainer(step, learning_rate=network.rate / 10)
        self.train(trainer, self.rows, network.quantized_epochs)
        self.report("quantized, trained on", trainer.finalize(), "quantized")
        command = [
            "node",
            "predict.mjs",
            *(str(self.folder / name) for name in ("quantized.onnx", "test.safetensors")),
        ]
        printed = subprocess.run(command, cwd=NODE, check=True, capture_output=True, text=True).stdout
        print(f"| the same in Node | {float(printed.split()[1]):.2%} | |")


def main() -> None:
    """Prints the table of a network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    options = parser.parse_args()
    if not (NODE / "node_modules").is_dir():
        parser.error(f"Node does not have its packages; run npm ci --ignore-scripts in {NODE}")
    folder = options.output.resolve() / options.network
    folder.mkdir(parents=True, exist_ok=True)
    Life(NETWORKS[options.network](), folder).live()


if __name__ == "__main__":
    main()
