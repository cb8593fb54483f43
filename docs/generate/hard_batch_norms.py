"""Writes the table of cases of docs/reference/hard-batch-norms.md.

.venv/bin/python docs/generate/hard_batch_norms.py
"""

from __future__ import annotations

from pathlib import Path

from bngrad.validation.hard_batch_norms.cases import cases
from tables import rows_of, with_tables

PAGE = Path(__file__).parents[1] / "reference" / "hard-batch-norms.md"


def page() -> str:
    """Returns the page, with the cases of now."""
    return with_tables(PAGE, lambda _name: rows_of(["case", "X", "what goes wrong"], rows()))


def rows() -> list[list[str]]:
    """Returns a row for each case."""
    shapes = {case.name: "x".join(map(str, case.arrays["X"].shape)) for case in cases()}
    return [[f"`{case.name}`", f"{case.arrays['X'].dtype} {shapes[case.name]}", case.pitfall] for case in cases()]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
