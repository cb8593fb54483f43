"""One measurement of a whole training step with SGD and momentum, in a process of its own.

``prepare NETWORK PRECISION FOLDER`` writes the training step. ``bngrad`` or ``torch`` in its place time it. All
take ``--channels-last``, and ``bngrad`` takes ``--cuda-graph``. PRECISION is float32, tf32, bfloat16 or float16.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from results import median_ms, report
from torch_networks import batch, network

RATE, MOMENTUM = 0.01, 0.9
MIXED = {"float16": "mixed", "bfloat16": "mixed-bfloat16"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=["prepare", "bngrad", "torch"])
    parser.add_argument("network")
    parser.add_argument("precision")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--cuda-graph", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    module, classes = network(options.network, options.small)
    images, labels = batch(options.batch, options.pixels, classes)
    layout = "last" if options.channels_last else "first"
    name = f"{options.network}_{MIXED.get(options.precision, 'float32')}_{layout}.onnx"
    if options.system == "prepare":
        prepare(options, module, images, labels, options.folder / name)
        return
    make = bngrad_step if options.system == "bngrad" else torch_step
    call = make(options, module, images, labels, options.folder / name)
    losses = [float(call()) for _ in range(3)]
    ms = median_ms(call, options.seconds)
    memory = None
    if options.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        memory = round((total - free) / 2**30, 2)
    words = {"channels last": options.channels_last, "CUDA graph": options.cuda_graph}
    report(
        "steps",
        network=options.network,
        precision=options.precision,
        system=", ".join([options.system, *(word for word, chosen in words.items() if chosen)]),
        ms=ms,
        losses=losses,
        gib=memory,
    )


def prepare(options, module, images, labels, path):
    import bngrad
    import bngrad.torch

    more = {"precision": MIXED[options.precision]} if options.precision in MIXED else {}
    step = bngrad.torch.training_step(
        module,
        torch.nn.CrossEntropyLoss(),
        (images[:2], labels[:2]),
        optimizer=bngrad.SGD(momentum=MOMENTUM),
        conv_grad=True,
        group_updates=True,
        channels_last=options.channels_last,
        **more,
    )
    step.save(path)


def bngrad_step(options, module, images, labels, path):  # noqa: ARG001 - as for PyTorch
    import onnxruntime

    import bngrad

    trainer = bngrad.Trainer(
        str(path),
        learning_rate=RATE,
        device=options.device,
        tf32=options.precision == "tf32",
        cuda_graph=options.cuda_graph,
    )
    arrays = dict(zip(trainer.info.data, (images.numpy(), labels.numpy()), strict=True))
    if not options.cuda_graph:
        kind, index = trainer.device.kind, trainer.device.index
        arrays = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a, kind, index) for n, a in arrays.items()}
    return lambda: trainer.step(**arrays)


def torch_step(options, module, images, labels, path):  # noqa: ARG001 - as for bngrad
    tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    module = module.to(options.device, memory_format=layout)
    images = images.to(options.device).contiguous(memory_format=layout)
    labels = labels.to(options.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    kind = options.device.partition(":")[0]
    scaler = torch.amp.GradScaler(kind, enabled=options.precision == "float16")

    def forward():
        mixed = contextlib.nullcontext()
        if options.precision in MIXED:
            mixed = torch.autocast(kind, getattr(torch, options.precision))
        with mixed:
            return cross_entropy(module(images), labels)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step


main()
