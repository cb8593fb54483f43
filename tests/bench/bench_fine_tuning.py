"""The time of a training step of docs/examples/pytorch: PyTorch and bngrad's Trainer, in alternation, one thread.

    python tests/bench/bench_fine_tuning.py --trials 101

The ResNet-20 of the example, with a frozen stem and whole, with both optimizers. Both ways take the same batch and
return the loss. It prints a Markdown table of the processor time of a step: ms, median (quartiles).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "examples" / "pytorch")]

import finetune
from resnet import ResNet

import bngrad
import bngrad.torch


def ways(kind: str, images: torch.Tensor, labels: torch.Tensor, *, frozen: bool):
    """Returns a step of each way, from the same weights."""
    torch.manual_seed(0)
    net = ResNet(5).train()
    if frozen:
        net.freeze(*finetune.STEM)
    optimizer = finetune.optimizer_of(net, kind)
    step = bngrad.torch.training_step(net, nn.CrossEntropyLoss(), (images, labels), optimizer=optimizer)
    trainer = bngrad.Trainer(step, learning_rate=finetune.RATES[kind], threads=1)
    twin = copy.deepcopy(net)
    own = finetune.optimizer_of(twin, kind)
    return {
        "PyTorch": lambda: finetune.torch_step(twin, own, images, labels),
        "bngrad": lambda: trainer.step(images=images, target=labels),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=101)
    parser.add_argument("--size", type=int, default=8, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = torch.rand(args.batch, 1, args.size, args.size), torch.arange(args.batch) % 5
    print("| network | optimizer | way | ms | of PyTorch's |\n|---|---|---|---|---|")
    for frozen in (True, False):
        for kind in finetune.RATES:
            row(kind, images, labels, frozen=frozen, trials=args.trials)


def row(kind, images, labels, *, frozen, trials):
    steps = ways(kind, images, labels, frozen=frozen)
    times = {way: [] for way in steps}
    for trial in range(trials + 5):
        for way, step in steps.items():
            start = time.process_time()
            step()
            if trial >= 5:
                times[way].append(1e3 * (time.process_time() - start))
    network = "frozen stem" if frozen else "whole"
    base = statistics.median(times["PyTorch"])
    for way, ms in times.items():
        print(f"| {network} | {kind} | {way} | {spread(ms)} | {statistics.median(ms) / base:.2f} |")


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    main()
