"""A learning rate that climbs linearly, then falls linearly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    from bngrad.ort_training.api.optimizer import Optimizer


class LinearLRScheduler:
    """Sets the learning rate of an optimizer by the number t of updates that it has made.

    With W warm-up steps of T steps in total it is ``initial_lr`` times t / W while t < W, then
    max(0, (T - t) / (T - W)), with at least 1 for each divisor. `onnxruntime.training` documents this, but swaps W
    and T.

    The rate is set when the scheduler is made, and by `step`. A checkpoint has ``initial_lr`` from then on.

    Args:
        optimizer: The optimizer.
        warmup_step_count: W.
        total_step_count: T.
        initial_lr: The highest rate.

    Raises:
        OrtTrainingError: A count is negative, or the rate is not finite.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float
    ) -> None:
        for name, count in (("warmup_step_count", warmup_step_count), ("total_step_count", total_step_count)):
            if count < 0:
                raise OrtTrainingError(f"{name} is {count}; expected 0 or more")
        if not math.isfinite(initial_lr):
            raise OrtTrainingError(f"initial_lr is {initial_lr}; expected a finite number")
        self._optimizer = optimizer
        self._warmup = warmup_step_count
        self._total = total_step_count
        self._initial = initial_lr
        self.step()
        optimizer._group.initial_learning_rate = float(np.float32(initial_lr))  # noqa: SLF001 - of the checkpoint

    def step(self) -> None:
        """Sets the rate for the next update; to be called after `Optimizer.step`."""
        done = self._optimizer._group.step  # noqa: SLF001 - not a public number
        if done < self._warmup:
            factor = done / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - done) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial * factor)
