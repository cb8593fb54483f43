"""Comparison of whole graphs in float64, where rounding cannot hide an error; for models of limited size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.float64 import EvaluationError, Evaluator
from bngrad.validation.report import Check, Row, absolute_difference
from bngrad.validation.statistics import WorstSubjects, expected_and_computed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.validation.forward import Forward

    Array = NDArray[Any]

LIMIT = 1e-9
"""Correct graphs agree to about 1e-12; a wrong term gives an error far above this limit."""

TESTED = "float64, function"
"""The name of this implementation of a training graph in reports."""

MAX_ELEMENTS = 3_000_000
"""The most elements in inputs and parameters for which a model is evaluated in NumPy."""


def elements_of(feeds: Mapping[str, Array]) -> int:
    """Returns the number of elements in inputs and parameters."""
    return sum(value.size for value in feeds.values())


def too_large(feeds: Mapping[str, Array], most: int = MAX_ELEMENTS) -> str:
    """Returns why a model with these inputs is too large for NumPy; empty if it is not."""
    total = elements_of(feeds)
    return f"the inputs and parameters have {total:,} elements; the limit is {most:,}" if total > most else ""


def whole_in_float64(
    original: ir.Model, tested: Evaluator, feeds: Mapping[str, Array], kinds: Mapping[str, str]
) -> Check:
    """Evaluates two training graphs in float64, and compares all outputs of the original.

    Args:
        original: The training graph in ORT's dialect.
        tested: The graph under test, with ops of ``bngrad`` that are evaluated as their functions.
        feeds: The inputs of both graphs.
        kinds: The kind of each output.

    Returns:
        The check. A row's measure is the 2-norm of the difference, relative to the 2-norm of the original's
        output, or to 1e-6 times the largest of these norms if that is larger: a gradient that is zero in exact
        arithmetic then compares as zero.
    """
    check = Check("float64", unit="relative", limit=LIMIT)
    check.skipped = too_large(feeds)
    if check.skipped:
        return check
    try:
        want = Evaluator(ir.to_proto(original)).from_any(feeds)
    except (UnsupportedNodeError, EvaluationError) as error:
        check.skipped = str(error)
        return check
    return compared(check, want, tested, feeds, kinds, "original")


def forward_in_float64(
    forward: Forward, tested: Evaluator, feeds: Mapping[str, Array], kinds: Mapping[str, str], loss: str
) -> Check:
    """Compares the outputs of a forward model in float64 with those of its training graph.

    Args:
        forward: The forward model.
        tested: The training graph.
        feeds: The inputs of both.
        kinds: The kind of each output of the training graph.
        loss: The name of the loss.
    """
    check = Check("forward in float64", unit="relative", limit=LIMIT)
    check.skipped = too_large(feeds)
    if check.skipped:
        return check
    names = [name for name, kind in kinds.items() if kind != "gradient" and name in {loss, *forward.outputs}]
    try:
        want = forward.evaluator.from_any(feeds, names)
    except (UnsupportedNodeError, EvaluationError) as error:
        check.skipped = str(error)
        return check
    return compared(check, want, tested, feeds, kinds, "forward model")


def compared(
    check: Check,
    want: Mapping[str, Array],
    tested: Evaluator,
    feeds: Mapping[str, Array],
    kinds: Mapping[str, str],
    against: str,
) -> Check:
    """Compares expected outputs with those of a training graph, and adds the rows to a check.

    Args:
        check: The check, whose limit decides.
        want: The expected outputs by name.
        tested: The training graph.
        feeds: Its inputs.
        kinds: The kind of each output.
        against: The name of the reference that computed the expected outputs.
    """
    try:
        got = tested.from_any(feeds, list(want))
    except UnsupportedNodeError as error:
        check.skipped = str(error)
        return check
    except EvaluationError as error:
        check.rows = [_row(check, name, kinds[name], against, note=str(error)) for name in want]
        return check
    largest = max((float(np.linalg.norm(value)) for value in want.values()), default=0.0)
    worst = WorstSubjects()
    for name, value in want.items():
        if got[name].shape != value.shape:
            note = f"shape {list(got[name].shape)}; expected {list(value.shape)}"
            check.rows.append(_row(check, name, kinds[name], against, note=note))
            continue
        difference = absolute_difference(got[name], value)
        norm = max(float(np.linalg.norm(value)), 1e-6 * largest)
        distance = float(np.linalg.norm(difference))
        measure = 0.0 if distance == 0 else distance / norm if norm else np.inf
        largest_difference = float(difference.max(initial=0.0))
        check.rows.append(_row(check, name, kinds[name], against, max_abs=largest_difference, measure=measure))
        worst.offer(name, measure, partial(expected_and_computed, name, value, got[name], TESTED))
    check.statistics = worst.worst_first()
    return check


def _row(
    check: Check,
    name: str,
    kind: str,
    against: str,
    *,
    max_abs: float = np.inf,
    measure: float = np.inf,
    note: str = "",
) -> Row:
    return Row(name, name, kind, TESTED, against, max_abs, measure, measure, measure <= check.limit, note)
