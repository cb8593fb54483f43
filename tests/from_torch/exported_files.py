"""Writes the files of ``torch.onnx.export(dynamo=True)`` that the tests read without PyTorch.

    python tests/from_torch/exported_files.py

writes ``files/<case>-<torch's version>.textproto`` with the PyTorch that is installed; PyTorch 2.9.1 and 2.15.0
with onnxscript 0.7.2 wrote those that are committed. Left out is metadata that repeats other metadata, and the
places in PyTorch's sources, which are paths of a machine.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from torch import nn

FILES = Path(__file__).parent / "files"
LEFT_OUT = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.class_hierarchy", "namespace")


class Net(nn.Module):
    """A batch norm that is called twice, one in evaluation mode, a split, a buffer and a constant, with a loss."""

    def __init__(self, *, evaluation: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1, bias=False)
        self.bn = nn.BatchNorm2d(4, momentum=0.3)
        self.frozen = nn.BatchNorm2d(4)
        self.register_buffer("offset", torch.randn(4))
        self.head = nn.Linear(4, 3)
        self.train(not evaluation)
        self.frozen.eval()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of images [N, 2, H, W] and labels [N]."""
        h = torch.relu(self.bn(self.conv(x)))
        first, second = self.frozen(torch.sigmoid(self.bn(h))).chunk(2, 1)
        pooled = torch.cat([second, first * 0.5], 1).mean((2, 3)) + self.offset
        return nn.functional.cross_entropy(self.head(pooled * torch.tensor([1.0, 2.0, 3.0, 4.0])), labels)


class BehindRelu(nn.Module):
    """Batch norms that nothing can fold, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1)
        self.bn = nn.BatchNorm2d(4)
        self.other = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of images [N, 2, H, W] and labels [N]."""
        h = self.other(torch.sigmoid(self.bn(torch.relu(self.conv(x)))))
        return nn.functional.cross_entropy(self.head(h.mean((2, 3))), labels)


CASES = {
    "raw": (Net, False),
    "folded": (Net, True),
    "evaluation": (lambda: Net(evaluation=True), True),
    "merged": (BehindRelu, True),
}
"""The module, and whether the exporter's optimizer runs."""


def example() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 2, 3, 3, generator=generator), torch.tensor([0, 1, 2, 0])


def module_of(case: str) -> nn.Module:
    """The module of a case, the same in each call."""
    torch.manual_seed(0)
    return CASES[case][0]()


def export(case: str) -> onnx.ModelProto:
    """The file of a case by the PyTorch that is installed."""
    program = torch.onnx.export(
        module_of(case),
        example(),
        dynamo=True,
        optimize=CASES[case][1],
        input_names=["x", "labels"],
        output_names=["loss"],
        verbose=False,
    )
    return program.model_proto


def main() -> None:
    """Writes all files."""
    FILES.mkdir(exist_ok=True)
    version = ".".join(torch.__version__.split(".")[:2])
    for case in CASES:
        model = export(case)
        for node in model.graph.node:
            kept = [entry for entry in node.metadata_props if entry.key not in LEFT_OUT]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        onnx.save(model, FILES / f"{case}-{version}.textproto", format="textproto")


if __name__ == "__main__":
    main()
