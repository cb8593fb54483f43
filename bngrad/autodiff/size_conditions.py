"""Conditions on the sizes of symbolic dimensions, as JSON that any language can evaluate.

A condition is a list of an operator and its operands: ``["==", ["%", "N", 2], 0]`` holds for even N. An operand is
an integer, the name of a symbolic dimension, or such a list. ``//`` and ``%`` round down, and ``/`` is exact.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Condition = list[Any]
"""An operator and its operands."""

_OF_NUMBERS: dict[str, tuple[int, Callable[..., Any]]] = {
    "+": (2, lambda *terms: sum(terms)),
    "-": (2, operator.sub),
    "*": (2, lambda *factors: math.prod(factors)),
    "//": (2, operator.floordiv),
    "%": (2, operator.mod),
    "/": (2, lambda a, b: Fraction(a) / Fraction(b)),
    "min": (2, min),
    "max": (2, max),
    "ceil": (1, math.ceil),
    "floor": (1, math.floor),
}
"""Operators whose result is a number: the number of operands, and the function."""
_COMPARISONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "==": (2, operator.eq),
    "!=": (2, operator.ne),
    "<": (2, operator.lt),
    "<=": (2, operator.le),
    ">": (2, operator.gt),
    ">=": (2, operator.ge),
}
_OF_CONDITIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "and": (2, lambda *all_of: all(all_of)),
    "or": (2, lambda *one_of: any(one_of)),
    "not": (1, operator.not_),
}
_ALL = _OF_NUMBERS | _COMPARISONS | _OF_CONDITIONS
_ANY_NUMBER = {"+", "*", "min", "max", "and", "or"}
"""The operators that also take more operands."""
_DEEPEST = 50
"""The deepest nesting of a condition that is read."""
_LARGEST = 2**63


def require_conditions(document: Any, names: Collection[str]) -> tuple[Condition, ...]:  # noqa: ANN401 - of JSON
    """Returns a JSON value as a tuple of conditions.

    Args:
        document: The JSON value.
        names: The names of dimensions.

    Raises:
        ValueError: It is not a list of conditions, or one has another name.
    """
    if not isinstance(document, list):
        raise ValueError(f"{document!r:.60} is not a list of conditions")  # noqa: TRY004 - as all that is wrong
    for condition in document:
        _require(condition, names, condition=True, depth=0)
    return tuple(document)


def _require(term: Any, names: Collection[str], *, condition: bool, depth: int) -> None:  # noqa: ANN401
    if not condition and isinstance(term, int) and not isinstance(term, bool) and abs(term) < _LARGEST:
        return
    if not condition and isinstance(term, str) and term in names:
        return
    table = _COMPARISONS | _OF_CONDITIONS if condition else _OF_NUMBERS
    if not isinstance(term, list) or not term or term[0] not in table or depth > _DEEPEST:
        raise ValueError(f"{term!r:.60} is not a {'condition' if condition else 'number'}")
    name, *operands = term
    count = table[name][0]
    if len(operands) != count and (len(operands) < count or name not in _ANY_NUMBER):
        raise ValueError(f"{name!r} has {len(operands)} operands")
    for operand in operands:
        _require(operand, names, condition=name in _OF_CONDITIONS, depth=depth + 1)


def holds(condition: Condition, sizes: Mapping[str, int]) -> bool:
    """Returns whether a condition holds for sizes; False if it divides by zero, or a size is unknown."""
    try:
        return bool(_value(condition, sizes))
    except (ZeroDivisionError, KeyError):
        return False


def _value(term: Any, sizes: Mapping[str, int]) -> Any:  # noqa: ANN401
    if isinstance(term, str):
        return sizes[term]
    return _ALL[term[0]][1](*(_value(operand, sizes) for operand in term[1:])) if isinstance(term, list) else term


def names_in(condition: Any) -> list[str]:  # noqa: ANN401 - a condition or an operand
    """Returns the dimensions that a condition depends on."""
    if isinstance(condition, list):
        return list(dict.fromkeys(name for operand in condition[1:] for name in names_in(operand)))
    return [condition] if isinstance(condition, str) else []


def condition_text(condition: Any, *, inner: bool = False) -> str:  # noqa: ANN401 - a condition or an operand
    """Returns a condition as people write it: ``N % 2 == 0``."""
    if not isinstance(condition, list):
        return str(condition)
    name, *operands = condition
    if name[0].isalpha() and name not in ("and", "or"):
        return f"{name}({', '.join(map(condition_text, operands))})"
    text = f" {name} ".join(condition_text(operand, inner=name not in _COMPARISONS) for operand in operands)
    return f"({text})" if inner and name not in _COMPARISONS else text
