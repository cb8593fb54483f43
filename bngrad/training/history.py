"""The losses of a trainer's steps, kept in little memory, and their web page."""

from __future__ import annotations

import html
import math
import time
from array import array
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bngrad.io.files import AnyModel
    from bngrad.training.step_info import StepInfo

_KEYS = ("step", "loss", "learning_rate", "gradient_norm", "seconds")

_HEIGHT = 640
"""The height of the page in a notebook, in pixels."""


class Pages(Protocol):
    """The module that writes pages of runs; it is in a package above this one."""

    def write_history(self, path: Path, history: History) -> None:
        """Writes the page of a history."""

    def history_page(self, history: History) -> str:
        """Returns the page of a history."""
        ...


_LOADERS: list[Callable[[], Pages]] = []


def register_pages(load: Callable[[], Pages]) -> None:
    """Registers the function that loads the module that writes pages."""
    _LOADERS.append(load)


def pages() -> Pages:
    """Returns the module that writes pages."""
    return _LOADERS[-1]()


class History:
    """The records of a training, each as a line of the log of `bngrad train`; a notebook shows their page.

    Args:
        model: The training step.
        options: What the training is done with, as text by name.
        device: The device.
    """

    def __init__(self, model: AnyModel, options: Mapping[str, str], device: str) -> None:
        self.model, self.options, self.device = model, dict(options), device
        self._columns = {key: array("d") for key in _KEYS}
        self._others: list[dict[str, Any]] = []
        self._start = time.monotonic()

    def add_step(self, step: int, loss: float, learning_rate: float, gradient_norm: float | None) -> None:
        """Adds a step; the steps from there on, of a state that was left, are dropped."""
        steps = self._columns["step"]
        while steps and steps[-1] >= step:
            for column in self._columns.values():
                column.pop()
        norm = math.nan if gradient_norm is None else gradient_norm
        values = (step, loss, learning_rate, norm, round(time.monotonic() - self._start, 3))
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def add(self, **numbers: float) -> None:
        """Adds numbers of an evaluation after the last step.

        Args:
            numbers: Such as ``epoch``, ``training_loss``, ``validation_loss`` and ``accuracy``.
        """
        steps = self._columns["step"]
        seconds = round(time.monotonic() - self._start, 3)
        self._others.append({"step": int(steps[-1]) if steps else 0, **numbers, "seconds": seconds})

    def __len__(self) -> int:
        return len(self._columns["step"]) + len(self._others)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        """The records of all steps and evaluations, in order."""
        steps = [
            {"step": int(step), "loss": loss, "learning_rate": rate}
            | ({} if math.isnan(norm) else {"gradient_norm": norm})
            | {"seconds": seconds}
            for step, loss, rate, norm, seconds in zip(*self._columns.values(), strict=True)
        ]
        return sorted([*steps, *self._others], key=lambda record: (record["step"], "loss" not in record))

    def _repr_html_(self) -> str:
        """Returns the page in a frame, for notebooks."""
        page = html.escape(pages().history_page(self))
        style = f"width: 100%; height: {_HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{page}" title="Training" style="{style}"></iframe>'


def described(info: StepInfo, implementation: str, device: str) -> dict[str, str]:
    """Returns what a training is done with, for its page."""
    optimizer = ", ".join(
        str(value) if key == "name" else f"{key} {value}" for key, value in info.optimizer.items()
    )
    described = {"optimizer": optimizer, "implementation": implementation, "device": device}
    return described | ({} if info.clip_norm is None else {"clip-norm": str(info.clip_norm)})
