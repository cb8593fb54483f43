"""Exports with torch's legacy exporter: TorchScript, batch norms as the module has them, nothing folded.

The training mode is that of each module (``PRESERVE``): with ``TRAINING`` frozen batch norms would be trained.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import torch

import bngrad
from bngrad.torch.compare import compare_graph
from bngrad.torch.example import read_example
from bngrad.torch.forward import Forward
from bngrad.validation.float32_error import LIMIT
from bngrad.validation.report import Check
from networks.build import without_dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bngrad.torch.example import Example

    Arrays = Mapping[str, NDArray[Any]]

OPSET = 20
"""The newest that the legacy exporter knows."""


def by_legacy_exporter(module: torch.nn.Module, loss_fn: Callable, example: tuple, steps: int) -> Check:
    """Compares the legacy exporter's training graph of a module with the module."""
    check = Check("PyTorch", unit="x PyTorch's own error", limit=LIMIT)
    without_dropout(module)
    parsed = read_example(module, loss_fn, example, None)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    run_graph = runner(training_graph(module, loss_fn, parsed))
    compare_graph(check, Forward(module, loss_fn), parsed, run_graph, trained, steps=steps)
    return check


class WithLoss(torch.nn.Module):
    """A module that returns the loss of another one."""

    def __init__(self, module: torch.nn.Module, loss_fn: Callable, targets: int) -> None:
        super().__init__()
        self.module, self._loss_fn, self._targets = module, loss_fn, targets

    def forward(self, *data: torch.Tensor) -> torch.Tensor:
        count = len(data) - self._targets
        return self._loss_fn(self.module(*data[:count]), *data[count:])


def training_graph(module: torch.nn.Module, loss_fn: Callable, example: Example) -> onnx.ModelProto:
    """Exports a copy of a module with its loss, and differentiates it."""
    whole = WithLoss(copy.deepcopy(module), loss_fn, len(example.targets))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            whole,
            (*example.args, *example.targets),
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=OPSET,
            input_names=[f"data.{name}" for name in example.names],
            output_names=["loss"],
        )
        forward = onnx.load(path)
    return bngrad.differentiate(forward, loss="loss", shared_statistics="chain")


def runner(graph: onnx.ModelProto) -> Callable[[Arrays], Arrays]:
    """Returns a function that runs a training graph for `compare_graph`."""
    session, roles = bngrad.session(graph), bngrad.read_training_graph(graph)
    names = {roles.loss: "loss"}
    for suffix, pairs in (("_grad", roles.gradients), ("_new", roles.running_statistics)):
        names |= {output: f"{name.removeprefix('module.')}{suffix}" for name, output in pairs.items()}
    inputs = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}

    def run(feeds: Arrays) -> Arrays:
        named = {f"{kind}.{name}": value for name, value in feeds.items() for kind in ("module", "data")}
        values = session.run(list(names), {name: value for name, value in named.items() if name in inputs})
        return dict(zip(names.values(), values, strict=True))

    return run
