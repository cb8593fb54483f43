"""Directional derivatives of a forward graph, by central differences in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradient_fuzz.interpreter import Interpreter, wide

if TYPE_CHECKING:
    from gradient_fuzz.cases import Case

STEPS = (3e-5, 1e-5)
"""The step of a difference, along a direction of length 1 for each element."""
ROUNDINGS = 4


class Differences:
    """Directional derivatives of a case's loss."""

    def __init__(self, case: Case) -> None:
        self._forward = Interpreter(case.model, case.frozen, case.training)
        self._feeds = {name: wide(array) for name, array in case.values.items()}
        self.at = self._forward.run(self._feeds)
        self.loss = float(np.squeeze(self.at["loss"]))
        floats = [array for array in map(np.asarray, self.at.values()) if array.dtype.kind == "f"]
        self.size = max(float(np.max(np.abs(array), where=np.isfinite(array), initial=0)) for array in floats)

    def rounding(self, unit: float) -> float:
        """Returns the error of the loss where every result of a node is off by a unit, at random.

        Raises:
            TypeError, ValueError: In each trial, a shape that is computed from floats jumped.
        """
        errors, failures = [], []
        for seed in range(ROUNDINGS):
            try:
                errors.append(abs(self._forward.loss(self._feeds, unit, seed) - self.loss))
            except (TypeError, ValueError) as failure:
                failures.append(failure)
        if not errors:
            raise failures[0]
        return max(errors)

    def along(
        self, name: str, direction: np.ndarray, noise: float = 0.0, seed: int = 0
    ) -> tuple[float, float, bool]:
        """Returns the derivative, its largest error, and whether there is no kink."""
        x = self._feeds[name]
        middle = self._forward.loss(self._feeds, noise, seed) if noise else self.loss
        slopes, bends = [], []
        for step in STEPS:
            ahead, behind = (
                self._forward.loss({**self._feeds, name: x + sign * step * direction}, noise, seed)
                for sign in (1, -1)
            )
            slopes.append((ahead - behind) / (2 * step))
            bends.append(abs(ahead + behind - 2 * middle) / step)
        rounding = 1e-14 * max(self.size, abs(self.loss), 1) / STEPS[1]
        error = abs(slopes[0] - slopes[1]) + rounding
        scale = max(abs(slopes[1]), 1e-3)
        # Of a smooth function a bend is proportional to the step; of a kink it stays.
        smooth = bends[1] <= 1e-3 * scale + 2 * rounding or bends[1] <= 0.6 * bends[0]
        return slopes[1], error, bool(smooth and error <= 1e-3 * scale + 10 * rounding)
