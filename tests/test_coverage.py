"""Every row of docs/reference/coverage names a test that exists, or states that the feature is out of scope."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDER = TESTS.parent / "docs" / "reference" / "coverage"
TABLES = sorted(path for path in FOLDER.glob("*.md") if path.stem != "index")


def rows():
    for table in TABLES:
        lines = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        for line in lines[2:]:
            cells = line.strip("| ").split(" | ")
            yield pytest.param(table.stem, cells, id=f"{table.stem}: {cells[0]}")


@cache
def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("system", "cells"), list(rows()))
def test_a_row_names_tests(system, cells):
    named = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)[^`]*`", cells[-1])
    assert named or cells[-1].startswith("none: ") or "not done" in cells[-2]
    for file, test in named:
        name = (file or f"test_import_{system}.py").removeprefix("tests/")
        (path,) = (p for p in (TESTS / name, TESTS / "passes" / name) if p.exists())
        assert test in names_in(path)


def test_every_system_has_a_table():
    systems = {"directml", "miopen", "ngraph", "onnxruntime-training", "pytorch", "tensorflow"}
    assert {table.stem for table in TABLES} == systems
