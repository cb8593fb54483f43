"""A whole training step of networks of torchvision: PyTorch in both layouts, and bngrad's Trainer, in alternation.

    python tests/bench/bench_torchvision.py resnet18 mobilenet_v2 --batch 32 --size 64

The interpreter has PyTorch, torchvision and bngrad. SGD with momentum, from the same weights, on one batch. It
prints a Markdown table of wall and processor time.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from pathlib import Path

import torch
import torchvision
from torch import nn

sys.path[:0] = [str(Path(__file__).parents[2])]

import bngrad
import bngrad.torch

SGD = {"lr": 0.01, "momentum": 0.9}


def ways(name, images, labels, threads):
    """Returns a step of each way, which returns the loss."""
    torch.manual_seed(0)
    net = torchvision.models.get_model(name, num_classes=10).train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # so that the losses are comparable
    optimizer = torch.optim.SGD(net.parameters(), **SGD)
    step = bngrad.torch.training_step(net, nn.CrossEntropyLoss(), (images, labels), optimizer=optimizer)
    trainer = bngrad.Trainer(step, learning_rate=SGD["lr"], threads=threads)
    layouts = {"default layout": torch.contiguous_format, "channels last": torch.channels_last}
    return {
        "**bngrad**": lambda: trainer.step(x=images.numpy(), target=labels.numpy()),
        **{
            f"PyTorch, {layout}": torch_step(copy.deepcopy(net), images, labels, memory_format)
            for layout, memory_format in layouts.items()
        },
    }


def torch_step(net, images, labels, memory_format):
    net, images = net.to(memory_format=memory_format), images.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(net.parameters(), **SGD)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--trials", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = torch.rand(args.batch, 3, args.size, args.size)
    print("| network | | ms a step | ours / this | processor ms |\n|---|---|---|---|---|")
    for network in args.networks:
        row(network, ways(network, images, torch.arange(args.batch) % 10, args.threads), args.trials)


def row(network, steps, trials):
    """Times the steps in turns, and prints a row for each."""
    times, losses = {way: [] for way in steps}, {way: [] for way in steps}
    for _ in range(trials + 3):
        for way, step in steps.items():
            begin, used = time.perf_counter(), time.process_time()
            losses[way].append(step())
            times[way].append((1e3 * (time.perf_counter() - begin), 1e3 * (time.process_time() - used)))
    firsts = [values[0] for values in losses.values()]
    if max(firsts) - min(firsts) > 1e-4:
        raise SystemExit(f"{network}: the first losses differ: {firsts}")
    walls = {way: [wall for wall, _ in pairs[3:]] for way, pairs in times.items()}
    base = statistics.median(walls["**bngrad**"])
    for way, pairs in times.items():
        low, middle, high = statistics.quantiles(walls[way], n=4)
        ratio = f"{base / middle:.2f}" if way.startswith("PyTorch") else ""
        used = statistics.median(processor for _, processor in pairs[3:])
        print(f"| {network} | {way} | {middle:.0f} ({low:.0f}-{high:.0f}) | {ratio} | {used:.0f} |", flush=True)
        network = ""


if __name__ == "__main__":
    main()
