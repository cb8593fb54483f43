"""The error of a training graph in units of the error of another float32 program, both measured from float64.

The graph, the program, and the program in float64 run a few steps from the same states. The measure of an output
is

    max over steps ||graph - float64|| / max over steps ||program - float64||

where the denominator, the unit, is at least a few roundings of the output (`bngrad.validation.noise`).

A unit at the kink of its ReLU may be on either side by chance, and then changes some gradients by many times their
usual error. A step in which an output is above the limit is therefore repeated from slightly different states, and
the *closest* of its results counts: chance differs from state to state, while an error is in all results.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bngrad.validation.noise import at_least_rounding, spacing
from bngrad.validation.report import Row, differences, distance, norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.report import Check

    Array = NDArray[Any]

State = TypeVar("State")

LIMIT = 10.0
"""The largest error of the graph that passes, in units of the program's."""

REPEATS = 4
"""The number of further states from which a step is repeated."""


class Results(NamedTuple):
    """The outputs of a step by name."""

    got: Mapping[str, Array]
    """The outputs of the training graph."""
    float32: Mapping[str, Array]
    """The outputs of the other program, in its own type."""
    float64: Mapping[str, Array]
    """The outputs of the other program in float64, which are the reference."""


class _Error(NamedTuple):
    """The errors of an output of a step."""

    got: float
    """The distance of the graph from float64; infinity if it has no such output."""
    own: float
    """The distance of the other program."""
    size: float
    """The norm of the output in float64."""
    rounding: float
    """The relative spacing of the program's type."""
    differences: tuple[float, float]
    """The differences of the graph from float64, see `bngrad.validation.report.differences`."""
    note: str


def float32_error(
    check: Check,
    run: Callable[[State], Results],
    state: State,
    *,
    steps: int,
    following: Callable[[State, Results], State],
    varied: Callable[[State, int], State],
    kind_of: Callable[[str], str],
    implementation: str,
    against: str,
) -> None:
    """Adds a row to a check for each output in float64; its measure is limited by the check's limit.

    Args:
        check: The check.
        run: Runs a step of the three programs from a state.
        state: The first state.
        steps: The number of steps.
        following: Returns the state after a step, given its results.
        varied: Returns a state that differs slightly from another; the number is a seed.
        kind_of: Returns the kind of an output: ``loss``, ``gradient``, ``buffer``.
        implementation: The name of what computes `Results.got`, for the report.
        against: The name of what computes `Results.float64`, for the report.
    """
    starts, trials = [], []
    for _ in range(steps):
        results = run(state)
        starts.append(state)
        trials.append([_errors(results)])
        state = following(state, results)
    for seed in range(REPEATS + 1):
        units = _units(trials, kind_of)
        doubtful = [index for index, tries in enumerate(trials) if _is_above(tries, units, check.limit)]
        if not doubtful or seed == REPEATS:
            break
        for index in doubtful:
            trials[index].append(_errors(run(varied(starts[index], seed))))
    for name, unit in units.items():
        worst = max((_closest(tries, name) for tries in trials), key=lambda error: error.got)
        measure = _measure(worst, unit)
        note = worst.note or f"{against}'s own error is {unit / (worst.size or 1.0):.1e}"
        passed = measure <= check.limit
        row = Row(name, name, kind_of(name), implementation, against, *worst.differences, measure, passed, note)
        check.rows.append(row)


def _errors(results: Results) -> dict[str, _Error]:
    return {name: _error(results, name) for name in results.float64}


def _error(results: Results, name: str) -> _Error:
    own, exact = results.float32[name], results.float64[name]
    size = norm(exact)
    note = "the graph has no such output"
    if (got := results.got.get(name)) is not None:
        note = "" if got.shape == exact.shape else f"shape {list(got.shape)}; expected {list(exact.shape)}"
    if got is None or note:
        return _Error(inf, distance(own, exact), size, spacing(own), (inf, inf), note)
    return _Error(distance(got, exact), distance(own, exact), size, spacing(own), differences(got, exact), "")


def _units(trials: Sequence[Sequence[Mapping[str, _Error]]], kind_of: Callable[[str], str]) -> dict[str, float]:
    """Returns the unit of each output: the largest error of the other program in any state."""
    tries = [errors for tries in trials for errors in tries]
    names = list(dict.fromkeys(name for errors in tries for name in errors))
    per_name = {name: [errors[name] for errors in tries if name in errors] for name in names}
    return at_least_rounding(
        {
            name: max((error.own for error in errors if isfinite(error.own)), default=0.0)
            for name, errors in per_name.items()
        },
        {name: max(error.size for error in errors) for name, errors in per_name.items()},
        {name: errors[0].rounding for name, errors in per_name.items()},
        {name: kind_of(name) for name in names},
    )


def _is_above(tries: Sequence[Mapping[str, _Error]], units: Mapping[str, float], limit: float) -> bool:
    return any(not _measure(_closest(tries, name), unit) <= limit for name, unit in units.items())


def _closest(tries: Sequence[Mapping[str, _Error]], name: str) -> _Error:
    absent = _Error(0.0, 0.0, 0.0, 0.0, (0.0, 0.0), "")
    return min((errors[name] for errors in tries if name in errors), key=lambda error: error.got, default=absent)


def _measure(error: _Error, unit: float) -> float:
    return 0.0 if error.got == 0 else error.got / unit if unit else inf
