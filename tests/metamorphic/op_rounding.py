"""The tolerance between two runs of an op: `ROUNDINGS` rounding errors of the sum of absolute terms."""

from __future__ import annotations

import numpy as np

from metamorphic.comparisons import Comparison
from metamorphic.op_problems import PRECISION, term_sizes

ROUNDINGS = 8
"""The number of rounding errors in a sum, including those of the quantities in its terms."""


def nearly(problem, op, got, expected):
    """Returns comparisons of outputs by name that differ by rounding."""
    sizes = term_sizes(problem, op)
    return [
        Comparison(name, got[name], expected[name], ROUNDINGS * precision_of(problem, got[name]) * sizes[name])
        for name in expected
    ]


def precision_of(problem, output):
    """Returns the precision of an output: that of its type or of the computation, whichever is coarser."""
    computed = "float64" if problem.arrays["X"].dtype == np.float64 else "float32"
    return max(PRECISION[np.asarray(output).dtype.name], PRECISION[computed])
