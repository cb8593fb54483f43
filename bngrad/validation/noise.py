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
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.runtime import session
from bngrad.validation.inputs import feeds_of
from bngrad.validation.report import Check, Row, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.oracle import Oracle
    from bngrad.runtime import Provider

    Array = NDArray[Any]

MOVES = 4
"""How many random moves of the inputs there are, beside the inputs as they are."""

LIMIT = 4.0
"""How many times the noise floor the closest answers may differ by.

The floor is the largest distance between a few answers of one graph, so the closest answers of two right graphs
are below it; this leaves room for the chance that all answers of one graph fell on the same side of a kink.
"""

_FLOOR = 8 * float(np.finfo(np.float32).eps)
"""The floor of a tensor that the moves hardly change: a few roundings."""


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
        The check; a row's measure is the relative 2-norm of the closest answers' difference over the noise floor.
    """
    check = Check("whole graph", unit="x noise floor", limit=LIMIT)
    total, done = 2 * (MOVES + 1) + 2 * (len(providers) - 1), itertools.count(1)
    answers = []
    with oracle.load(ir.to_proto(original)) as session_of_original:
        for moved in moves(feeds, seed):
            answers.append(session_of_original.run(feeds_of(original, moved)))
            progress(next(done), total)
    floor = {name: _spread([answer[name] for answer in answers]) for name in answers[0]}
    for index, provider in enumerate(providers):
        closest = dict.fromkeys(floor, (np.inf, np.inf))
        runner = session(rewritten, provider)
        for moved in itertools.islice(moves(feeds, seed), MOVES + 1 if index == 0 else 2):
            result = dict(zip(floor, runner.run(list(floor), feeds_of(rewritten, moved)), strict=True))
            for name, best in closest.items():
                distances = [differences(result[name], answer[name]) for answer in answers]
                closest[name] = min(best, *distances, key=lambda distance: distance[1])
            progress(next(done), total)
        for name, (max_abs, relative) in closest.items():
            measure = relative / max(floor[name], _FLOOR)
            note = f"noise floor {floor[name]:.1e}"
            passed = measure <= LIMIT
            check.rows.append(
                Row(name, name, kinds[name], provider, "ort", max_abs, relative, measure, passed=passed, note=note)
            )
    return check


def moves(feeds: Mapping[str, Array], seed: int) -> Iterator[dict[str, Array]]:
    """Yields the inputs as they are, and then moved by their last bit; the same for the same seed."""
    yield dict(feeds)
    generator = np.random.default_rng(seed)
    for _ in range(MOVES):
        yield {name: one_ulp_away(value, generator) for name, value in feeds.items()}


def _spread(answers: Sequence[Array]) -> float:
    """The largest relative distance between two answers."""
    return max(differences(other, one)[1] for one, other in itertools.combinations(answers, 2))


def one_ulp_away(value: Array, generator: np.random.Generator) -> Array:
    """Returns a float array with each element moved to one of its two neighbours; any other array as it is."""
    if value.dtype.kind != "f":
        return value
    towards = np.where(generator.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
    return np.asarray(np.nextafter(value, towards))
