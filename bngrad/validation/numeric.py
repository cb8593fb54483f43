"""Comparison of gradients with central differences of the loss in float64, independent of any framework.

For a direction v in the space of an input w, (loss(w + h v) - loss(w - h v)) / (2 h) must equal the sum of
w_grad * v, up to an error of order h^2 plus the rounding error of the loss over h.

A loss with ReLU and MaxPool has kinks, and in a large network each step crosses some. The loss is therefore
evaluated with the branches that these ops take at the inputs (`bngrad.validation.branches`): it is smooth then,
and has the slope that backpropagation computes. Only where the inputs are at a kink, this slope is one of several.

A gradient is right if it agrees at one point, and wrong if it differs at two, where differences of several steps
converge to another slope. Otherwise, as with a kink of an op whose branch is not held, it is not decided.

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
from bngrad.validation.report import ALL_GRADIENTS, Check, Row
from bngrad.validation.statistics import WorstSubjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.float64 import Evaluator
    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

STEPS = (1e-5, 5e-6, 1e-6, 1e-7)
"""Step sizes h for directions as long as the input; the smaller ones are tried if the first disagrees."""

LIMIT = 1e-5
"""The largest allowed error, relative to |w_grad| |v|, the upper bound of the sum."""

CONVERGED = 0.1
"""The part of an error by which the slopes of both sides, and of half the step, may differ if they converge."""

MAX_ELEMENTS = 600_000
"""The most elements in inputs and parameters of which each gradient gets a difference of its own."""

DISAGREEING = 5
"""The most gradients of groups that disagree, of which each gets a difference of its own that does not agree."""

DIFFERING = 2
"""The number of points at which a wrong gradient differs: the limit of one side of a kink differs at one."""

_KINK, _NEARBY, _TOGETHER = "a kink within the step", "at a point nearby", "along one direction with"
"""Notes of rows."""

_NOT_BY_ITSELF = f"its group disagrees; {DISAGREEING} gradients of such groups, compared by themselves, do too"
"""The reason why a gradient is not decided."""


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
        check.undecided[ALL_GRADIENTS] = "the model has no gradient outputs; expected outputs named <input>_grad"
        return check
    generator, worst = np.random.default_rng(seed), WorstSubjects()
    try:
        points = Points(tested, feeds, gradients, forward, loss, seed)
        if not points.finite:
            value = points.first.loss
            check.undecided[ALL_GRADIENTS] = f"the loss is {value} for these inputs; pass others with --inputs"
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
    grouped = elements_of(points.first.feeds) > MAX_ELEMENTS
    groups = groups_of(points.first.bounds(gradients)) if grouped else []
    inside = {wrt for group in groups for wrt in group}
    groups += [[wrt] for wrt in gradients if wrt not in inside][::-1]
    disagreeing = 0
    while groups:
        group = groups.pop()
        if len(group) == 1:
            row = rows[group[0]] = _checked(points, group[0], gradients[group[0]], generator)
            disagreeing += grouped and not (isinstance(row, Row) and row.passed)
        elif together := _together(points, group, gradients, generator):
            rows |= together
        elif disagreeing < DISAGREEING:  # fewer gradients hide less, and one may be wrong
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        else:
            rows |= dict.fromkeys(group, _NOT_BY_ITSELF)
        progress(len(rows), len(gradients))
    return rows


def _tensors(point: Point, wrt: str, output: str) -> list[tuple[str, str, Array]]:
    return [("input", wrt, point.feeds[wrt]), (f"computed by {TESTED}", output, point.gradients[output])]


def _checked(points: Points, wrt: str, output: str, generator: np.random.Generator) -> Row | str:
    """Returns the row of a gradient, or the reason why it cannot be checked."""
    differing: list[Row] = []
    for number, point in enumerate(points):
        value, gradient = point.feeds[wrt].astype(np.float64), point.gradients[output]
        if gradient.shape != value.shape:
            return _failed(output, f"shape {list(gradient.shape)}; expected {list(value.shape)}")
        if not np.isfinite(point.loss):
            continue
        if not np.isfinite(gradient).all():
            return _failed(output, f"it is not finite where the loss is {point.loss:.6g}")
        if value.size == 0:
            return _row(output, _Slope(0.0, 0.0, 1.0, 0.0, 0.0), "it has no elements")
        direction = _direction(value, gradient, generator)
        slopes: list[_Slope] = []
        for slope in _slopes(points, point, {wrt: gradient}, {wrt: direction}):
            slopes.append(slope)
            if slope.agrees:
                notes = [_KINK] if len(slopes) > 1 else []
                notes += [_NEARBY] if number else []
                return _row(output, slope, ", ".join(notes))
        if _converge(slopes):
            differing.append(_row(output, slopes[0], ""))
            if len(differing) == DIFFERING:
                return differing[0]
    return f"differences of the loss do not converge at the inputs, or at {POINTS - 1} points nearby"


def _together(
    points: Points, group: Sequence[str], gradients: Mapping[str, str], generator: np.random.Generator
) -> dict[str, Row]:
    """Returns the rows of a group of gradients, by their inputs; none if they differ, or are at a kink."""
    point = points.first
    own = {wrt: point.gradients[gradients[wrt]] for wrt in group}
    directions = {
        wrt: _direction(point.feeds[wrt].astype(np.float64), gradient, generator) for wrt, gradient in own.items()
    }
    note = f"{_TOGETHER} {len(group) - 1} others"
    for slope in _slopes(points, point, own, balanced(directions, own)):
        if slope.agrees:
            return {wrt: _row(gradients[wrt], slope, note) for wrt in group}
        if slope.smooth:
            break
        note = f"{_TOGETHER} {len(group) - 1} others, {_KINK}"
    return {}


def _direction(value: Array, gradient: Array, generator: np.random.Generator) -> Array:
    """Returns the sum of a random direction and the gradient's direction, where a wrong factor shows most."""
    direction = generator.standard_normal(value.shape)
    direction /= np.linalg.norm(direction)
    length = float(np.linalg.norm(gradient))
    if length > 0:
        along = gradient / length
        # With the sign of the gradient, so that the two do not cancel out, as those of one element could.
        direction = np.copysign(1.0, np.sum(direction * along)) * direction + along
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
    bend: float
    """The difference of the slopes of both sides: the step times the curvature, or the change at a kink."""

    @property
    def error(self) -> float:
        return abs(self.got - self.want)

    @property
    def measure(self) -> float:
        # All terms are zero if the loss does not depend on the input, such as a sum over no elements.
        return self.error and self.error / (self.scale + self.rounding / LIMIT)

    @property
    def agrees(self) -> bool:
        return self.measure <= LIMIT

    @property
    def smooth(self) -> bool:
        return self.bend < CONVERGED * self.error


def _slopes(
    points: Points, point: Point, gradients: Mapping[str, Array], directions: Mapping[str, Array]
) -> Iterator[_Slope]:
    """Yields the derivative for each step that is not too small compared with the rounding error."""
    got, bound = derivative(directions, gradients)
    error = np.inf
    for step in STEPS:
        rounding = point.rounding / step
        if rounding > CONVERGED * error:
            break
        ahead, behind = (
            points.loss_beside({**point.feeds, **moved(point.feeds, directions, side)}, point.branches)
            for side in (step, -step)
        )
        want = (ahead - behind) / (2 * step)
        bend = abs(ahead + behind - 2 * point.loss) / step
        slope = _Slope(got, want, max(bound, abs(want)), rounding, bend)
        yield slope
        error = min(error, slope.error)


def _converge(slopes: Sequence[_Slope]) -> bool:
    """Returns whether several steps, and both sides of the last one, have a slope that the gradient is not."""
    steady = all(abs(slope.want - slopes[-1].want) < CONVERGED * slope.error for slope in slopes)
    return len(slopes) > 1 and steady and slopes[-1].smooth


def _row(output: str, slope: _Slope, note: str) -> Row:
    relative = slope.error / abs(slope.want) if slope.want else float(slope.error > 0)
    return Row(
        output, output, "gradient", TESTED, "differences", slope.error, relative, slope.measure, slope.agrees, note
    )


def _failed(output: str, note: str) -> Row:
    inf = float(np.inf)
    return Row(output, output, "gradient", TESTED, "differences", inf, inf, inf, passed=False, note=note)
