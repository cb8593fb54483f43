"""Writes the times of `bench` as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.reports.html.page import number_text, write_page
from bngrad.reports.html.table import Column, Table
from bngrad.runtime.environment import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bngrad.bench.case import Case
    from bngrad.bench.measure import Measurement
    from bngrad.bench.timing import Spread

_COLUMNS = [
    Column("shape", "name"),
    Column("op", "choice"),
    Column("axes", "choice"),
    Column("type", "choice"),
    Column("count", "number"),
    *(Column(label, "number") for label in ("ms", "quartile 1", "quartile 3", "GB/s")),
    *(Column(label, "number") for label in ("addition ms", "bandwidth GB/s", "of bandwidth")),
]


@dataclass(frozen=True)
class _Quartiles:
    """A bar in percent of the width of the chart."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class _Bar:
    """A case in a chart."""

    shape: str
    detail: str
    kernel: _Quartiles
    addition: _Quartiles | None
    limit: float | None
    """Where the bandwidth is, in percent."""
    text: str
    label: str


def write_html(head: Mapping[str, object], rows: Sequence[Measurement], model: str, path: Path) -> None:
    """Writes the times of the kernels as one HTML page.

    Args:
        head: The document of `bngrad bench --json` without the rows.
        rows: The measurements.
        model: The name of the model that the cases are from; empty if the user gave shapes.
        path: The file to write.

    Raises:
        InputError: The file cannot be written.
    """
    head = {key: value for key, value in head.items() if key not in ("version", "rows")}
    write_page(
        path,
        "bench",
        head=head,
        model=model,
        environment=environment(),
        cases=len(rows),
        batch_norms=sum(row.count for row in rows),
        total=sum(row.count * row.kernel.median for row in rows) * 1e3,
        least=min((row.bandwidth_fraction for row in rows), default=0.0),
        times=_times(rows),
        fractions=_fractions(rows),
        table=Table("cases", "In the order of the command", _COLUMNS, [_cells(row) for row in rows]),
    )


def _detail(case: Case, count: int) -> str:
    parts = [case.op_text, case.dtype, f"axes {_axes(case)}"]
    return ", ".join(parts + ([f"{count} times"] if count > 1 else []))


def _axes(case: Case) -> str:
    return ",".join(map(str, case.axes)) or "none"


def _times(rows: Sequence[Measurement]) -> list[_Bar]:
    longest = max((max(row.kernel.high, row.addition.high) for row in rows), default=1.0)

    def scaled(spread: Spread) -> _Quartiles:
        return _Quartiles(*(round(100 * seconds / longest, 3) for seconds in spread))

    return [
        _Bar(
            row.case.shape_text,
            _detail(row.case, row.count),
            scaled(row.kernel),
            scaled(row.addition),
            None,
            f"{_ms(row.kernel.median)} ms",
            f"{row.case.shape_text}: {row.kernel} ms; addition {row.addition} ms",
        )
        for row in rows
    ]


def _fractions(rows: Sequence[Measurement]) -> list[_Bar]:
    """Returns the throughput over the bandwidth, by quartile of the op's time and median of the addition's."""
    highest = [row.bandwidth_fraction * row.kernel.median / row.kernel.low for row in rows]
    scale = 100 / max(1.05, 1.02 * max(highest, default=0.0))

    def quartiles(row: Measurement) -> _Quartiles:
        optimum = scale * row.bandwidth_fraction * row.kernel.median
        return _Quartiles(*(round(optimum / seconds, 3) for seconds in reversed(row.kernel)))

    return [
        _Bar(
            row.case.shape_text,
            _detail(row.case, row.count),
            quartiles(row),
            None,
            round(scale, 3),
            f"{row.bandwidth_fraction:.2f}",
            f"{row.case.shape_text}: {row.bandwidth_fraction:.2f} of the bandwidth, {row.gb_per_s:.3g} GB/s",
        )
        for row in rows
    ]


def _cells(row: Measurement) -> list[str]:
    case = row.case
    low, median, high = (_ms(seconds) for seconds in row.kernel)
    return [
        case.shape_text,
        case.op_text,
        _axes(case),
        case.dtype,
        str(row.count),
        median,
        low,
        high,
        number_text(row.gb_per_s),
        _ms(row.addition.median),
        number_text(row.bandwidth_gb_per_s),
        f"{row.bandwidth_fraction:.2f}",
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"
