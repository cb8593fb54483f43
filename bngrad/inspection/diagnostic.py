"""The text of a hazard or a warning, and what kind it is of."""

from __future__ import annotations

from typing import Self


class Diagnostic(str):
    """One line of text about a model, with the kind of the problem, such as ``tied-weights``.

    A string, so that a list of diagnostics is a list of messages: printed, issued as Python warnings, and written
    to JSON as text.
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str = "") -> Self:
        """Makes a diagnostic.

        Args:
            text: The fault, its place, and the remedy.
            kind: The id of its rule in `bngrad.reports.rules`.
        """
        diagnostic = super().__new__(cls, text)
        diagnostic.kind = kind
        return diagnostic
