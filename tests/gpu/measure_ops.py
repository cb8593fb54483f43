"""The batch-norm ops over the shapes of ResNet-50, beside cuDNN's by PyTorch: sums over the network, weighted."""

from __future__ import annotations

import sys

import torch

from bngrad.bench.case import Case, layout_axes
from bngrad.bench.measure import measure
from results import median_ms, report

SHAPES = {
    (64, 112): 1,
    (64, 56): 6,
    (256, 56): 4,
    (128, 56): 1,
    (128, 28): 7,
    (512, 28): 5,
    (256, 28): 1,
    (256, 14): 11,
    (1024, 14): 7,
    (512, 14): 1,
    (512, 7): 5,
    (2048, 7): 4,
}
"""Channels, height and width of the 53 batch norms, with how often each occurs."""

TYPES = {"float": torch.float32, "float16": torch.float16}


def torch_ms(op, shape, dtype, layout, device, seconds):
    """The time of PyTorch's op: the forward pass, the backward pass, or that after the gradient of a ReLU."""
    channels_last = layout == "NHWC"
    x = torch.randn(shape, device=device).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    scale, bias, mean, var = (torch.ones(shape[1], device=device) for _ in range(4))
    dy = torch.randn_like(x)
    sync = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    x.requires_grad_(op != "training")
    scale.requires_grad_(op != "training")
    y = torch.nn.functional.batch_norm(x, mean, var, scale, bias, training=True)
    runs = 10

    def call():
        for _ in range(runs):
            if op == "training":
                torch.nn.functional.batch_norm(x, mean, var, scale, bias, training=True)
            else:
                gradient = torch.ops.aten.threshold_backward(dy, y.detach(), 0) if op == "relu-grad" else dy
                torch.autograd.grad(y, (x, scale), gradient, retain_graph=True)
        sync()

    return median_ms(call, seconds) / runs


def main(device, quick):
    shapes = {(8, 6): 1} if quick else SHAPES
    for layout in ("NCHW", "NHWC"):
        for name, dtype in list(TYPES.items())[: 1 if quick else None]:
            for op in ("training", "grad", "relu-grad"):
                sums, slower = {"bngrad": 0.0, "torch": 0.0}, []
                for (channels, size), count in shapes.items():
                    nchw = (4 if quick else 64, channels, size, size)
                    shape = nchw if layout == "NCHW" else (nchw[0], size, size, channels)
                    case = Case(shape, layout_axes(layout, 4), name, op)
                    ours = measure(case, repeats=3, device=device).kernel.median * 1e3
                    theirs = torch_ms(op, nchw, dtype, layout, device, 0.02 if quick else 0.1)
                    sums = {"bngrad": sums["bngrad"] + count * ours, "torch": sums["torch"] + count * theirs}
                    if ours > theirs:
                        slower.append(f"{case.shape_text}: {ours:.4f} and {theirs:.4f} ms")
                ratio = sums["bngrad"] / sums["torch"]
                report("kernels", op=op, layout=layout, type=name, **sums, ratio=ratio, slower="; ".join(slower))


main(sys.argv[1], quick="--quick" in sys.argv)
