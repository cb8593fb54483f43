"""Whole graphs in float64, where a mistake cannot hide in rounding; for models that NumPy runs in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.float64 import evaluate
from bngrad.validation.report import Check, Row, absolute_difference
from bngrad.validation.sites import output_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

LIMIT = 1e-9
"""Right graphs agree to about 1e-12, whatever the network amplifies; a wrong term is far above this."""

MAX_ELEMENTS = 3_000_000
"""The elements in inputs and parameters that NumPy still evaluates in seconds."""


def too_large(feeds: Mapping[str, Array], most: int = MAX_ELEMENTS) -> str:
    """Returns why a model with these inputs is not evaluated in NumPy; empty if it is."""
    total = sum(value.size for value in feeds.values())
    return f"the inputs and parameters have {total} elements; NumPy is for up to {most}" if total > most else ""


def whole_in_float64(original: ir.Model, rewritten: ir.Model, feeds: Mapping[str, Array]) -> Check:
    """Evaluates both graphs in float64, the ops of ``bngrad`` as their functions, and compares every output.

    Args:
        original: The training graph as ORT's builder made it; its batch norms are evaluated by `reference`.
        rewritten: The same with ops of ``bngrad`` and their functions.
        feeds: The inputs.

    Returns:
        The check; a row's measure is the 2-norm of the difference over that of the original's output, or over
        1e-6 of the largest output's, so that a gradient that is zero in exact arithmetic compares as zero.
    """
    check = Check("float64", unit="relative", limit=LIMIT)
    check.skipped = too_large(feeds)
    if check.skipped:
        return check
    try:
        want = evaluate(ir.to_proto(original), feeds)
        got = evaluate(ir.to_proto(rewritten), feeds, list(want))
    except UnsupportedNodeError as error:
        check.skipped = str(error)
        return check
    largest = max(float(np.linalg.norm(value)) for value in want.values())
    kinds = output_kinds(original)
    for name, value in want.items():
        difference = absolute_difference(got[name], value)
        norm = max(float(np.linalg.norm(value)), 1e-6 * largest)
        distance = float(np.linalg.norm(difference))
        measure = 0.0 if distance == 0 else distance / norm if norm else np.inf
        check.rows.append(
            Row(
                name,
                name,
                kinds[name],
                "rewritten, function",
                "original",
                float(difference.max(initial=0.0)),
                measure,
                measure,
                passed=measure <= LIMIT,
            )
        )
    return check
