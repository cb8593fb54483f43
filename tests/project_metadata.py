"""The metadata of the project in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def project() -> dict:
    """The table ``project`` of pyproject.toml."""
    return _document()["project"]


def build_requirements() -> list[str]:
    """The requirements of the table ``build-system`` of pyproject.toml."""
    return _document()["build-system"]["requires"]


def _document() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
