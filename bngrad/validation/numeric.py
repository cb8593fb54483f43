"""Comparison of gradients with central differences of the loss in float64, independent of any framework.

For a direction v in the space of an input w, (loss(w + h v) - loss(w - h v)) / (2 h) must equal the sum of
w_grad * v, up to an error of order h^2 plus the rounding error of the loss over h.

If a ReLU unit changes sides within the step, the loss has a kink there, and the central difference is the slope of
neither side. If a gradient disagrees, the difference of the two one-sided slopes shows whether the loss is smooth.
If it is smooth, the gradient is wrong; otherwise a smaller step is used, and finally a nearby point.

In a large network, v moves the inputs of a group of gradients together. If such a group disagrees, its halves are
compared, and at last each gradient by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.double import TESTED, elements_of
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.gradient_groups import SIZE, balanced, derivative, groups_of, moved
from bngrad.validation.points import POINTS, Point, Points, direction_length
from bngrad.validation.report import Check, Row
from bngrad.validation.statistics import WorstSubjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.float64 import Evaluator
    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

STEPS = (1e-5, 1e-6, 1e-7)
"""Step sizes h for directions as long as the input; the smaller ones are for kinks within the first."""

LIMIT = 1e-5
"""The largest allowed error, relative to |w_grad| |v|, the upper bound of the sum."""

KINK = 0.1
"""A kink explains an error if the one-sided slopes differ by at least this fraction of the error."""

MAX_ELEMENTS = 600_000
"""The most elements in inputs and parameters of which each gradient gets a difference of its own."""


_KINK, _NEARBY, _TOGETHER = "a kink within the step", "at a point nearby", "along one direction with"
"""Notes of rows."""


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
    if forward.hidden:
        check.skipped = f"differences of the loss do not show {forward.hidden}"
        return check
    if not gradients:
        check.undecided["gradients"] = "the model has no gradient outputs; expected outputs named <input>_grad"
        return check
    generator, worst = np.random.default_rng(seed), WorstSubjects()
    try:
        points = Points(tested, feeds, gradients, forward, loss, seed)
        if not points.finite:
            value = points.first.loss
            check.undecided["gradients"] = f"the loss is {value} for these inputs; pass others with --inputs"
            return check
        rows = _rows(points, gradients, generator, progress)
        for wrt, output in gradients.items():
            row = rows[wrt]
            if isinstance(row, Row):
                check.rows.append(row)
                worst.offer(output, row.measure, partial(_tensors, points.first, wrt, output))
            else:
                check.undecided[output] = row
    except UnsupportedNodeError as error:
        check.skipped = str(error)
    except EvaluationError as error:
        check.rows.append(_failed("training graph", str(error)))
    check.statistics = worst.worst_first()
    check.notes += _remarks(check.rows)
    return check


def _remarks(rows: Sequence[Row]) -> Iterator[str]:
    grouped = sum(_TOGETHER in row.note for row in rows)
    if grouped:
        yield (
            f"{grouped} gradients were compared in groups of up to {SIZE}, each along one direction: an error of "
            f"one shows from {SIZE * LIMIT:.1g} of its length"
        )
    at_kink = sum(row.passed and (_KINK in row.note or _NEARBY in row.note) for row in rows)
    if at_kink:
        yield f"{at_kink} gradients have a kink of the loss within the step; they were checked beside it"


def _rows(
    points: Points,
    gradients: Mapping[str, str],
    generator: np.random.Generator,
    progress: Callable[[int, int], None],
) -> dict[str, Row | str]:
    """Returns the row of each gradient, or the reason why it cannot be checked, by the gradient's input."""
    rows: dict[str, Row | str] = {}
    if elements_of(points.first.feeds) > MAX_ELEMENTS:
        groups = groups_of(points.first.bounds(gradients))
        while groups:
            group = groups.pop()
            together = _together(points, group, gradients, generator)
            rows |= together
            progress(len(rows), len(gradients))
            if not together and len(group) > 2:  # fewer gradients have fewer kinks, and one may be wrong
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
    for wrt, output in gradients.items():
        if wrt not in rows:
            rows[wrt] = _checked(points, wrt, output, generator)
            progress(len(rows), len(gradients))
    return rows


def _tensors(point: Point, wrt: str, output: str) -> list[tuple[str, str, Array]]:
    return [("input", wrt, point.feeds[wrt]), (f"computed by {TESTED}", output, point.gradients[output])]


def _checked(points: Points, wrt: str, output: str, generator: np.random.Generator) -> Row | str:
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
        direction = _direction(value, gradient, generator)
        result = _slope(points, point, {wrt: gradient}, {wrt: direction})
        if result is not None:
            slope, kink = result
            notes = [_KINK] if kink else []
            notes += [_NEARBY] if number else []
            return _row(output, slope, ", ".join(notes))
    return f"the loss has a kink at the inputs and at {POINTS - 1} points nearby"


def _together(
    points: Points, group: Sequence[str], gradients: Mapping[str, str], generator: np.random.Generator
) -> dict[str, Row]:
    """Returns the rows of a group of gradients, by their inputs; none if they differ, or are at a kink."""
    point = points.first
    own = {wrt: point.gradients[gradients[wrt]] for wrt in group}
    directions = {
        wrt: _direction(point.feeds[wrt].astype(np.float64), gradient, generator) for wrt, gradient in own.items()
    }
    result = _slope(points, point, own, balanced(directions, own))
    if result is None or result[0].measure > LIMIT:
        return {}
    slope, kink = result
    notes = [f"{_TOGETHER} {len(group) - 1} others"] if len(group) > 1 else []
    notes += [_KINK] if kink else []
    return {wrt: _row(gradients[wrt], slope, ", ".join(notes)) for wrt in group}


def _direction(value: Array, gradient: Array, generator: np.random.Generator) -> Array:
    """Returns the sum of a random direction and the gradient's direction, where a wrong factor shows most."""
    direction = generator.standard_normal(value.shape)
    direction /= np.linalg.norm(direction)
    length = float(np.linalg.norm(gradient))
    if length > 0:
        direction = direction + gradient / length
        direction /= np.linalg.norm(direction)
    return np.asarray(direction * direction_length(value))


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
    points: Points, point: Point, gradients: Mapping[str, Array], directions: Mapping[str, Array]
) -> tuple[_Slope, bool] | None:
    """Returns the derivative to judge, and whether the first step has a kink; None if the point is at a kink."""
    got, bound = derivative(directions, gradients)
    first: _Slope | None = None
    for step in STEPS:
        rounding = point.rounding / step
        if first is not None and rounding > KINK * first.error:
            break  # the step is too small compared with the rounding error
        ahead, behind = (
            points.loss_at({**point.feeds, **moved(point.feeds, directions, s * step)}) for s in (1, -1)
        )
        want = (ahead - behind) / (2 * step)
        slope = _Slope(got, want, max(bound, abs(want)), rounding)
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
