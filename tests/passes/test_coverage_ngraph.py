"""Every test that docs/coverage/ngraph.md names is there, and every row names one or says why not."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

PASSES = pathlib.Path(__file__).parent
TABLE = PASSES.parents[1] / "docs" / "coverage" / "ngraph.md"
ROWS = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]


def functions(file):
    tree = ast.parse((PASSES / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_row(row):
    *_, ours, tests = (cell.strip() for cell in row.strip("| ").split(" | "))
    assert ours
    named = re.findall(r"`(?:(\w+\.py)::)?(test_\w+)`", tests)
    assert named or tests == "none: nothing is done"
    for file, test in named:
        assert test in functions(file or "test_import_ngraph.py")
