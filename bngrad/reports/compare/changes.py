"""Compares two reports of `validate` or `bench`: what got better or worse, by node or case."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from bngrad.errors import InputError
from bngrad.reports.compare.comparison import Change, Comparison, State, differing
from bngrad.reports.html.charts import ratio
from bngrad.validation.report import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bngrad.reports.compare.comparison import Kind

    Document = Mapping[str, Any]

FACTOR = 2.0
"""The factor between two errors from which on one is better."""

LEAST = 0.1
"""The error over its limit below which none is worse than another: both are rounding errors."""

_ORDER = get_args(State)

T = TypeVar("T")


class _Value(NamedTuple):
    """A value with the range that counts as the same; the error of `validate` also with whether it passed."""

    value: float
    low: float
    high: float
    passed: bool = True


def compare_reports(kind: Kind, files: Sequence[str], documents: Sequence[Document]) -> Comparison:
    """Returns the comparison of two reports.

    Args:
        kind: The command that wrote them.
        files: Their names.
        documents: Their contents.

    Raises:
        InputError: One lacks what such a report has.
    """
    values_of, settings_of = (_errors, _of_validate) if kind == "validate" else (_times, _of_bench)
    before, after = (_read(values_of, *pair) for pair in zip(files, documents, strict=True))
    settings = [_read(settings_of, *pair) for pair in zip(files, documents, strict=True)]
    changes = [_change(*key, before.get(key), after.get(key)) for key in {**before, **after}]
    changes.sort(key=lambda change: (_ORDER.index(change.state), -_growth(change)))
    return Comparison(kind, list(files), differing(settings), changes=changes)


def _read(part: Callable[[Document], T], file: str, document: Document) -> T:
    try:
        return part(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is not a report of this bngrad: {type(error).__name__}: {error}") from None


def _change(group: str, subject: str, before: _Value | None, after: _Value | None) -> Change:
    first = None if before is None else before.value
    second = None if after is None else after.value
    return Change(group, subject, first, second, _state(before, after))


def _state(before: _Value | None, after: _Value | None) -> State:
    if before is None:
        return "new"
    if after is None:
        return "gone"
    if before.passed != after.passed:
        return "now passes" if after.passed else "now fails"
    if after.low > before.high:
        return "worse"
    return "better" if after.high < before.low else "same"


def _growth(change: Change) -> float:
    """Returns the sort key of changes of one kind: the factor, or how large the error or the time is."""
    if change.before is None or change.after is None:
        return rank(change.before or change.after or 0.0)
    low, high = sorted((rank(change.before), rank(change.after)))
    return 1.0 if low == high else high / low if low else math.inf


def _errors(document: Document) -> dict[tuple[str, str], _Value]:
    """Returns the largest error over its limit of each check and subject."""
    errors: dict[tuple[str, str], _Value] = {}
    for check in document["checks"]:
        for row in check["rows"]:
            key = (str(check["name"]), str(row["subject"]))
            error = ratio(float(row["measure"]), float(check["limit"]))
            other = errors.get(key, _Value(-1.0, 0.0, 0.0))
            passed = other.passed and bool(row["passed"])
            largest = error if rank(error) > rank(other.value) else other.value
            least = max(rank(largest), LEAST)
            errors[key] = _Value(largest, least, FACTOR * least, passed)
    return errors


def _times(document: Document) -> dict[tuple[str, str], _Value]:
    """Returns the times of each case, by the op and the rest of the case."""
    times = {}
    for row in document["rows"]:
        op = f"{row['op']}{', frozen' if row['frozen'] else ''}"
        axes = ",".join(map(str, row["axes"])) or "none"
        case = f"{'x'.join(map(str, row['shape']))}, axes {axes}, {row['dtype']}"
        low, median, high = (float(row["ms"][name]) for name in ("low", "median", "high"))
        times[op, case] = _Value(median, low, high)
    return times


def _of_validate(document: Document) -> dict[str, str]:
    environment, identity = document["environment"] or {}, document["identity"] or {}
    files = identity.get("files") or []
    return {
        "verdict": document["verdict"],
        "model": document["model"],
        **({"SHA-256": files[0]["sha256"]} if files else {}),
        "against": document["against"],
        "implementations": ", ".join(document["implementations"]),
        "seed": str(document["seed"]),
        **{name: str(value) for name, value in (environment.get("machine") or {}).items()},
        **{name: str(value) for name, value in (environment.get("versions") or {}).items()},
    }


def _of_bench(document: Document) -> dict[str, str]:
    return {name: str(document[name]) for name in ("library", "version", "isa", "threads", "repeats")}
