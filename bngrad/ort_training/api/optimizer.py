"""The optimizer in a training loop."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from bngrad.ort_training.api.optimizer_graph import read_optimizer_graph
from bngrad.ort_training.api.stateful_session import StatefulSession, value_of
from bngrad.ort_training.checkpoint_file import FIRST_RATE, GROUP, OptimizerGroup
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError

if TYPE_CHECKING:
    from bngrad.ort_training.api.module import Module

_MOMENTS = {"first_order_moments": "momentum0", "second_order_moments": "momentum1"}
"""The name of a moment in the checkpoint, by the input of the optimizer's graph."""


class Optimizer:
    """Updates the parameters of a module by its gradients.

    The moments and the number of updates are those of the state, if its checkpoint has them; else they are zero.
    The learning rate is 0.001 at first, also after a checkpoint; the optimizers of one state share it.

    Args:
        optimizer_uri: The path of the optimizer model: AdamW or SGD, of this package or of `onnxruntime.training`.
        module: The module.

    Raises:
        OrtTrainingError: The file cannot be read, or is not of this state.
    """

    def __init__(self, optimizer_uri: str | bytes | os.PathLike[str], module: Module) -> None:
        self._state = module._state  # noqa: SLF001 - parts of one object
        checkpoint, vectors = self._state.checkpoint, self._state.vectors
        if "params" not in vectors:
            other = next(name for name, array in checkpoint.trainable.items() if array.dtype != np.float32)
            raise OrtTrainingError(f"parameter {other!r} is {checkpoint.trainable[other].dtype}; expected float32")
        if missing := [name for name in checkpoint.trainable if name not in self._state.gradients]:
            raise OrtTrainingError(f"the training model has no gradient of the trainable parameter {missing[0]!r}")
        path = os.fsdecode(optimizer_uri)
        graph = read_optimizer_graph(path, vectors["params"].size)
        if unknown := [name for name in graph.vectors if name not in ("params", "gradients", *_MOMENTS)]:
            raise OrtTrainingError(f"{path} has the input {unknown[0]!r}, which is not a known state")
        moments = {key: _MOMENTS[key] for key in graph.vectors if key in _MOMENTS}
        self._group = self._resumed(list(moments.values()))
        self._state.allocate_moments(self._group, moments)
        self._session = StatefulSession(
            graph.model,
            {name: vectors[name] for name in graph.vectors},
            graph.updates,
            module._device,  # noqa: SLF001
            module._session_options,  # noqa: SLF001
        )

    def step(self) -> None:
        """Updates the parameters, the moments and the number of updates.

        Raises:
            OrtTrainingError: The state is nominal.
        """
        self._state.require_values()
        count = self._group.step + 1
        feeds = {
            "learning_rate": value_of("learning_rate", np.array([self._group.learning_rate], np.float32)),
            "step": value_of("step", np.array([count], np.int64)),
        }
        self._session.run(feeds, [])
        self._group.step = count

    def set_learning_rate(self, learning_rate: SupportsFloat) -> None:
        """Sets the learning rate, as float32.

        Raises:
            OrtTrainingTypeError: It is not a number.
            OrtTrainingError: It is not finite.
        """
        if not isinstance(learning_rate, SupportsFloat):
            raise OrtTrainingTypeError(f"learning_rate is a {type(learning_rate).__name__}; expected a float")
        try:
            with np.errstate(over="ignore"):
                rounded = float(np.float32(float(learning_rate)))
        except (TypeError, OverflowError) as error:
            raise OrtTrainingTypeError(f"learning_rate cannot be converted ({error}); expected a float") from None
        if not math.isfinite(rounded):
            raise OrtTrainingError(f"learning_rate is {learning_rate}; expected a finite number")
        self._group.learning_rate = rounded

    def get_learning_rate(self) -> float:
        """Returns the learning rate."""
        return self._group.learning_rate

    def _resumed(self, moments: list[str]) -> OptimizerGroup:
        """The optimizer's state that the checkpoint has, or a new one, which becomes part of the state.

        Raises:
            OrtTrainingError: It is of other parameters or of another optimizer.
        """
        checkpoint = self._state.checkpoint
        expected = {name: dict.fromkeys(moments, array.shape) for name, array in checkpoint.trainable.items()}
        group = checkpoint.groups.get(GROUP)
        if group is None:
            zeros = {
                name: {moment: np.zeros(shape, np.float32) for moment, shape in shapes.items()}
                for name, shapes in expected.items()
            }
            group = checkpoint.groups[GROUP] = OptimizerGroup(0, FIRST_RATE, zeros)
        actual = {
            name: {moment: array.shape for moment, array in arrays.items() if array.dtype == np.float32}
            for name, arrays in group.momentums.items()
        }
        for name in sorted({*expected, *actual}):
            if actual.get(name) != expected.get(name):
                raise OrtTrainingError(
                    "the optimizer's state in the checkpoint is of another model or optimizer: for parameter "
                    f"{name!r} it has {actual.get(name, 'nothing')}; expected {expected.get(name, 'nothing')}"
                )
        return group
