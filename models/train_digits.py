"""Trains ResNet-20 on scikit-learn's handwritten digits with SGD and momentum, on stock ONNX Runtime.

``python models/train_digits.py -o build/digits`` builds the training step of the network, trains it, and writes
the losses to ``bngrad.json``, their plot to ``losses.svg`` and the trained network to ``digits.onnx``. It prints
the accuracy of that network on the test images. ``--backend ort`` uses the training graph of ONNX Runtime's
gradient builder on its training build, and ``--backend torch`` PyTorch, both with the same initial weights and
batches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from rich.progress import Progress

if not __package__:  # run as a script: only this folder is on sys.path, but not its parent
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # at the end: an installed bngrad comes first

from models import digits_resnet20

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Batch = tuple[Array, Array]
    """Images and labels."""
    Step = Callable[[dict[str, Array], Array, Array], tuple[float, dict[str, Array], dict[str, Array]]]
    """(weights and statistics, images, labels) -> (loss, gradients, new statistics)."""

MODEL = Path(__file__).with_name("digits_resnet20.onnx")
TRAINING_IMAGES = 1437
"""Four fifths of the images; the others are test images."""
BATCH = 64
EPOCHS = 30
RATE = 0.1
MOMENTUM = 0.9
DECAY = 5e-4


def main() -> None:
    """Trains the network and prints its accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--backend", choices=["bngrad", "ort", "torch"], default="bngrad")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    if options.backend == "bngrad":
        losses, model = train(options.epochs)
    else:
        with {"ort": ort_step, "torch": torch_step}[options.backend]() as step:
            losses, model = train_by_hand(step, options.epochs)
    seconds = time.perf_counter() - start
    accuracy = test_accuracy(model)
    document = {"backend": options.backend, "seconds": round(seconds, 1), "accuracy": accuracy, "losses": losses}
    (options.output / f"{options.backend}.json").write_text(json.dumps(document))
    draw(options.output)
    onnx.save(model, options.output / "digits.onnx")
    print(f"{options.backend}: {len(losses)} steps in {seconds:.1f} s, test accuracy {accuracy:.2%}")


def train(epochs: int) -> tuple[list[float], onnx.ModelProto]:
    """Trains with bngrad.

    Returns:
        The loss of every step, and the trained network.
    """
    import bngrad  # noqa: PLC0415 - not needed for --help

    batches = list(epoch_batches(epochs))
    step = bngrad.training_step(str(MODEL), optimizer=bngrad.SGD(momentum=MOMENTUM, weight_decay=DECAY))
    trainer = bngrad.Trainer(step, learning_rate=bngrad.CosineSchedule(RATE, len(batches)))
    losses = [trainer.step(images=images, labels=labels) for images, labels in tracked(batches)]
    return losses, trainer.finalize()


def train_by_hand(step: Step, epochs: int) -> tuple[list[float], onnx.ModelProto]:
    """Does the same with the gradients of another system: SGD with momentum and a cosine schedule in NumPy.

    Returns:
        The loss of every step, and the trained network.
    """
    import bngrad  # noqa: PLC0415 - not needed for --help

    state, weights = initial_state()
    velocity = {name: np.zeros_like(state[name]) for name in weights}
    batches = list(epoch_batches(epochs))
    losses = []
    for index, (images, labels) in enumerate(tracked(batches)):
        loss, gradients, statistics = step(state, images, labels)
        rate = np.float32(RATE / 2 * (1 + np.cos(np.pi * index / len(batches))))
        for name in weights:
            gradient = gradients[name] + np.float32(DECAY) * state[name]
            velocity[name] = np.float32(MOMENTUM) * velocity[name] + gradient
            state[name] = state[name] - rate * velocity[name]
        state |= statistics
        losses.append(loss)
    return losses, bngrad.finalize(str(MODEL), state)


def tracked(batches: list[Batch]) -> Iterator[Batch]:
    """Yields batches, with a progress bar on a terminal."""
    with Progress(disable=not sys.stderr.isatty()) as progress:
        yield from progress.track(batches, description="training")


def initial_state() -> tuple[dict[str, Array], list[str]]:
    """Returns the network's weights and running statistics by name, and the names of the weights."""
    graph = onnx.load(MODEL).graph
    state = {tensor.name: np.array(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    return state, [name for name in state if not name.endswith(("running_mean", "running_var"))]


def split() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Returns the training images and labels, and the test images and labels."""
    images, labels = digits_resnet20.digits()
    order = np.random.default_rng(0).permutation(len(images))
    training, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    return (images[training], labels[training]), (images[test], labels[test])


def epoch_batches(epochs: int) -> Iterator[Batch]:
    """Yields the images and labels of every training step, the same for every backend."""
    (images, labels), _ = split()
    generator = np.random.default_rng(1)
    for _ in range(epochs):
        order = generator.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield images[chosen], labels[chosen]


def test_accuracy(model: onnx.ModelProto) -> float:
    """Returns the accuracy of a trained network on the test images."""
    import onnxruntime  # noqa: PLC0415

    _, (images, labels) = split()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (logits,) = session.run(["logits"], {"images": images})
    return float(np.mean(logits.argmax(axis=1) == labels))


@contextmanager
def ort_step() -> Iterator[Step]:
    """Yields the training step of ORT's training graph on its training build."""
    import onnx_ir as ir  # noqa: PLC0415

    from bngrad.oracle import Oracle  # noqa: PLC0415
    from bngrad.training.differentiate import differentiate  # noqa: PLC0415

    graph = differentiate(ir.load(MODEL), builder="ort", target="ort")
    with Oracle() as oracle, oracle.load(ir.to_proto(graph.model)) as session:
        names = [graph.loss, *graph.gradients.values(), *graph.running_statistics.values()]

        def step(
            state: dict[str, Array], images: Array, labels: Array
        ) -> tuple[float, dict[str, Array], dict[str, Array]]:
            values = session.run({**state, "images": images, "labels": labels}, names)
            return (
                float(values[graph.loss]),
                {name: values[output] for name, output in graph.gradients.items()},
                {name: values[output] for name, output in graph.running_statistics.items()},
            )

        yield step


@contextmanager
def torch_step() -> Iterator[Step]:
    """Yields the training step of the same network in PyTorch."""
    import torch  # noqa: PLC0415

    from models.in_torch import forward  # noqa: PLC0415

    graph = onnx.load(MODEL).graph

    def step(
        state: dict[str, Array], images: Array, labels: Array
    ) -> tuple[float, dict[str, Array], dict[str, Array]]:
        values = {name: torch.from_numpy(array) for name, array in state.items()}
        weights = {name: value.requires_grad_() for name, value in values.items() if "running" not in name}
        values |= {"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)}
        results = forward(graph, values)
        results["loss"].backward()
        statistics = {name: results[f"{name}_new"].numpy() for name in state if "running" in name}
        return results["loss"].item(), {name: value.grad.numpy() for name, value in weights.items()}, statistics

    yield step


def draw(folder: Path) -> None:
    """Plots the losses of all backends with a result in a folder."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        label = f"{document['backend']}: test accuracy {document['accuracy']:.2%}"
        axes.plot(document["losses"], label=label, linewidth=1, alpha=0.8)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="ResNet-20 on handwritten digits")
    axes.legend()
    figure.savefig(folder / "losses.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
