"""Finds symbolic sizes that must equal those of the example, though `torch.export` keeps them symbolic.

The windows of an adaptive pooling depend on the size, and PyTorch's exporter writes those of the example. And
conditions on sizes are exact, whereas Python rounds: ``int(10 * 0.3)`` is 3, and 0.3 is less than 3 / 10.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import sympy
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.export import ExportedProgram

_ADAPTIVE = re.compile(r"aten\._?adaptive_(?:avg|max)_pool([123])d\.")
_TO_INTEGERS = ("floor", "ceiling", "FloorToInt", "CeilToInt", "TruncToInt")
_DIVISIONS = ("IntTrueDiv", "FloatTrueDiv")


def symbols_to_fix(program: ExportedProgram, guards: Iterable[sympy.Basic]) -> set[sympy.Basic]:
    """The symbols of sizes for which a program is right only with the sizes of the example.

    Args:
        program: The result of `torch.export.export`.
        guards: The conditions on sizes that PyTorch assumed.
    """
    symbols: set[sympy.Basic] = set()
    for guard in guards:
        if is_rounded(guard):
            symbols |= guard.free_symbols
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and is_rounded(value.node.expr):
            symbols |= value.node.expr.free_symbols
    for size in _pooled(program):
        symbols |= size.free_symbols
    return symbols


def _pooled(program: ExportedProgram) -> Iterator[sympy.Basic]:
    """The symbolic sizes of adaptive poolings to more than one element."""
    for node in program.graph.nodes:
        adaptive = _ADAPTIVE.match(str(node.target)) if node.op == "call_function" else None
        if adaptive is None:
            continue
        output_size: Any = node.args[1] if len(node.args) > 1 else node.kwargs["output_size"]
        if all(size == 1 for size in output_size):
            continue
        for size in node.args[0].meta["val"].shape[-int(adaptive[1]) :]:
            if isinstance(size, torch.SymInt):
                yield size.node.expr


def is_rounded(expression: sympy.Basic) -> bool:
    """Returns whether Python rounds in an expression of sizes, so that exact arithmetic may differ.

    It does not differ where a quotient of integers is rounded to an integer or compared with a number of few
    digits, and in products with such numbers.
    """
    if isinstance(expression, sympy.Rational | sympy.Float):
        return not _has_few_digits(expression)
    kind, operands = type(expression).__name__, expression.args
    if kind in _DIVISIONS:
        return True
    if kind in _TO_INTEGERS or isinstance(expression, sympy.core.relational.Relational):
        operands = tuple(part for term in operands for part in (term.args if _is_division(term) else (term,)))
    return any(map(is_rounded, operands))


def _is_division(expression: sympy.Basic) -> bool:
    return type(expression).__name__ in _DIVISIONS


def _has_few_digits(number: sympy.Rational | sympy.Float) -> bool:
    scaled = float(number) * 1024
    return math.isfinite(scaled) and scaled.is_integer() and (number.is_Integer or abs(scaled) < 2**30)
