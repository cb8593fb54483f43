"""The coverage table names tests that exist, in every row."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "coverage" / "miopen.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("|")][2:]


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_a_test(row):
    assert len(row) == 4
    path, name = row[3].strip("`").split("::")
    assert name.startswith("test_")
    assert name in names_in(ROOT / "tests" / path)
