"""The check of hyperparameters."""

from __future__ import annotations

import math

from bngrad.arguments import require_number
from bngrad.errors import InputError


def require_range(owner: object, *, below: float = math.inf, **values: float) -> None:
    """Checks that hyperparameters of a frozen dataclass are at least 0, and converts them to floats.

    Raises:
        InputError: One is not a number, or out of range.
    """
    for name, argument in values.items():
        what = type(owner).__name__
        value = require_number(f"{what}: {name}", argument)
        object.__setattr__(owner, name, value)
        if not 0 <= value < below:
            limit = "a finite number" if below == math.inf else f"a number below {below}"
            raise InputError(f"{what}: {name} is {value}; expected {limit}, at least 0")
