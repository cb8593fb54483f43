"""The way by torch's legacy exporter: TorchScript, batch norms as the module has them, nothing folded.

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
from torch_runs import inputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

OPSET = 20
"""The newest that the legacy exporter knows."""


class WithLoss(torch.nn.Module):
    """A module and its loss in one."""

    def __init__(self, module: torch.nn.Module, loss_fn: Callable, targets: int) -> None:
        super().__init__()
        self.module, self._loss_fn, self._targets = module, loss_fn, targets

    def forward(self, *data: torch.Tensor) -> torch.Tensor:
        count = len(data) - self._targets
        return self._loss_fn(self.module(*data[:count]), *data[count:])


def training_graph(module: torch.nn.Module, loss_fn: Callable, example: tuple) -> onnx.ModelProto:
    """Exports a copy of a module with its loss, and differentiates it."""
    data = inputs_of(example)
    whole = WithLoss(copy.deepcopy(module), loss_fn, len(example) - 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            whole,
            data,
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=OPSET,
            input_names=[f"data.{index}" for index in range(len(data))],
            output_names=["loss"],
        )
        forward = onnx.load(path)
    return bngrad.differentiate(forward, loss="loss", shared_statistics="chain")


class Step:
    """A training graph in a session, called with the state and the data as `torch_runs.torch_step` is."""

    def __init__(self, graph: onnx.ModelProto) -> None:
        self._session = bngrad.session(graph)
        roles = bngrad.read_training_graph(graph)
        self._outputs = {"loss": roles.loss}
        for suffix, pairs in (("_grad", roles.gradients), ("_new", roles.running_statistics)):
            self._outputs |= {f"{name.removeprefix('module.')}{suffix}": output for name, output in pairs.items()}
        session = self._session
        self._inputs = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}

    def __call__(self, state: dict[str, Array], data: list[Array]) -> dict[str, Array]:
        """Runs the graph."""
        feeds = {f"module.{name}": value for name, value in state.items()}
        feeds |= {f"data.{index}": value for index, value in enumerate(data)}
        feeds = {name: value for name, value in feeds.items() if name in self._inputs}
        return dict(zip(self._outputs, self._session.run(list(self._outputs.values()), feeds), strict=True))
