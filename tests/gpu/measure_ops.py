"""The batch-norm ops over the shapes of ResNet-50, beside cuDNN's by PyTorch: sums over the network, weighted.

And MaxPoolInputGrad beside PyTorch's gradient, which has the indices of its forward pass.
"""

from __future__ import annotations

import sys

import torch
from onnx import helper

from bngrad.bench.case import Case, layout_axes
from bngrad.bench.measure import measure
from bngrad.bench.session_case import _prepare
from bngrad.opset.domain import DOMAIN
from bngrad.opset.max_pool_grad import NAME
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
POOLS = {
    "3x3, stride 2, 64x112x112": ((64, 112, 112), 3, 2, 1),
    "3x3, stride 1, 192x28x28": ((192, 28, 28), 3, 1, 1),
    "2x2, stride 2, 64x112x112": ((64, 112, 112), 2, 2, 0),
}
"""The pools of ResNet-50, GoogLeNet and VGG: a sample, the kernel, stride and padding."""
RUNS = 10


def torch_ms(op, shape, dtype, layout, device, seconds):
    """The time of PyTorch's op: the forward pass, the backward pass, or that after the gradient of a ReLU."""
    channels_last = layout == "NHWC"
    x = torch.randn(shape, device=device).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    scale, bias, mean, var = (torch.ones(shape[1], device=device) for _ in range(4))
    dy = torch.randn_like(x)
    x.requires_grad_(op != "training")
    scale.requires_grad_(op != "training")
    y = torch.nn.functional.batch_norm(x, mean, var, scale, bias, training=True)

    def call():
        for _ in range(RUNS):
            if op == "training":
                torch.nn.functional.batch_norm(x, mean, var, scale, bias, training=True)
            else:
                gradient = torch.ops.aten.threshold_backward(dy, y.detach(), 0) if op == "relu-grad" else dy
                torch.autograd.grad(y, (x, scale), gradient, retain_graph=True)
        synchronize(device)

    return median_ms(call, seconds) / RUNS


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure_pool(name, device, quick):
    """Reports the times of the gradient of one pool at batch 64."""
    sample, kernel, stride, padding = POOLS[name]
    shape = (2, 3, 20, 20) if quick else (64, *sample)
    seconds = 0.02 if quick else 0.1
    x = torch.randn(shape, device=device, requires_grad=True)
    y = torch.nn.functional.max_pool2d(x, kernel, stride, padding)
    dy = torch.randn_like(y)

    def theirs():
        for _ in range(RUNS):
            torch.autograd.grad(y, x, dy, retain_graph=True)
        synchronize(device)

    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    attributes |= {"dilations": [1, 1], "ceil_mode": 0}
    nodes = [
        helper.make_node(NAME, ["dY", "X"], [f"dX_{run}"], domain=DOMAIN, **attributes) for run in range(RUNS)
    ]
    arrays = {"dY": dy.cpu().numpy(), "X": x.detach().cpu().numpy()}
    ours = _prepare(Case(shape, (0,), "float", "grad"), device, nodes, arrays, [])
    times = {"bngrad": median_ms(ours, seconds) / RUNS, "torch": median_ms(theirs, seconds) / RUNS}
    report(
        "kernels",
        op="max-pool-grad",
        layout="NCHW",
        type="float",
        **times,
        ratio=times["bngrad"] / times["torch"],
        shape=name,
    )


def main(device, quick):
    for name in list(POOLS)[: 1 if quick else None]:
        measure_pool(name, device, quick)
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
