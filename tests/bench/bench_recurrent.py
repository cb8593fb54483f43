"""A training step with LSTM or GRU by bngrad and by PyTorch: processor time on one thread.

    build/torch/bin/python tests/bench/bench_recurrent.py

Not a test: it only prints.
"""

from __future__ import annotations

import time
import warnings
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import nn

import bngrad
import bngrad.torch

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES, ROUNDS, STEPS = 5, 7, 4
SIZES = ((16, 50, 32, 64), (8, 100, 64, 128))
"""The batch, the length, the features and the hidden size."""


class Network(nn.Module):
    """A class for each frame."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], features: int, hidden: int, both: bool) -> None:
        super().__init__()
        self.recurrent = kind(features, hidden, batch_first=True, bidirectional=both)
        self.head = nn.Linear(hidden * (1 + both), CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0]).transpose(1, 2)


def milliseconds(step: Callable[[], object]) -> float:
    """The least processor time of a step."""
    step()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(STEPS):
            step()
        times.append((time.process_time() - start) / STEPS)
    return 1e3 * min(times)


def compared(module: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """The times of a step by bngrad and by PyTorch."""
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    options = {"optimizer": optimizer, "dynamic_batch": False, "check": False}
    training_step = bngrad.torch.training_step(module, loss_fn, (x, labels), **options)
    trainer = bngrad.Trainer(training_step, learning_rate=1e-3, threads=1)
    feeds = dict(zip(training_step.info.data, (x.numpy(), labels.numpy()), strict=True))

    def of_torch() -> None:
        optimizer.zero_grad()
        loss_fn(module(x), labels).backward()
        optimizer.step()

    return milliseconds(lambda: trainer.step(**feeds)), milliseconds(of_torch)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| op | batch, length, features, hidden | directions | bngrad, ms | PyTorch, ms | ratio |")
    print("|---" * 6 + "|")
    for kind, size, both in product((nn.LSTM, nn.GRU), SIZES, (False, True)):
        batch, length, features, hidden = size
        x, labels = torch.randn(batch, length, features), torch.randint(CLASSES, (batch, length))
        ours, theirs = compared(Network(kind, features, hidden, both), x, labels)
        words = f"{kind.__name__} | {', '.join(map(str, size))} | {1 + both}"
        print(f"| {words} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
