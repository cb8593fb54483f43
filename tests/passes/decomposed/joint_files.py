"""Writes the forward and backward graphs of PyTorch that the tests read without it.

    python tests/passes/decomposed/joint_files.py

writes ``files/joint_<case>.onnxtxt``, the graph before any pass, and ``files/joint_<case>.json``, the loss, the
gradients and the new running statistics that PyTorch computes in float64. PyTorch 2.14.1 with onnxscript 0.7.2
wrote those that are committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES = Path(__file__).parent / "files"
CASES = ("conv_bn_relu", "conv_bn_relu_var_mean", "resnet_block", "mobilenet_block")
"""``var_mean`` has the mean and the variance as torch.onnx.export decomposes them, with a sum and a division."""


def batch() -> dict[str, NDArray]:
    """Images [N, 3, H, W] and labels [N]."""
    images = np.sin(np.arange(6 * 3 * 6 * 6, dtype=np.float64) ** 1.1).reshape(6, 3, 6, 6)
    return {"input": images.astype(np.float32), "target": np.arange(6) % 3}


def main() -> None:
    """Writes all files."""
    import torch
    from torch import nn

    FILES.mkdir(exist_ok=True)
    example = tuple(torch.from_numpy(array) for array in batch().values())
    for case in CASES:
        torch.manual_seed(0)
        module = nn.Sequential(*_modules(case), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).train()
        text, outputs = _written(module, nn.CrossEntropyLoss(), example, var_mean=case.endswith("var_mean"))
        (FILES / f"joint_{case}.onnxtxt").write_text(text)
        want = _pytorchs(module, example)
        document = {name: want[name].tolist() for name in outputs if name in want}
        (FILES / f"joint_{case}.json").write_text(json.dumps(document) + "\n")


def _modules(case: str):
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
            self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
            self.down = nn.Sequential(nn.Conv2d(3, 4, 1, 2, bias=False), nn.BatchNorm2d(4))

        def forward(self, x):
            y = nn.functional.relu(self.bn1(self.conv1(x)))
            return nn.functional.relu(self.bn2(self.conv2(y)) + self.down(x))

    if case == "resnet_block":
        return [Residual()]
    if case == "mobilenet_block":
        return [
            *(nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
            *(nn.Conv2d(6, 6, 3, 1, 1, groups=6, bias=False), nn.BatchNorm2d(6), nn.Hardswish()),
            *(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4)),
            nn.ReLU(),
        ]
    return [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]


def _written(module, loss_fn, example, *, var_mean: bool) -> tuple[str, list[str]]:
    """The graph as text, and the names of its outputs."""
    import torch
    from onnx import printer

    from bngrad.io.files import to_proto
    from bngrad.torch.joint import trace
    from bngrad.torch.joint.build import joint_graph
    from bngrad.torch.source import read_arguments

    table = trace.decompositions()
    if var_mean:
        table.pop(torch.ops.aten.var_mean.correction)
    arguments = read_arguments(module, loss_fn, example, None, None, custom_gradients=True)
    with mock.patch.object(trace, "decompositions", return_value=table):
        model = joint_graph(arguments.forward, arguments.example, arguments.trained, dynamic_batch=True).model
    proto = to_proto(model)
    unknown = {
        name for node in proto.graph.node if node.domain for name in node.output
    }  # to onnx's shape inference
    kept = [value for value in proto.graph.value_info if value.name in unknown]
    del proto.graph.value_info[:], proto.metadata_props[:]
    proto.graph.value_info.extend(kept)
    return printer.to_text(proto), [value.name for value in proto.graph.output]


def _pytorchs(module, example) -> dict[str, NDArray]:
    """The results of PyTorch in float64."""
    from torch import nn

    module = module.double()
    loss = nn.functional.cross_entropy(module(example[0].double()), example[1])
    loss.backward()
    values = {"loss": loss.detach().numpy()}
    values |= {f"{name}_grad": parameter.grad.numpy() for name, parameter in module.named_parameters()}
    return values | {f"{name}_new": buffer.numpy() for name, buffer in module.named_buffers()}


if __name__ == "__main__":
    main()
