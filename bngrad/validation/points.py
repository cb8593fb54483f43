"""The points at which gradients are compared with central differences, and the loss there in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.validation.branches import held, recorded
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.noise import one_ulp_away

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.float64 import Evaluator
    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

ROUNDING = 1e-14
"""The minimum of the relative rounding error of the loss."""

PERTURBATIONS = 3
"""Number of evaluations with inputs perturbed by one ulp, which measure the rounding error of the loss."""

POINTS = 4
"""The most points at which a gradient is checked: the inputs, and nearby points if the inputs are at a kink."""

POINT_DISTANCE = 1e-3
"""The distance of nearby points, relative to the root mean square of an input."""


class Point(NamedTuple):
    """A point at which the gradients are checked."""

    feeds: dict[str, Array]
    loss: float
    rounding: float
    """The rounding error of the loss."""
    gradients: dict[str, Array]
    branches: list[Any]
    """The branches of piecewise ops, see `bngrad.validation.branches`."""

    def bounds(self, gradients: Mapping[str, str]) -> dict[str, float]:
        """Returns the upper bounds of the derivatives, of those gradients that have one, by their inputs."""
        bounds = {}
        for wrt, output in gradients.items():
            value, gradient = self.feeds[wrt], self.gradients[output]
            if gradient.shape == value.shape and gradient.size and np.isfinite(gradient).all():
                bounds[wrt] = float(np.linalg.norm(gradient)) * direction_length(value.astype(np.float64))
        return bounds


class Points:
    """The inputs and nearby points, each evaluated on first use."""

    def __init__(
        self,
        tested: Evaluator,
        feeds: Mapping[str, Array],
        gradients: Mapping[str, str],
        forward: Forward,
        loss: str,
        seed: int,
    ) -> None:
        self._tested, self._feeds, self._gradients = tested, feeds, gradients
        self._forward, self._loss = forward, loss
        self._generator = np.random.default_rng([seed, 1])
        self._found: list[Point] = []
        self.first = next(iter(self))
        self.finite = bool(np.isfinite(self.first.loss))

    def __iter__(self) -> Iterator[Point]:
        for index in range(POINTS):
            if index == len(self._found):
                self._found.append(self._at(self._feeds if index == 0 else self._moved()))
            yield self._found[index]

    def loss_at(self, feeds: Mapping[str, Array]) -> float:
        """Returns the loss of the forward model.

        Raises:
            EvaluationError: The loss is not a single number; a file may name any output as its loss.
        """
        loss = self._forward.evaluator.from_any(feeds, [self._loss])[self._loss]
        if loss.size != 1:
            raise EvaluationError(f"the loss {self._loss!r} has shape {list(loss.shape)}; expected one number")
        return float(loss.item())

    def loss_beside(self, feeds: Mapping[str, Array], branches: Sequence[Any]) -> float:
        """Returns the loss with the branches of a point beside; NaN if it cannot be evaluated with them."""
        try:
            with held(branches):
                return self.loss_at(feeds)
        except EvaluationError:
            return float(np.nan)

    def _at(self, feeds: Mapping[str, Array]) -> Point:
        with recorded() as branches:
            loss = self.loss_at(feeds)
        losses = []
        for _ in range(PERTURBATIONS):
            perturbed = {
                name: one_ulp_away(feeds[name].astype(np.float64), self._generator) for name in self._gradients
            }
            losses.append(self.loss_beside({**feeds, **perturbed}, branches))
        rounding = max(8 * float(np.ptp(losses)), ROUNDING * abs(loss))
        gradients = self._tested.from_any(feeds, list(self._gradients.values()))
        return Point(dict(feeds), loss, rounding, gradients, branches)

    def _moved(self) -> dict[str, Array]:
        return nearby(self._feeds, self._gradients, self._generator)


def nearby(feeds: Mapping[str, Array], names: Iterable[str], generator: np.random.Generator) -> dict[str, Array]:
    """Returns inputs in float64, some of them moved by `POINT_DISTANCE`."""
    moved = dict(feeds)
    for name in names:
        value = moved[name].astype(np.float64)
        size = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
        moved[name] = value + POINT_DISTANCE * (size or 1.0) * generator.standard_normal(value.shape)
    return moved


def direction_length(value: Array) -> float:
    """Returns the length of directions: as long as the input, but at least 1, for inputs that are zero."""
    return max(float(np.linalg.norm(value)), 1.0)
