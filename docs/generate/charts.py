"""Speed charts: their numbers are read from the tables of docs/measurements.

`make pictures` writes docs/images/step-time.svg and docs/images/kernels.svg.
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure
from themes import as_svg

DOCS = Path(__file__).parents[1]
OURS, FUNCTION, OTHERS = "#00897b", "#6bbfb0", ["#e07b39", "#8e7cc3", "#b8aee0"]


def main() -> None:
    """Writes the charts."""
    for name, figure in {"step-time": step_time(), "kernels": kernels()}.items():
        (DOCS / f"images/{name}.svg").write_text(as_svg(figure), encoding="utf-8", newline="\n")


def table(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading, without its header and without bold type."""
    text = (DOCS / "measurements" / page).read_text(encoding="utf-8")
    _, _, section = text.partition(f"\n## {heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    if rows is None:
        raise ValueError(f"{page} has no table below {heading!r}")
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in rows[0].splitlines()[2:]]


def leading_number(cell: str) -> float:
    """Returns the first number of a cell: the median of "1.669 (1.570-1.693)"."""
    number = re.search(r"\d+\.?\d*", cell)
    if number is None:
        raise ValueError(f"no number in {cell!r}")
    return float(number[0])


def step_time() -> Figure:
    """Draws the time of a training step, by network and system."""
    times: dict[str, dict[str, float]] = {}
    network = ""
    for first, system, seconds, *_ in table("training.md", "Time and memory of a step"):
        network = first or network
        times.setdefault(network, {})[system] = leading_number(seconds)
    systems = list(next(iter(times.values())))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(systems)
    for i, (system, color) in enumerate(zip(systems, [OURS, FUNCTION, *OTHERS], strict=True)):
        places = [row + i * height for row in range(len(times))]
        bars = axes.barh(places, [of[system] for of in times.values()], height * 0.9, label=system, color=color)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(times))], list(times))
    axes.invert_yaxis()
    axes.set_xlabel("seconds a training step, batch 8 of 224x224, two threads")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    return _bare(figure)


_LINE = 0.8
"""The least ratio whose figure beside the bar would reach 1."""


def kernels() -> Figure:
    """Draws the speed of the gradient kernel over that of other libraries, in the first run of each."""
    rows = table("kernels.md", "The gradient of every batch norm of ResNet-50")
    rows = [row for row in rows if "bare gradient" not in row[0]]
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for i, (machine, color) in enumerate([("Xeon", FUNCTION), ("EPYC", OURS)]):
        places = [row + (i - 0.5) * 0.38 for row in range(len(rows))]
        ratios = [leading_number(row[i + 1]) for row in rows]
        axes.barh(places, ratios, 0.34, label=machine, color=color)
        for ratio, place in zip(ratios, places, strict=True):
            end = 1.0 if _LINE <= ratio < 1 else ratio  # the dashed line would strike the figure through
            offset = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
            axes.annotate(f"{ratio:.2f}", (end, place), **offset)
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("time of the other over ours (above 1: bngrad is faster)")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    return _bare(figure)


def _bare(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


if __name__ == "__main__":
    main()
