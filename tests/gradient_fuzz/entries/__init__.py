"""Functions that draw a node for each gradient rule and add it to a sketch, by (domain, op type).

An op of one operand and no attributes needs no entry of its own. Any other rule that has none fails a test.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import onnx

from autodiff.cases import cases_of
from autodiff.gradient_cases import Between
from bngrad.autodiff.rules import RULES
from gradient_fuzz.entries import (
    attention,
    control_flow,
    deformable,
    elementwise,
    fourier,
    indexing,
    losses,
    matrix,
    normalization,
    quantization,
    recurrent,
    reduction,
    shape,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradient_fuzz.sketch import Sketch, Value

    Entry = Callable[[Sketch], list[Value]]


def plain(b: Sketch, op_type: str) -> list[Value]:
    """Draws a node within the interval that the cases of the op draw from."""
    x = b.any()
    for case in cases_of(op_type):
        within = case.draw.get("x")
        if isinstance(within, Between):
            share = b.one("Mul", b.one("Sigmoid", x), b.scalar(within.high - within.low))
            x = b.one("Add", share, b.scalar(within.low))
            break
    return b.emit(op_type, [x])


def plain_ops() -> Iterator[str]:
    """The ops of onnx that have a rule, one operand and no attributes."""
    for domain, op_type in sorted(RULES):
        if domain == "" and onnx.defs.has(op_type):
            schema = onnx.defs.get_schema(op_type)
            if schema.max_input == 1 and not schema.attributes:
                yield op_type


OWN: dict[tuple[str, str], Entry] = {
    **attention.ENTRIES,
    **control_flow.ENTRIES,
    **deformable.ENTRIES,
    **elementwise.ENTRIES,
    **fourier.ENTRIES,
    **indexing.ENTRIES,
    **losses.ENTRIES,
    **matrix.ENTRIES,
    **normalization.ENTRIES,
    **quantization.ENTRIES,
    **recurrent.ENTRIES,
    **reduction.ENTRIES,
    **shape.ENTRIES,
    **windows.ENTRIES,
}
"""The entries; each returns the outputs of the node that it added."""

ENTRIES: dict[tuple[str, str], Entry] = {
    **{("", op_type): partial(plain, op_type=op_type) for op_type in plain_ops() if ("", op_type) not in OWN},
    **OWN,
}
