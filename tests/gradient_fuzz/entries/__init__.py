"""What draws a node for each gradient rule: (domain, op type) -> a function that adds one to a sketch.

A rule that has no entry fails a test: nothing is differentiated that no campaign tries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradient_fuzz.entries import elementwise, indexing, losses, matrix, normalization, reduction, shape, windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradient_fuzz.sketch import Sketch, Value

    Entry = Callable[[Sketch], list[Value]]

ENTRIES: dict[tuple[str, str], Entry] = {
    **elementwise.ENTRIES,
    **indexing.ENTRIES,
    **losses.ENTRIES,
    **matrix.ENTRIES,
    **normalization.ENTRIES,
    **reduction.ENTRIES,
    **shape.ENTRIES,
    **windows.ENTRIES,
}
"""Each returns the outputs of what it added."""
