"""Comparison of gradients with central differences of the loss in float64, independent of any framework.

For a direction v in the space of an input w, (loss(w + h v) - loss(w - h v)) / (2 h) must equal the sum of
w_grad * v, up to an error of order h^2 plus the rounding error of the loss over h.

If a ReLU unit changes sides within the step, the loss has a kink there, and the central difference is the slope of
neither side. If a gradient disagrees, the difference of the two one-sided slopes shows whether the loss is smooth.
If it is smooth, the gradient is wrong; otherwise a smaller step is used, and finally a nearby point.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.double import TESTED, too_large
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.noise import one_ulp_away
from bngrad.validation.report import Check, Row
from bngrad.validation.statistics import WorstSubjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from bngrad.validation.float64 import Evaluator
    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

STEPS = (1e-5, 1e-6, 1e-7)
"""Step sizes h for directions as long as the input; the smaller ones are for kinks within the first."""

LIMIT = 1e-5
"""The largest allowed error, relative to |w_grad| |v|, the upper bound of the sum."""

ROUNDING = 1e-14
"""The minimum of the relative rounding error of the loss."""

PERTURBATIONS = 2
"""Number of evaluations with inputs perturbed by one ulp, which measure the rounding error of the loss."""

POINTS = 4
"""The most points at which a gradient is checked: the inputs, and nearby points if the inputs are at a kink."""

POINT_DISTANCE = 1e-3
"""The distance of nearby points, relative to the root mean square of an input."""

KINK = 0.1
"""A kink explains an error if the one-sided slopes differ by at least this fraction of the error."""

MAX_ELEMENTS = 600_000
"""The most elements in inputs and parameters; lower than for one evaluation, because each gradient needs two."""


def central_differences(
    tested: Evaluator,
    feeds: Mapping[str, Array],
    *,
    gradients: Mapping[str, str],
    forward: Forward,
    loss: str,
    seed: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Compares gradients of a training graph with central differences of a forward model's loss.

    Args:
        tested: The training graph.
        feeds: The inputs; others are ignored.
        gradients: The gradient outputs, by the names of the inputs of both models that they belong to.
        forward: The forward model.
        loss: The name of the loss in the forward model.
        seed: Seed of the directions.
        progress: Called with the number of completed gradients and of all gradients.
    """
    # Required: no other check compares the gradients with anything but our own training graph.
    check = Check("central differences", unit="relative", limit=LIMIT, required=True)
    check.skipped = too_large(feeds, MAX_ELEMENTS)
    if check.skipped:
        return check
    if forward.stops:
        check.skipped = f"differences of the loss do not show what {forward.stops} stops"
        return check
    if not gradients:
        check.undecided["gradients"] = "the model has no gradient outputs; expected outputs named <input>_grad"
        return check
    generator, worst = np.random.default_rng(seed), WorstSubjects()
    try:
        points = _Points(tested, feeds, gradients, forward, loss, seed)
        if not points.finite:
            value = points.first.loss
            check.undecided["gradients"] = f"the loss is {value} for these inputs; pass others with --inputs"
            return check
        for done, (wrt, output) in enumerate(gradients.items(), start=1):
            row = _checked(points, wrt, output, generator)
            if isinstance(row, Row):
                check.rows.append(row)
                worst.offer(output, row.measure, partial(_tensors, points.first, wrt, output))
            else:
                check.undecided[output] = row
            progress(done, len(gradients))
    except UnsupportedNodeError as error:
        check.skipped = str(error)
    except EvaluationError as error:
        check.rows.append(_failed("training graph", str(error)))
    check.statistics = worst.worst_first()
    at_kink = sum(bool(row.note) and row.passed for row in check.rows)
    if at_kink:
        check.notes.append(
            f"{at_kink} gradients have a kink of the loss within the step; they were checked beside it"
        )
    return check


class _Point(NamedTuple):
    """A point at which the gradients are checked."""

    feeds: dict[str, Array]
    loss: float
    rounding: float
    """The rounding error of the loss."""
    gradients: dict[str, Array]


class _Points:
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
        self._found: list[_Point] = []
        self.first = next(iter(self))
        self.finite = bool(np.isfinite(self.first.loss))

    def __iter__(self) -> Iterator[_Point]:
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

    def _at(self, feeds: Mapping[str, Array]) -> _Point:
        loss, rounding = self.loss_at(feeds), 0.0
        for _ in range(PERTURBATIONS):
            perturbed = {
                name: one_ulp_away(feeds[name].astype(np.float64), self._generator) for name in self._gradients
            }
            rounding = max(rounding, 8 * abs(self.loss_at({**feeds, **perturbed}) - loss))
        rounding = max(rounding, ROUNDING * abs(loss))
        return _Point(dict(feeds), loss, rounding, self._tested.from_any(feeds, list(self._gradients.values())))

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


def _tensors(point: _Point, wrt: str, output: str) -> list[tuple[str, str, Array]]:
    return [("input", wrt, point.feeds[wrt]), (f"computed by {TESTED}", output, point.gradients[output])]


def _checked(points: _Points, wrt: str, output: str, generator: np.random.Generator) -> Row | str:
    """Returns the row of a gradient, or the reason why it cannot be checked."""
    for number, point in enumerate(points):
        value, gradient = point.feeds[wrt].astype(np.float64), point.gradients[output]
        if gradient.shape != value.shape:
            return _failed(output, f"shape {list(gradient.shape)}; expected {list(value.shape)}")
        if not np.isfinite(point.loss):
            continue
        if not np.isfinite(gradient).all():
            return _failed(output, f"it is not finite where the loss is {point.loss:.6g}")
        if value.size == 0:
            return _row(output, _Slope(0.0, 0.0, 1.0, 0.0), "it has no elements")
        result = _slope(points, point, wrt, gradient, _direction(value, gradient, generator))
        if result is not None:
            slope, kink = result
            notes = ["a kink within the step"] if kink else []
            notes += ["at a point nearby"] if number else []
            return _row(output, slope, ", ".join(notes))
    return f"the loss has a kink at the inputs and at {POINTS - 1} points nearby"


def _direction(value: Array, gradient: Array, generator: np.random.Generator) -> Array:
    """Returns the sum of a random direction and the gradient's direction, where a wrong factor shows most."""
    direction = generator.standard_normal(value.shape)
    direction /= np.linalg.norm(direction)
    length = float(np.linalg.norm(gradient))
    if length > 0:
        direction = direction + gradient / length
        direction /= np.linalg.norm(direction)
    # As long as the input, but at least 1, for inputs that are zero such as untrained biases.
    return np.asarray(direction * max(float(np.linalg.norm(value)), 1.0))


class _Slope(NamedTuple):
    """A derivative of the loss along a direction."""

    got: float
    """The derivative according to the gradient."""
    want: float
    """The central difference of the loss."""
    scale: float
    """The upper bound of the derivative."""
    rounding: float
    """The rounding error of ``want``."""

    @property
    def error(self) -> float:
        return abs(self.got - self.want)

    @property
    def measure(self) -> float:
        # All terms are zero if the loss does not depend on the input, such as a sum over no elements.
        return self.error and self.error / (self.scale + self.rounding / LIMIT)


def _slope(
    points: _Points, point: _Point, wrt: str, gradient: Array, direction: Array
) -> tuple[_Slope, bool] | None:
    """Returns the derivative to judge, and whether the first step has a kink; None if the point is at a kink."""
    got = float(np.sum(gradient * direction))
    length = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
    value = point.feeds[wrt].astype(np.float64)
    first: _Slope | None = None
    for step in STEPS:
        rounding = point.rounding / step
        if first is not None and rounding > KINK * first.error:
            break  # the step is too small compared with the rounding error
        ahead, behind = (points.loss_at({**point.feeds, wrt: value + s * step * direction}) for s in (1, -1))
        want = (ahead - behind) / (2 * step)
        slope = _Slope(got, want, max(length, abs(want)), rounding)
        # The difference of the one-sided slopes: the step times the curvature, or the change of slope at a kink.
        bend = abs(ahead + behind - 2 * point.loss) / step
        if slope.measure <= LIMIT or bend < KINK * slope.error:
            return slope, first is not None
        first = first or slope
    return None


def _row(output: str, slope: _Slope, note: str) -> Row:
    relative = slope.error / abs(slope.want) if slope.want else float(slope.error > 0)
    passed = slope.measure <= LIMIT
    return Row(
        output, output, "gradient", TESTED, "differences", slope.error, relative, slope.measure, passed, note
    )


def _failed(output: str, note: str) -> Row:
    inf = float(np.inf)
    return Row(output, output, "gradient", TESTED, "differences", inf, inf, inf, passed=False, note=note)
