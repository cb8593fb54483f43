"""Names of variables say what they hold, and docstrings begin with what they describe; names of test files."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EMPTY = {"each", "found", "given", "known", "made", "one", "read", "wanted"}
"""Names of variables that could stand for anything."""
HEADLESS = {"How", "See", "What", "Whether", "Why"}
"""First words of a clause that lacks its noun."""


def faults(source):
    """The lines that break a rule."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in EMPTY:
                yield f"line {node.lineno}: the variable {name}"
            case ast.Expr(value=ast.Constant(value=str(text))) if text.split()[:1] and text.split()[0] in HEADLESS:
                yield f"line {node.lineno}: a docstring that begins with {text.split()[0]}"


@pytest.mark.parametrize("folder", ["bngrad", "docs/examples", "docs/generate", "models", "tests"])
def test_names(folder):
    paths = [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]
    assert paths
    wrong = [f"{path.relative_to(ROOT)}: {fault}" for path in paths for fault in faults(path.read_text("utf-8"))]
    assert not wrong, "\n".join(wrong)


def test_files_of_tests_have_names_of_their_own():
    """Of two with one name, pytest collects the first."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    "source",
    [
        "one = 1",
        "for each in []: pass",
        "[known for known in ()]",
        "def f(made): pass",
        "(read := 1)",
        "with x as given: pass",
        "lambda wanted: 0",
        '"""What it is."""',
        'def f():\n    """Whether it is."""',
    ],
)
def test_faults_are_found(source):
    assert len([*faults(source)]) == 1


@pytest.mark.parametrize(
    "source", ["number = 1", "print(one)", 'x = "What"', '"""Returns whether it is."""', "file.read()", '""" """']
)
def test_others_are_not(source):
    assert not [*faults(source)]
