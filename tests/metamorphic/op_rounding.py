"""How far apart rounding may bring two runs of an op: `ROUNDINGS` roundings of the sum of the absolute terms."""

from __future__ import annotations

import numpy as np

from metamorphic.dues import Due
from metamorphic.op_problems import PRECISION, term_sizes

ROUNDINGS = 8
"""Of the sum of absolute terms: those of its own making and those of the quantities it is computed from."""


def nearly(problem, op, got, want):
    """Dues of outputs by name that differ by rounding."""
    sizes = term_sizes(problem, op)
    return [
        Due(name, got[name], want[name], ROUNDINGS * precision_of(problem, got[name]) * sizes[name])
        for name in want
    ]


def precision_of(problem, output):
    """Of an output: its own type's, or the one that its op computes in."""
    computed = "float64" if problem.arrays["X"].dtype == np.float64 else "float32"
    return max(PRECISION[np.asarray(output).dtype.name], PRECISION[computed])
