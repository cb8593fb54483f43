"""The output of `bench_kernels.py`: tables in Markdown, a JSON document and a chart."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.bench.case import Case
from bngrad.bench.measure import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bngrad.bench.timing import Spread
    from kernel_cases import Row

BEST_ONEDNN = "oneDNN, best"


@dataclass(frozen=True)
class Timed:
    """A row and the times that every way took."""

    row: Row
    ways: dict[str, Spread]
    left_out: list[str]

    @property
    def ours(self) -> Measurement:
        asked = self.row.asked
        case = Case(asked.shape, asked.axes, asked.dtype, asked.op, asked.frozen)
        return Measurement(case, 1, self.ways["bngrad"], self.ways["roof"])

    @property
    def ratios(self) -> dict[str, float]:
        """The times of the others, as multiples of ours."""
        ours = self.ways["bngrad"].median
        ratios = {n: spread.median / ours for n, spread in self.ways.items() if n not in {"bngrad", "roof"}}
        onednn = [ratio for name, ratio in ratios.items() if name.startswith("oneDNN")]
        return ratios | ({BEST_ONEDNN: min(onednn)} if len(onednn) > 1 else {})

    def to_dict(self) -> dict[str, Any]:
        """A row of the JSON document."""
        ways = {name: {"ms": spread.in_ms()} for name, spread in self.ways.items()}
        for name, ratio in self.ratios.items():
            ways.setdefault(name, {})["ratio"] = ratio
        return {
            "group": self.row.group,
            "layout": self.row.asked.layout,
            "threads": self.row.threads,
            **self.ours.to_dict(),
            "ways": ways,
            "left_out": self.left_out,
        }


def section_table(rows: list[Timed]) -> str:
    """The rows of a section, and the mean and the least of each ratio."""
    names = list(dict.fromkeys(name for timed in rows for name in timed.ratios))
    head = ["group", "N,C,spatial", "bngrad ms", "GB/s", "of roof", *names]
    lines = [head, ["---"] * len(head)]
    for timed in rows:
        ours, extents = timed.ours, timed.row.asked.extents
        cells = [timed.row.group, ",".join(map(str, extents)), str(ours.kernel)]
        cells += [f"{ours.gb_per_s:.3g}", f"{ours.bandwidth_fraction:.2f}"]
        lines.append(cells + [_cell(timed, name) for name in names])
    for title, combine in (("geometric mean", geometric_mean), ("least", min)):
        cells = [title, "", "", "", f"{combine([timed.ours.bandwidth_fraction for timed in rows]):.2f}"]
        for name in names:
            ratios = [timed.ratios[name] for timed in rows if name in timed.ratios]
            cells.append(f"**{combine(ratios):.2f}**")
        lines.append(cells)
    return f"### {rows[0].row.section}\n\n{_markdown(lines)}"


def summary_table(sections: list[list[Timed]]) -> str:
    """A row for each section: the geometric mean of each ratio and, in brackets, the least."""
    names = list(dict.fromkeys(name for rows in sections for timed in rows for name in timed.ratios))
    head = ["section", "cases", "of roof", *names]
    lines = [head, ["---"] * len(head)]
    for rows in sections:
        columns = [[timed.ours.bandwidth_fraction for timed in rows]]
        columns += [[timed.ratios[name] for timed in rows if name in timed.ratios] for name in names]
        means = [f"{geometric_mean(column):.2f} ({min(column):.2f})" if column else "" for column in columns]
        lines.append([rows[0].row.section, str(len(rows)), *means])
    return "### Geometric means, and the least\n\n" + _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cell(timed: Timed, name: str) -> str:
    if name not in timed.ratios:
        return "-"
    ratio = f"**{timed.ratios[name]:.2f}**"
    return f"{timed.ways[name]}, {ratio}" if name in timed.ways else ratio


def draw(rows: Iterable[Timed], path: Path) -> None:
    """Draws each ratio as a point: a line for each way, a colour for each section."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = list(rows)
    roof = "roof, in GB/s"
    sections = list(dict.fromkeys(timed.row.section for timed in rows))
    names = [roof, *dict.fromkeys(name for timed in rows for name in timed.ratios)]
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.45 * len(names)), layout="constrained")
    # Sections lie beside each other within a line, lest they hide each other.
    offsets = np.linspace(0.3, -0.3, len(sections)) if len(sections) > 1 else [0.0]
    for section, offset in zip(sections, offsets, strict=True):
        points = [
            (ratio, names.index(name) - offset)
            for timed in rows
            if timed.row.section == section
            for name, ratio in {roof: timed.ours.bandwidth_fraction, **timed.ratios}.items()
        ]
        axes.scatter(*zip(*points, strict=True), s=9, alpha=0.7, label=section)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speed of bngrad over this; right of 1: bngrad is faster")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="x-small")
    figure.savefig(path)
