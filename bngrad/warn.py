"""Warnings of functions that users call, as Python has them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from bngrad.errors import BngradWarning

if TYPE_CHECKING:
    from collections.abc import Iterable

_CALLER_OF_A_PUBLIC_FUNCTION = 3


def warn(messages: Iterable[str]) -> None:
    """Warns of each, at the line that called the public function which calls this."""
    for message in messages:
        warnings.warn(message, BngradWarning, stacklevel=_CALLER_OF_A_PUBLIC_FUNCTION)
