# ruff: noqa: T201 - a script
"""Fine-tunes a ResNet-20 in PyTorch, in ONNX Runtime, and in both in turn.

    python docs/examples/pytorch/finetune.py
    python docs/examples/pytorch/finetune.py --optimizer sgd --seeds 10

The network learns scikit-learn's digits 0 to 4 in PyTorch. It then gets a new classifier and a frozen stem, and
learns the digits 5 to 9 from a fifth of their images, with a higher learning rate for the classifier and a cosine
schedule: only in PyTorch, only in ONNX Runtime, and a third in PyTorch, a third in ONNX Runtime and the last
third in PyTorch again. All begin with the same weights and see the same batches; so does PyTorch in float64, which
shows what rounding does. It prints the accuracies of all seeds and the curves of the first one as Markdown.
"""

from __future__ import annotations

import argparse
import copy
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from resnet import ResNet
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import bngrad
import bngrad.torch

BATCH = 32
RATES = {"adamw": 1e-3, "sgd": 0.01}
"""The learning rate of each optimizer; the classifier's is five times that."""
STEM = ("conv1", "bn1", "layer1")
FLOAT64 = "PyTorch, float64"
PRETRAINING = 10
"""Epochs."""

Data = tuple[torch.Tensor, torch.Tensor]
"""Images [N, 1, 8, 8] and labels [N]."""


class Epoch(NamedTuple):
    """A point of the curves."""

    loss: float
    """The mean over the training steps of the epoch."""
    validation_loss: float
    accuracy: float
    """Of the validation images, after the epoch."""


def digits(classes: range, seed: int, training: float) -> tuple[Data, Data]:
    """Returns the training data, a part of the images, and the validation data; labels count from 0."""
    images, labels = load_digits(return_X_y=True)
    rows = np.flatnonzero(np.isin(labels, classes))
    rows = np.random.default_rng(seed).permutation(rows)
    data = (
        torch.tensor(images[rows].reshape(-1, 1, 8, 8) / 16, dtype=torch.float32),
        torch.tensor(labels[rows] - classes.start),
    )
    count = int(training * len(rows))
    return (data[0][:count], data[1][:count]), (data[0][count:], data[1][count:])


def batches(data: Data, seed: int) -> list[Data]:
    """Returns an epoch of whole batches."""
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    return [(data[0][rows], data[1][rows]) for rows in order.split(BATCH) if len(rows) == BATCH]


def parameter_groups(net: ResNet, rate: float) -> list[dict[str, object]]:
    """Returns the groups: no weight decay for batch norms, and a higher learning rate for the classifier."""
    backbone = [p for name, p in net.named_parameters() if p.requires_grad and not name.startswith("fc.")]
    return [
        {"params": [p for p in backbone if p.ndim > 1], "weight_decay": 1e-2, "initial_lr": rate},
        {"params": [p for p in backbone if p.ndim == 1], "weight_decay": 0.0, "initial_lr": rate},
        {"params": list(net.fc.parameters()), "weight_decay": 1e-2, "initial_lr": 5 * rate},
    ]


def optimizer_of(net: ResNet, kind: str) -> torch.optim.Optimizer:
    """Returns the optimizer of a network."""
    groups = [{**group, "lr": group["initial_lr"]} for group in parameter_groups(net, RATES[kind])]
    return torch.optim.AdamW(groups) if kind == "adamw" else torch.optim.SGD(groups, momentum=0.9)


def evaluate(net: ResNet, data: Data) -> tuple[float, float]:
    """Returns the loss and the accuracy of a network in evaluation mode."""
    net.eval()
    with torch.no_grad():
        logits = net(data[0].to(net.fc.weight.dtype))
    net.train()
    return functional.cross_entropy(logits, data[1]).item(), (logits.argmax(1) == data[1]).float().mean().item()


def train(
    net: ResNet, data: tuple[Data, Data], kind: str, backends: list[str], seed: int = 0, threads: int = 1
) -> list[Epoch]:
    """Trains a network.

    Args:
        net: The network; it is changed.
        data: The training and the validation data.
        kind: The optimizer, ``"adamw"`` or ``"sgd"``.
        backends: ``"torch"`` or ``"bngrad"`` for each epoch.
        seed: Of the batches.
        threads: Of ONNX Runtime.

    Returns:
        The curves.
    """
    training, validation = data
    optimizer = optimizer_of(net.train(), kind)
    schedule = bngrad.CosineSchedule(1.0, len(backends) * (len(training[0]) // BATCH))
    epochs: list[Epoch] = []
    update = 0
    for backend, stretch in groupby(backends):
        trainer = None
        if backend == "bngrad":
            step = bngrad.torch.training_step(
                net, nn.CrossEntropyLoss(), batches(training, seed)[0], optimizer=optimizer
            )
            trainer = bngrad.Trainer(step, learning_rate=RATES[kind], threads=threads)
        for _ in stretch:
            losses = []
            for images, labels in batches(training, 1000 * seed + len(epochs)):
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * schedule(update)
                if trainer is None:
                    losses.append(torch_step(net, optimizer, images, labels))
                else:
                    trainer.learning_rate = optimizer.param_groups[0]["lr"]
                    losses.append(trainer.step(images=images, target=labels))
                update += 1
            if trainer is not None:
                bngrad.torch.load_into(net, trainer, optimizer=optimizer)
            epochs.append(Epoch(float(np.mean(losses)), *evaluate(net, validation)))
    return epochs


def torch_step(net: ResNet, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Runs one training step in PyTorch, and returns its loss."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(images.to(net.fc.weight.dtype)), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def pretrained(seed: int, epochs: int, dropout: float = 0.0) -> ResNet:
    """Returns a network that PyTorch has trained on the digits 0 to 4, with a new classifier and a frozen stem."""
    torch.manual_seed(seed)
    net = ResNet(5, dropout)
    train(net, digits(range(5), seed, 0.8), "adamw", ["torch"] * epochs, seed)
    net.fc = nn.Linear(net.fc.in_features, 5)
    net.freeze(*STEM)
    return net


def plans(epochs: int) -> dict[str, list[str]]:
    """Returns the ways to train, with a backend for each epoch."""
    third = epochs // 3
    return {
        "PyTorch": ["torch"] * epochs,
        FLOAT64: ["torch"] * epochs,
        "bngrad": ["bngrad"] * epochs,
        "PyTorch, bngrad, PyTorch": ["torch"] * third + ["bngrad"] * third + ["torch"] * (epochs - 2 * third),
    }


def fine_tune(seed: int, epochs: int, kind: str = "adamw", dropout: float = 0.0) -> dict[str, list[Epoch]]:
    """Fine-tunes copies of one network in all ways; returns their curves."""
    net, data = pretrained(seed, PRETRAINING, dropout), digits(range(5, 10), seed, 0.2)
    curves = {}
    for way, backends in plans(epochs).items():
        twin = copy.deepcopy(net).to(torch.float64 if way == FLOAT64 else torch.float32)
        curves[way] = train(twin, data, kind, backends, seed)
    return curves


def main() -> None:
    """Trains, and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--optimizer", choices=RATES, default="adamw")
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    curves = [fine_tune(seed, args.epochs, args.optimizer, args.dropout) for seed in range(args.seeds)]

    print_tables(curves)


def print_tables(curves: list[dict[str, list[Epoch]]]) -> None:
    """Prints the accuracies of all seeds, and seven epochs of the first one, as Markdown."""
    ways = list(curves[0])
    print("| way | accuracy of each seed, % | mean | standard deviation | validation loss, largest difference |")
    print("|---|---|---|---|---|")
    for way in ways:
        accuracies = [100 * curve[way][-1].accuracy for curve in curves]
        listed = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        pairs = (pair for curve in curves for pair in zip(curve[way], curve[ways[0]], strict=True))
        difference = max(abs(ours.validation_loss - other.validation_loss) for ours, other in pairs)
        print(f"| {way} | {listed} | {np.mean(accuracies):.2f} | {np.std(accuracies):.2f} | {difference:.1e} |")
    print(f"\n| epoch | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
    points = list(enumerate(zip(*curves[0].values(), strict=True), 1))
    for index in sorted({round(position) for position in np.linspace(0, len(points) - 1, 7)}):
        epoch, row = points[index]
        cells = [f"{point.loss:.4f}, {point.validation_loss:.4f}, {point.accuracy:.1%}" for point in row]
        print(f"| {epoch} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
