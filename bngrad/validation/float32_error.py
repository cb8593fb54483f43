"""The error of a training graph in units of the error of another float32 program, both measured from float64.

The unit of an output is the largest distance of the float32 program from float64, over several perturbed inputs.
The measure is the *smallest* distance of the graph from float64, over the same inputs: a unit at the kink of its
ReLU may be on either side by chance (see `bngrad.validation.noise`), while an error is in all results.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from bngrad.validation.noise import LIMIT, Closest, at_least_rounding, comparison_row
from bngrad.validation.report import Check, Row, distance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Results = Sequence[Mapping[str, NDArray[Any]]]
    """The outputs by name, for each of several inputs."""


def float32_error(
    got: Results,
    float32: Results,
    float64: Results,
    kinds: Mapping[str, str],
    *,
    implementation: str,
    against: str,
) -> Check:
    """Compares the outputs of a training graph with those of a program in float32 and in float64.

    Args:
        got: The results of the graph.
        float32: The results of the program in float32, for the same inputs.
        float64: The results of the program in float64, for the same inputs.
        kinds: The kind of each output: ``loss``, ``gradient``, ``buffer``.
        implementation: What computed ``got``, for the report.
        against: What computed ``float64``, for the report.

    Returns:
        The check. A row's measure is the 2-norm of the graph's error over that of the program's error in float32.
        An output that the graph lacks does not pass.
    """
    check = Check("float32 error", unit="x float32's own error", limit=LIMIT)
    own = {name: max(distance(a[name], b[name]) for a, b in zip(float32, float64, strict=True)) for name in kinds}
    floors = at_least_rounding(own, {name: float32[0][name] for name in kinds}, kinds)
    for name, kind in kinds.items():
        if name not in got[0]:
            note = "the graph has no such output"
            check.rows.append(
                Row(name, name, kind, implementation, against, inf, inf, inf, passed=False, note=note)
            )
            continue
        pairs = [(one[name], want[name]) for one, want in zip(got, float64, strict=True)]
        closest = min((Closest(distance(*pair), *pair) for pair in pairs), key=lambda pair: pair.distance)
        check.rows.append(comparison_row(name, kind, implementation, against, closest, floors[name]))
    return check
