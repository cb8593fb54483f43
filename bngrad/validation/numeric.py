"""Gradients against central differences of the loss in float64: an oracle that no framework's mistakes reach.

For a direction v in the space of an input w: (loss(w + h v) - loss(w - h v)) / (2 h) has to be the sum of
w_grad * v. The error of the difference is of order h^2, and of the loss's rounding over h.

A unit of a ReLU that changes sides within the step bends the loss there, and the difference is the slope of
neither side. Where a gradient disagrees, the difference of the two one-sided slopes tells whether the loss is
smooth: if it is, the gradient is wrong; if not, a smaller step is taken, and in the end a point nearby.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.double import TESTED, too_large
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.noise import one_ulp_away
from bngrad.validation.report import Check, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from bngrad.validation.float64 import Evaluator
    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

STEPS = (1e-5, 1e-6, 1e-7)
"""Relative to a direction as long as the input itself; the smaller ones where a kink is within the first."""

LIMIT = 1e-5
"""Relative to |w_grad| |v|, the most that the sum could be."""

ROUNDING = 1e-14
"""The rounding error of the loss, relative to it, at least."""

MOVES = 2
"""How many evaluations with every input moved by its last bit tell how large the rounding error is."""

POINTS = 4
"""Where a gradient is looked at, at most: at the inputs, and at points nearby where they are on a kink."""

MOVE = 1e-3
"""How far the points nearby are, relative to an input's root mean square."""

KINK = 0.1
"""How much of a disagreement the two one-sided slopes have to differ by for a kink to be its reason."""

MAX_ELEMENTS = 600_000
"""Fewer than for a single evaluation: every gradient costs two."""


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
        feeds: Its inputs, and others.
        gradients: Its outputs that are gradients, by the names of inputs of both.
        forward: The forward model.
        loss: The value of the forward model that was differentiated.
        seed: For the directions.
        progress: Called with the number of gradients done, and of all.
    """
    # Nothing else compares the gradients with anything but our own training graph.
    check = Check("central differences", unit="relative", limit=LIMIT, required=True)
    check.skipped = too_large(feeds, MAX_ELEMENTS)
    if check.skipped:
        return check
    if not gradients:
        check.undecided["gradients"] = "no output is one; expected outputs called <input>_grad"
        return check
    generator = np.random.default_rng(seed)
    try:
        points = _Points(tested, feeds, gradients, forward, loss, seed)
        if not points.finite:
            value = points.first.loss
            check.undecided["gradients"] = f"the loss is {value} at these inputs; give others with --inputs"
            return check
        for done, (wrt, output) in enumerate(gradients.items(), start=1):
            row = _checked(points, wrt, output, generator)
            if isinstance(row, Row):
                check.rows.append(row)
            else:
                check.undecided[output] = row
            progress(done, len(gradients))
    except UnsupportedNodeError as error:
        check.skipped = str(error)
    except EvaluationError as error:
        check.rows.append(_failed("training graph", str(error)))
    beside = sum(bool(row.note) and row.passed for row in check.rows)
    if beside:
        check.notes.append(
            f"{beside} gradients have a kink of the loss within the step, and were checked beside it"
        )
    return check


class _Point(NamedTuple):
    """Where the gradients are looked at."""

    feeds: dict[str, Array]
    loss: float
    rounding: float
    """The rounding error of the loss."""
    gradients: dict[str, Array]


class _Points:
    """The inputs, and points nearby; each is evaluated when it is first asked for."""

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
        """The loss of the forward model."""
        return float(self._forward.evaluator.from_any(feeds, [self._loss])[self._loss].item())

    def _at(self, feeds: Mapping[str, Array]) -> _Point:
        loss, rounding = self.loss_at(feeds), 0.0
        for _ in range(MOVES):
            moved = {
                name: one_ulp_away(feeds[name].astype(np.float64), self._generator) for name in self._gradients
            }
            rounding = max(rounding, 8 * abs(self.loss_at({**feeds, **moved}) - loss))
        rounding = max(rounding, ROUNDING * abs(loss))
        return _Point(dict(feeds), loss, rounding, self._tested.from_any(feeds, list(self._gradients.values())))

    def _moved(self) -> dict[str, Array]:
        moved = dict(self._feeds)
        for name in self._gradients:
            value = moved[name].astype(np.float64)
            size = float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0
            moved[name] = value + MOVE * (size or 1.0) * self._generator.standard_normal(value.shape)
        return moved


def _checked(points: _Points, wrt: str, output: str, generator: np.random.Generator) -> Row | str:
    """The row of a gradient; or why it cannot be decided."""
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
        found = _slope(points, point, wrt, gradient, _direction(value, gradient, generator))
        if found is not None:
            slope, kink = found
            notes = ["a kink within the step"] if kink else []
            notes += ["at a point nearby"] if number else []
            return _row(output, slope, ", ".join(notes))
    return f"the loss has a kink at the inputs and at {POINTS - 1} points nearby"


def _direction(value: Array, gradient: Array, generator: np.random.Generator) -> Array:
    """A random direction, and as much of the gradient's own: its length is what a wrong factor changes most."""
    direction = generator.standard_normal(value.shape)
    direction /= np.linalg.norm(direction)
    length = float(np.linalg.norm(gradient))
    if length > 0:
        direction = direction + gradient / length
        direction /= np.linalg.norm(direction)
    # As long as the input, but for one that is zero: a bias that has not been trained.
    return np.asarray(direction * max(float(np.linalg.norm(value)), 1.0))


class _Slope(NamedTuple):
    """A derivative of the loss along a direction."""

    got: float
    """By the gradient."""
    want: float
    """By the loss."""
    scale: float
    """The most that it could be."""
    rounding: float
    """The error of ``want`` by rounding."""

    @property
    def error(self) -> float:
        return abs(self.got - self.want)

    @property
    def measure(self) -> float:
        # All is zero where nothing reaches the loss, such as a sum over no elements.
        return self.error and self.error / (self.scale + self.rounding / LIMIT)


def _slope(
    points: _Points, point: _Point, wrt: str, gradient: Array, direction: Array
) -> tuple[_Slope, bool] | None:
    """The derivative that decides, and whether a kink is within the first step; None if the point is on one."""
    got = float(np.sum(gradient * direction))
    length = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
    value = point.feeds[wrt].astype(np.float64)
    first: _Slope | None = None
    for step in STEPS:
        rounding = point.rounding / step
        if first is not None and rounding > KINK * first.error:
            break  # too small a step to tell
        ahead, behind = (points.loss_at({**point.feeds, wrt: value + s * step * direction}) for s in (1, -1))
        want = (ahead - behind) / (2 * step)
        slope = _Slope(got, want, max(length, abs(want)), rounding)
        # What the one-sided slopes differ by: the step times the curvature, or twice what a kink adds.
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
