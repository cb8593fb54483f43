"""Learning rates as functions of the number of updates, with the formulas of `torch.optim.lr_scheduler`.

================== =============================================================== =============================
schedule           learning rate at update t (0 at the first)                      in PyTorch
================== =============================================================== =============================
`ConstantSchedule` rate                                                            none
`LinearSchedule`   rate (start + (end - start) min(t, total) / total)              LinearLR
`CosineSchedule`   minimum + (rate - minimum) (1 + cos(pi t / total)) / 2          CosineAnnealingLR
`StepSchedule`     rate factor ^ floor(t / every)                                  StepLR
================== =============================================================== =============================

A cosine schedule with a warm-up of w updates is linear from rate * start to rate, and then a cosine over the other
total - w, as SequentialLR combines both. It stays at the minimum after its last update; PyTorch's rises again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bngrad.arguments import require_number
from bngrad.errors import InputError

Schedule: TypeAlias = Callable[[int], float]
"""The learning rate by the number of updates made before."""

_START = 1 / 3
"""Of a warm-up; the default of PyTorch's LinearLR."""


@dataclass(frozen=True)
class ConstantSchedule:
    """The same learning rate at every update.

    Args:
        rate: The learning rate.

    Raises:
        InputError: It is negative or not finite.
    """

    rate: float

    def __post_init__(self) -> None:
        _require_rates(rate=self.rate)

    def __call__(self, update: int) -> float:
        """Returns the learning rate of an update."""
        del update
        return self.rate


@dataclass(frozen=True)
class LinearSchedule:
    """A learning rate that changes linearly, by default a warm-up, and then is constant.

    Args:
        rate: The learning rate that the factors multiply.
        total: The number of updates until ``end`` is reached.
        start: The factor at the first update.
        end: The factor from update ``total`` on.

    Raises:
        InputError: ``total`` is below 1, or another argument is negative or not finite.
    """

    rate: float
    total: int
    start: float = _START
    end: float = 1.0

    def __post_init__(self) -> None:
        _require_rates(rate=self.rate, start=self.start, end=self.end)
        _require_counts(1, total=self.total)

    def __call__(self, update: int) -> float:
        """Returns the learning rate of an update."""
        share = min(update, self.total) / self.total
        return self.rate * (self.start + (self.end - self.start) * share)


@dataclass(frozen=True)
class CosineSchedule:
    """A learning rate that falls to a minimum along half a cosine, by choice after a linear warm-up.

    Args:
        rate: The highest learning rate.
        total: The number of updates until the minimum is reached, with the warm-up.
        minimum: The last learning rate.
        warmup: The number of updates of the warm-up.
        start: The factor of the rate at the first update of the warm-up.

    Raises:
        InputError: ``total`` is not above ``warmup``, or another argument is negative or not finite.
    """

    rate: float
    total: int
    minimum: float = 0.0
    warmup: int = 0
    start: float = _START

    def __post_init__(self) -> None:
        _require_rates(rate=self.rate, minimum=self.minimum, start=self.start)
        _require_counts(1, total=self.total)
        _require_counts(0, warmup=self.warmup)
        if self.warmup >= self.total:
            raise InputError(f"warmup is {self.warmup}; expected less than the number of updates, {self.total}")

    def __call__(self, update: int) -> float:
        """Returns the learning rate of an update."""
        if update < self.warmup:
            return self.rate * (self.start + (1 - self.start) * update / self.warmup)
        share = min(update - self.warmup, self.total - self.warmup) / (self.total - self.warmup)
        return self.minimum + (self.rate - self.minimum) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class StepSchedule:
    """A learning rate that is multiplied by a factor at regular intervals.

    Args:
        rate: The first learning rate.
        every: The number of updates between two changes.
        factor: The factor.

    Raises:
        InputError: ``every`` is below 1, or another argument is negative or not finite.
    """

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _require_rates(rate=self.rate, factor=self.factor)
        _require_counts(1, every=self.every)

    def __call__(self, update: int) -> float:
        """Returns the learning rate of an update."""
        return self.rate * float(self.factor ** (update // self.every))


def as_schedule(rate: float | Schedule) -> Schedule:
    """Returns a schedule; a number stands for a constant one.

    Raises:
        InputError: It is neither a number nor a function, or the number is negative or not finite.
    """
    if callable(rate):
        return rate
    number = require_number("learning_rate", rate, "a number or a schedule")
    _require_rates(learning_rate=number)
    return ConstantSchedule(number)


def _require_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate < math.inf:
            raise InputError(f"{name} is {rate}; expected a finite number, at least 0")


def _require_counts(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise InputError(f"{name} is {count}; expected a number of updates, at least {least}")
