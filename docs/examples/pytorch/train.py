# ruff: noqa: T201 - a script
"""Trains a PyTorch module on scikit-learn's digits in ONNX Runtime, and evaluates it in PyTorch.

python docs/examples/pytorch/train.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bngrad
import bngrad.torch


def network() -> nn.Module:
    """Two convolutions, each with a batch norm, and a linear classifier."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10),
    )  # fmt: skip


def train(net: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]], epochs: int) -> list[float]:
    """Trains a module in ONNX Runtime, in place; returns the loss of every step."""
    optimizer = torch.optim.AdamW(net.parameters())
    step = bngrad.torch.training_step(net, nn.CrossEntropyLoss(), next(iter(loader)), optimizer=optimizer)
    trainer = bngrad.Trainer(step, learning_rate=3e-3)
    losses = [trainer.step(input=images, target=labels) for _ in range(epochs) for images, labels in loader]
    bngrad.torch.load_into(net, trainer)
    return losses


def main() -> None:
    """Trains, and prints the accuracy in PyTorch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    training = TensorDataset(images[:1437], labels[:1437])  # the last 360 images are for the test
    net = network()
    losses = train(net, DataLoader(training, batch_size=64, shuffle=True), args.epochs)

    net.eval()
    with torch.no_grad():
        accuracy = (net(images[1437:]).argmax(1) == labels[1437:]).float().mean()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy in PyTorch {accuracy:.3f}")


if __name__ == "__main__":
    main()
