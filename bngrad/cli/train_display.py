"""The terminal of ``bngrad train``: a line on the run before it, and a line that fits any width during it."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from bngrad.cli.console import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.training.step_info import StepInfo

_LEVELS = "▁▂▃▄▅▆▇█"

_FEWEST, _MOST = 5, 20
"""The least and the most columns of a sparkline."""

_ORDER = ("epoch", "step", "loss", "sparkline", "rate", "speed")
"""The parts of the line, from left to right."""

_SECONDS = 3.0
"""The time that the rate of steps is the mean of."""


def header(info: StepInfo, *, samples: int, validated: int, steps: int, device: str) -> str:
    """Returns the line on the data and the model.

    Args:
        info: The metadata of the training step.
        samples: The number of samples to train on.
        validated: The number of samples to validate on.
        steps: The number of steps of an epoch.
        device: The device to train on.
    """
    shapes = [info.state[name].shape for name in info.names("weight")]
    data = f"{count_text(samples, 'sample')}, {count_text(steps, 'step')} an epoch"
    data += f", {validated:,} to validate on" if validated else ""
    weights = f"{count_text(len(shapes), 'weight')} with {count_text(sum(map(math.prod, shapes)), 'parameter')}"
    return f"{data}; {weights}; {device}"


class StatusLine:
    """Builds the line that shows where a training run is.

    Args:
        epochs: The number of epochs of the run.
        encoding: The encoding of the terminal, which may lack the characters of a sparkline.
    """

    def __init__(self, epochs: int, encoding: str = "utf-8") -> None:
        self._epochs = epochs
        self._has_sparkline = _can_encode(encoding)
        self._losses = Means(4 * _MOST)
        self._recent: list[tuple[float, int]] = []
        self._epoch = 0

    def __call__(self, record: Mapping[str, Any], width: int) -> str:
        """Returns the line for the record of a step.

        Args:
            record: The record, as the log has it.
            width: The columns that the line may have.
        """
        if record["loss"] is not None:
            self._losses.add(record["loss"])
        loss = "not finite" if record["loss"] is None else f"{record['loss']:.4g}"
        # In the order of their importance: the last ones are left out where they do not fit.
        parts = {
            "epoch": f"epoch {record['epoch']}/{self._epochs}",
            "loss": f"loss {loss}",
            "sparkline": "-" * _FEWEST if self._has_sparkline else "",
            "step": f"step {record['step']}",
            "rate": f"lr {record['learning_rate']:.3g}",
            "speed": self._speed(record),
        }
        shown = [name for name in parts if parts[name]]
        while len(shown) > 1 and len(_joined(parts, shown, " ")) > width:
            shown.pop()
        space = "  " if len(_joined(parts, shown, "  ")) <= width else " "
        if "sparkline" in shown:
            room = _FEWEST + width - len(_joined(parts, shown, space))
            parts["sparkline"] = sparkline(self._losses.values(min(room, _MOST)))
        return _joined(parts, shown, space)

    def _speed(self, record: Mapping[str, Any]) -> str:
        """Returns the steps in a second; empty if it is unknown. The time of a validation does not count."""
        if record["epoch"] != self._epoch:
            self._epoch, self._recent = record["epoch"], []
        self._recent.append((record["seconds"], record["step"]))
        while len(self._recent) > 2 and self._recent[-1][0] - self._recent[1][0] > _SECONDS:
            self._recent.pop(0)
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        return f"{(last - first) / (end - start):.3g} steps/s" if end > start else ""


def _joined(parts: Mapping[str, str], names: Sequence[str], space: str) -> str:
    return space.join(parts[name] for name in _ORDER if name in names)


def _can_encode(encoding: str) -> bool:
    try:
        _LEVELS.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


class Means:
    """The means of parts of a series, which grows without end.

    Args:
        most: The number of parts from which on each two become one.
    """

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 1
        self._means: list[float] = []
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Adds a value."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count == self._size:
            self._means.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self._means) == self._most:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means, self._size = [(first + second) / 2 for first, second in pairs], 2 * self._size

    def values(self, count: int) -> list[float]:
        """Returns the means of at most so many parts of the series."""
        means = [*self._means, *([self._sum / self._count] if self._count else [])]
        parts = min(count, len(means))
        edges = [part * len(means) // parts for part in range(parts + 1)] if parts else [0]
        return [sum(means[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]


def sparkline(values: Sequence[float]) -> str:
    """Returns a character for each value, from the lowest to the highest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((value - low) * scale)] for value in values)
