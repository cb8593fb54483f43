"""Compares the graph under test on the installed ONNX Runtime with its evaluation in float64.

The error of correct results in float depends on the network. It is measured as in `noise`: results for inputs that
are perturbed by one ulp have different rounding errors, so they are as far from each other as from the exact
result. The closest of several results are compared, because a unit at the kink of its ReLU is on either side by
chance.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, describe
from bngrad.runtime.device import CPU
from bngrad.runtime.session import session
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.inputs import feeds_of
from bngrad.validation.noise import (
    LIMIT,
    PERTURBATIONS,
    Closest,
    add_rows,
    noise_floors,
    perturbed_inputs,
    update_closest,
)
from bngrad.validation.report import Check, Row
from bngrad.validation.seeding import draws_random_numbers
from bngrad.validation.statistics import WorstSubjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.options import Implementation

    Array = NDArray[Any]


_SPACINGS = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
"""The relative spacing of the 16-bit types."""


def on_stock(
    tested: ir.Model,
    in_float64: Callable[[Mapping[str, Array], Sequence[str]], Mapping[str, Array]],
    feeds: Mapping[str, Array],
    *,
    kinds: Mapping[str, str],
    implementations: Sequence[Implementation],
    seed: int,
    against: str,
    device: str = CPU,
    skipped: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Runs a training graph on the installed ONNX Runtime, and compares outputs with those in float64.

    Args:
        tested: The training graph, with the functions of the ops of ``bngrad``.
        in_float64: Computes outputs in float64, for inputs and the names of outputs.
        feeds: The inputs; others are ignored.
        kinds: The kinds of the outputs to compare.
        implementations: The implementations of the ops of ``bngrad``. The first runs on all perturbed inputs, the
            others on the unperturbed and one perturbed input.
        seed: Seed of the perturbations.
        against: The name of the reference in float64, for the report.
        device: The device to run on.
        skipped: The reason to skip the check; empty to run it.
        progress: Called with the number of completed runs and of all runs.

    Returns:
        The check. A row's measure is the 2-norm of the difference of the closest results over the noise floor.
    """
    check = Check("on stock ONNX Runtime", unit="x noise floor", limit=LIMIT)
    check.skipped = skipped or _unsupported(tested)
    if check.skipped:
        return check
    feeds, names = feeds_of(tested, feeds), list(kinds)
    total, done = 2 * (PERTURBATIONS + 1) + 2 * (len(implementations) - 1), itertools.count(1)
    unit, exact = _spacing(tested), []
    try:
        for perturbed in perturbed_inputs(feeds, seed, unit):
            exact.append(dict(in_float64(perturbed, names)))
            progress(next(done), total)
    except UnsupportedNodeError as error:
        check.skipped = str(error)
        return check
    except EvaluationError as error:
        check.rows.append(_failed("function", against, str(error)))
        return check
    floor: dict[str, float] = {}
    worst = WorstSubjects()
    for implementation in implementations:
        results: list[dict[str, Array]] = []
        closest: dict[str, Closest] = {}
        try:
            runner = session(tested, implementation, device=device)
            for perturbed in itertools.islice(
                perturbed_inputs(feeds, seed, unit), 2 if floor else PERTURBATIONS + 1
            ):
                results.append(dict(zip(names, runner.run(names, perturbed), strict=True)))
                update_closest(closest, results[-1], exact)
                progress(next(done), total)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            check.rows.append(_failed(implementation, against, " ".join(str(error).split())))
            continue
        floor = floor or noise_floors(results, kinds)
        add_rows(check, worst, closest, floor, kinds, implementation, against)
    check.statistics = worst.worst_first()
    return check


def _unsupported(model: ir.Model) -> str:
    """Returns why a model's results cannot be compared; empty if they can."""
    if any(value.dtype == ir.DataType.BFLOAT16 for value in (*model.graph.inputs, *model.graph.outputs)):
        return "the model has bfloat16 inputs or outputs, which ONNX Runtime does not accept as arrays in Python"
    random = next((node for node in all_nodes(model) if draws_random_numbers(node)), None)
    if random is not None:
        return f"{describe(random)} is random, and ONNX Runtime uses other random numbers"
    return ""


def _spacing(model: ir.Model) -> float:
    """Returns the relative spacing of the narrowest 16-bit type in a model; 0 if it has none."""
    types = {
        value.dtype for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value is not None
    }
    return max((spacing for dtype, spacing in _SPACINGS.items() if dtype in types), default=0.0)


def _failed(implementation: str, against: str, note: str) -> Row:
    inf, graph = float(np.inf), "training graph"
    return Row(graph, graph, "graph", implementation, against, inf, inf, inf, passed=False, note=note)
