"""The loss curve of a training run as a picture."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError
from bngrad.io.writing import check_output, replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

_FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: str | os.PathLike[str]) -> Path:
    """Checks that a loss curve can be written to a file, and returns its path.

    Raises:
        InputError: matplotlib is not installed, the suffix is unknown, or the path cannot be written.
    """
    file = check_output(path)
    if file.suffix.lower() not in _FORMATS:
        raise InputError(f"the plot {file} has the suffix {file.suffix!r}; expected one of {', '.join(_FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("a plot needs matplotlib, which is not installed: pip install 'bngrad[plot]'")
    return file


def draw(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Draws the losses of a run's records: of each step, and where there are any, of each validation.

    Raises:
        InputError: The file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency, slow to import

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    losses: list[float] = []
    for key, label, style in (
        ("loss", "training", {"linewidth": 1, "alpha": 0.8}),
        ("validation_loss", "validation", {"marker": "o", "markersize": 3}),
    ):
        points = [(record["step"], record[key]) for record in records if record.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
        losses += [loss for _, loss in points]
    if losses and min(losses) > 0:
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="loss")
    if axes.lines:
        axes.legend()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower()[1:], metadata=metadata)
