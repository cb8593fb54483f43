"""Whole graphs: the rewritten one differs from the original by no more than the last bit of the inputs does.

What one-ulp moves of all float inputs do to a gradient is the noise floor of that gradient: an answer closer to
the original than a few times that cannot be told from it, and one further away is wrong. The floor is measured,
for it depends on the network: about 1e-7 for a loss, 1e-2 for a gradient deep inside, 1 for a gradient that is
zero in exact arithmetic.

A unit that sits on the kink of its ReLU is on either side by chance, and changes a few gradients by a thousand
times their floor. So both graphs run on the same moves, and the *closest* two of their answers are compared:
chance is on both sides, while a mistake is in every answer of one graph and in none of the other.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.runtime.session import session
from bngrad.validation.inputs import feeds_of
from bngrad.validation.report import Check, Row, differences, distance, norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.oracle import Oracle
    from bngrad.runtime.session import Provider

    Array = NDArray[Any]

MOVES = 4
"""How many random moves of the inputs there are, beside the inputs as they are."""

LIMIT = 4.0
"""How many times the noise floor the closest answers may differ by.

The floor is the largest distance between a few answers of one graph, so the closest answers of two right graphs
are below it; this leaves room for the chance that all answers of one graph fell on the same side of a kink.
"""

_ROUNDINGS = 8
"""The floor of a tensor that the moves hardly change, in roundings of its type."""

_NEGLIGIBLE = 1e-2
"""Of the largest of its kind: a gradient that is zero in exact arithmetic is compared as if it were this large."""


def noise_floor(
    oracle: Oracle,
    original: ir.Model,
    rewritten: ir.Model,
    feeds: Mapping[str, Array],
    *,
    kinds: Mapping[str, str],
    providers: Sequence[Provider],
    seed: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Runs the original in the oracle's runtime and the other graph in the installed one; compares every output.

    Args:
        oracle: Where the original runs.
        original: The training graph as ORT's builder made it.
        rewritten: A graph of the same gradients that stock ONNX Runtime runs.
        feeds: The inputs.
        kinds: What each output of the original is.
        providers: The implementations of the ops of ``bngrad``; the first runs on all moves, the others on two.
        seed: For the moves.
        progress: Called with the number of runs done, and of all.

    Returns:
        The check; a row's measure is the 2-norm of the closest answers' difference over the noise floor.
    """
    check = Check("whole graph", unit="x noise floor", limit=LIMIT)
    total, done = 2 * (MOVES + 1) + 2 * (len(providers) - 1), itertools.count(1)
    answers = []
    with oracle.load(ir.to_proto(original)) as session_of_original:
        for moved in moves(feeds, seed):
            answers.append(session_of_original.run(feeds_of(original, moved)))
            progress(next(done), total)
    floor = floors(answers, kinds)
    for index, provider in enumerate(providers):
        closest: dict[str, Closest] = {}
        runner = session(rewritten, provider)
        for moved in itertools.islice(moves(feeds, seed), MOVES + 1 if index == 0 else 2):
            result = dict(zip(floor, runner.run(list(floor), feeds_of(rewritten, moved)), strict=True))
            closer(closest, result, answers)
            progress(next(done), total)
        check.rows += [
            compared(name, kinds[name], provider, "ort", answer, floor[name]) for name, answer in closest.items()
        ]
    return check


def floors(answers: Sequence[Mapping[str, Array]], kinds: Mapping[str, str]) -> dict[str, float]:
    """Returns how far right answers are from each other, by name: the noise floor of each output.

    Args:
        answers: A graph's outputs for several moves.
        kinds: What each output is.
    """
    first = answers[0]
    largest = dict.fromkeys(kinds.values(), 0.0)
    for name, value in first.items():
        largest[kinds[name]] = max(largest[kinds[name]], norm(value))
    found = {}
    for name, value in first.items():
        spread = max(distance(one[name], other[name]) for one, other in itertools.combinations(answers, 2))
        unit = float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0
        found[name] = max(spread, _ROUNDINGS * unit * max(norm(value), _NEGLIGIBLE * largest[kinds[name]]))
    return found


class Closest(NamedTuple):
    """The closest of some answers of two graphs."""

    distance: float
    got: Array
    want: Array


def closer(closest: dict[str, Closest], got: Mapping[str, Array], wanted: Sequence[Mapping[str, Array]]) -> None:
    """Puts in what is closer: one more answer of one graph, to any of the other's."""
    for name, value in got.items():
        pairs = [Closest(distance(value, want[name]), value, want[name]) for want in wanted]
        best = [closest[name]] if name in closest else []
        closest[name] = min([*best, *pairs], key=lambda pair: pair.distance)


def compared(name: str, kind: str, provider: str, against: str, answer: Closest, floor: float) -> Row:
    """Returns the row of an output whose closest answers are known."""
    got, want = answer.got, answer.want
    if got.shape != want.shape:
        inf, note = float(np.inf), f"shape {list(got.shape)}; expected {list(want.shape)}"
        return Row(name, name, kind, provider, against, inf, inf, inf, passed=False, note=note)
    measure = 0.0 if answer.distance == 0 else answer.distance / floor if floor else float(np.inf)
    note = f"noise floor {floor / (norm(want) or 1.0):.1e}"
    return Row(name, name, kind, provider, against, *differences(got, want), measure, measure <= LIMIT, note)


def moves(feeds: Mapping[str, Array], seed: int, unit: float = 0.0) -> Iterator[dict[str, Array]]:
    """Yields the inputs as they are, and then moved by their last bit; the same for the same seed.

    Args:
        feeds: The inputs.
        seed: For the moves.
        unit: The relative spacing of the narrowest type inside the model. Inputs of a wider type are moved by that
            much: what casts round away on the way would not be seen to change.
    """
    yield dict(feeds)
    generator = np.random.default_rng(seed)
    for _ in range(MOVES):
        yield {name: _moved(value, generator, unit) for name, value in feeds.items()}


def _moved(value: Array, generator: np.random.Generator, unit: float) -> Array:
    if value.dtype.kind != "f" or float(np.finfo(value.dtype).eps) >= unit:
        return one_ulp_away(value, generator)
    signs = np.where(generator.random(value.shape) < 0.5, -1, 1).astype(value.dtype)
    return np.asarray(value * (1 + unit * signs), value.dtype)


def one_ulp_away(value: Array, generator: np.random.Generator) -> Array:
    """Returns a float array with each element moved to one of its two neighbours; any other array as it is."""
    if value.dtype.kind != "f":
        return value
    towards = np.where(generator.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
    return np.asarray(np.nextafter(value, towards))
