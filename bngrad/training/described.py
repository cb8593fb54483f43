"""Options of loss functions and optimizers, described for the command line where they are declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "integer", "flag", "array", "number or array"]
"""The values of an option; an array is a .npy file on the command line."""


@dataclass(frozen=True)
class Description:
    """The description of an option."""

    text: str
    """Its meaning; ``{}`` stands for the names of those that have the option with this meaning."""
    kind: Kind | tuple[str, ...]
    """Its values; a tuple has them all."""
    flag: str | None
    """Its name on the command line, without dashes; None for that of the field."""


def described(
    text: str, kind: Kind | tuple[str, ...] = "number", *, flag: str | None = None
) -> dict[str, Description]:
    """Returns the metadata of a field of a dataclass that is an option; see `Description`."""
    return {"description": Description(text, kind, flag)}
