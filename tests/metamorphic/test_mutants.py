"""Checks that every mutant applies to the sources, and makes one, as `make mutants` makes all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from bngrad.runtime.native_library import LIBRARY_VARIABLE, library_path
from metamorphic.mutant_process import PASSED, run_tests
from metamorphic.mutants import ROOT, units_of
from metamorphic.mutation_campaign import MUTANTS


def test_there_are_many_and_none_twice():
    assert len([mutant for mutant in MUTANTS if not mutant.equivalent]) >= 60
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_changes_one_line(mutant):
    text = mutant.text()
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")
    else:
        sources = [ROOT / "ops" / unit for unit in units_of(mutant)]
        assert [path for path in sources if path.suffix != ".cc" or not path.is_file()] == []


def test_the_named_tests_exist():
    named = sorted({test for mutant in MUTANTS for test in mutant.other_tests})
    tests = [test for test in named if "[" in test]
    for file, _, name in (test.partition("::") for test in named if test not in tests):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name or 'test_.*'}\(", text, re.MULTILINE), f"{file} has no {name}"
    command = [sys.executable, "-m", "pytest", "--collect-only", "--keep-duplicates", "-qq", "-n0", *tests]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout + collected.stderr


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "bngrad", folder / "bngrad", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    return folder


RELATIONS_OF_FILES = {
    "bngrad/passes/imports/onnx.py": "dense and differences",
    "bngrad/passes/optimize/fuse_relu.py": "conv and unfused",
    "bngrad/autodiff/rules/normalization.py": "norms and functions or norms and differences",
}
"""Files of which one mutant is tested, and the relations to test it with; `make test` tests the first."""


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=pytest.mark.long if i else ()) for i, file in enumerate(RELATIONS_OF_FILES)]
)
def test_a_mutant_is_killed(file, package):
    mutant = next(mutant for mutant in MUTANTS if mutant.file == file)
    environment = {LIBRARY_VARIABLE: str(library_path())}
    tests = ["tests/metamorphic/test_model_relations.py"]
    path = package / file
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.text(), encoding="utf-8")
    try:
        assert run_tests(tests, package, environment, select=RELATIONS_OF_FILES[file]).killed
    finally:
        path.write_text(original, encoding="utf-8")
    # The same relations must hold without the mutant.
    assert run_tests(tests, package, environment, select=RELATIONS_OF_FILES[file]).code == PASSED
