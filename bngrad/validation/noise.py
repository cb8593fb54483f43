"""The noise-floor check: the rewritten graph must not differ from the original more than rounding explains.

The noise floor of an output is how much it changes when all float inputs are perturbed by one ulp. A result within
a few times the noise floor cannot be distinguished from the original; a result further away is wrong. The floor is
measured, because it depends on the network: it is small for a loss, larger for a gradient in the first layers, and
100 % for a gradient that is zero in exact arithmetic.

A unit at the kink of its ReLU may be on either side by chance, and then changes some gradients by many times their
floor. Both graphs therefore run on the same perturbed inputs, and the *closest* two of their results are compared:
chance affects both graphs, while an error is in all results of one graph and in none of the other.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.runtime.device import CPU
from bngrad.runtime.session import session
from bngrad.validation.inputs import feeds_of
from bngrad.validation.report import Check, Row, differences, distance, norm
from bngrad.validation.statistics import WorstSubjects, expected_and_computed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.options import Implementation
    from bngrad.oracle import Oracle

    Array = NDArray[Any]

PERTURBATIONS = 4
"""Number of random perturbations of the inputs, besides the unperturbed inputs."""

LIMIT = 4.0
"""The largest allowed difference of the closest results, in noise floors.

The floor is the largest distance between results of one graph, so the closest results of two correct graphs are
below it. The factor allows for the chance that all results of one graph are on the same side of a kink.
"""

_ROUNDINGS = 8
"""The minimum of the floor, in units of rounding of the output's type."""

_NEGLIGIBLE = 1e-2
"""The minimum norm of an output in that minimum, relative to the largest output of its kind."""


def noise_floor(
    oracle: Oracle,
    original: ir.Model,
    rewritten: ir.Model,
    feeds: Mapping[str, Array],
    *,
    kinds: Mapping[str, str],
    implementations: Sequence[Implementation],
    seed: int,
    device: str = CPU,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Runs the original in the oracle and the rewritten graph in the installed ONNX Runtime; compares all outputs.

    Args:
        oracle: Runs the original.
        original: The training graph from ORT's gradient builder.
        rewritten: A training graph with the same gradients for stock ONNX Runtime.
        feeds: The inputs.
        kinds: The kind of each output of the original.
        implementations: The implementations of the ops of ``bngrad``. The first runs on all perturbed inputs, the
            others on the unperturbed and one perturbed input.
        seed: Seed of the perturbations.
        device: The device that the rewritten graph runs on.
        progress: Called with the number of completed runs and of all runs.

    Returns:
        The check. A row's measure is the 2-norm of the difference of the closest results over the noise floor.
    """
    check = Check("whole graph", unit="x noise floor", limit=LIMIT)
    total, done = 2 * (PERTURBATIONS + 1) + 2 * (len(implementations) - 1), itertools.count(1)
    expected = []
    with oracle.load(ir.to_proto(original)) as original_session:
        for perturbed in perturbed_inputs(feeds, seed):
            expected.append(original_session.run(feeds_of(original, perturbed)))
            progress(next(done), total)
    floor, worst = noise_floors(expected, kinds), WorstSubjects()
    for index, implementation in enumerate(implementations):
        closest: dict[str, Closest] = {}
        runner = session(rewritten, implementation, device=device)
        for perturbed in itertools.islice(perturbed_inputs(feeds, seed), PERTURBATIONS + 1 if index == 0 else 2):
            result = dict(zip(floor, runner.run(list(floor), feeds_of(rewritten, perturbed)), strict=True))
            update_closest(closest, result, expected)
            progress(next(done), total)
        add_rows(check, worst, closest, floor, kinds, implementation, "ort")
    check.statistics = worst.worst_first()
    return check


def add_rows(
    check: Check,
    worst: WorstSubjects,
    closest: Mapping[str, Closest],
    floor: Mapping[str, float],
    kinds: Mapping[str, str],
    implementation: str,
    against: str,
) -> None:
    """Adds the row of each output to a check, given its closest pair of results and its noise floor."""
    for name, pair in closest.items():
        row = comparison_row(name, kinds[name], implementation, against, pair, floor[name])
        check.rows.append(row)
        worst.offer(name, row.measure, partial(expected_and_computed, name, pair.want, pair.got, implementation))


def noise_floors(results: Sequence[Mapping[str, Array]], kinds: Mapping[str, str]) -> dict[str, float]:
    """Returns the noise floor of each output by name: the largest distance between results of one graph.

    Args:
        results: The outputs of a graph for several perturbed inputs.
        kinds: The kind of each output.
    """
    pairs = list(itertools.combinations(results, 2))
    spread = {name: max(distance(result[name], other[name]) for result, other in pairs) for name in results[0]}
    sizes = {name: norm(value) for name, value in results[0].items()}
    return at_least_rounding(spread, sizes, {name: spacing(value) for name, value in results[0].items()}, kinds)


def spacing(value: Array) -> float:
    """Returns the relative spacing of the numbers of a float array; 0 for other arrays."""
    return float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0


def at_least_rounding(
    floors: Mapping[str, float],
    sizes: Mapping[str, float],
    roundings: Mapping[str, float],
    kinds: Mapping[str, str],
) -> dict[str, float]:
    """Returns noise floors that are not below a few roundings of the values, or of the largest of their kind.

    Args:
        floors: The floor of each output.
        sizes: The 2-norm of each.
        roundings: The relative spacing of each one's type.
        kinds: The kind of each.
    """
    largest = dict.fromkeys(kinds.values(), 0.0)
    for name, size in sizes.items():
        largest[kinds[name]] = max(largest[kinds[name]], size)
    return {
        name: max(floors[name], _ROUNDINGS * roundings[name] * max(size, _NEGLIGIBLE * largest[kinds[name]]))
        for name, size in sizes.items()
    }


class Closest(NamedTuple):
    """The closest of several results of two graphs."""

    distance: float
    got: Array
    want: Array


def update_closest(
    closest: dict[str, Closest], got: Mapping[str, Array], expected: Sequence[Mapping[str, Array]]
) -> None:
    """Updates the closest pairs with another result of one graph, given all results of the other graph."""
    for name, value in got.items():
        pairs = [Closest(distance(value, want[name]), value, want[name]) for want in expected]
        best = [closest[name]] if name in closest else []
        closest[name] = min([*best, *pairs], key=lambda pair: pair.distance)


def comparison_row(name: str, kind: str, implementation: str, against: str, pair: Closest, floor: float) -> Row:
    """Returns the row of an output, given its closest pair of results and its noise floor."""
    got, want = pair.got, pair.want
    if got.shape != want.shape:
        inf, note = float(np.inf), f"shape {list(got.shape)}; expected {list(want.shape)}"
        return Row(name, name, kind, implementation, against, inf, inf, inf, passed=False, note=note)
    measure = 0.0 if pair.distance == 0 else pair.distance / floor if floor else float(np.inf)
    note = f"noise floor {floor / (norm(want) or 1.0):.1e}"
    return Row(name, name, kind, implementation, against, *differences(got, want), measure, measure <= LIMIT, note)


def perturbed_inputs(feeds: Mapping[str, Array], seed: int, unit: float = 0.0) -> Iterator[dict[str, Array]]:
    """Yields the unperturbed inputs, and then the inputs perturbed by one ulp.

    Args:
        feeds: The inputs.
        seed: Seed of the perturbations.
        unit: The relative spacing of the narrowest type in the model. Inputs of wider types are perturbed by this
            much, because casts in the model would round a smaller perturbation away.
    """
    yield dict(feeds)
    generator = np.random.default_rng(seed)
    for _ in range(PERTURBATIONS):
        yield {name: _perturbed(value, generator, unit) for name, value in feeds.items()}


def _perturbed(value: Array, generator: np.random.Generator, unit: float) -> Array:
    if value.dtype.kind != "f" or float(np.finfo(value.dtype).eps) >= unit:
        return one_ulp_away(value, generator)
    signs = np.where(generator.random(value.shape) < 0.5, -1, 1).astype(value.dtype)
    return np.asarray(value * (1 + unit * signs), value.dtype)


def one_ulp_away(value: Array, generator: np.random.Generator) -> Array:
    """Returns a float array with each element replaced by one of its two neighbours; other arrays unchanged."""
    if value.dtype.kind != "f":
        return value
    infinity = value.dtype.type(np.inf)
    towards = np.where(generator.random(value.shape) < 0.5, -infinity, infinity)
    return np.asarray(np.nextafter(value, towards))
