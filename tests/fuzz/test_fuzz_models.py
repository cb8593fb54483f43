"""Models from anywhere: every find again, a short campaign, and proof that it finds what is there to find."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bngrad.cli import run
from fuzz import campaign, lowering_regressions, node_regressions, regressions
from fuzz.cases import MODEL, OUTPUT, WEIGHTS, Case, make, npz
from fuzz.judge import judge, prepare
from fuzz.injected_faults import FAULTS

CASES = {**regressions.CASES, **node_regressions.CASES, **lowering_regressions.CASES}
SHORT = 150
PROGRAM = Path(campaign.__file__)
ARGUMENTS = {
    "inspect": ("inspect", MODEL),
    "rewrite": ("rewrite", MODEL, "-o", OUTPUT),
    "differentiate": ("differentiate", MODEL, "-o", OUTPUT, "--loss", "loss", "--wrt", "x"),
    "finalize": ("finalize", MODEL, "-o", OUTPUT, "--weights", WEIGHTS, "--keep", "loss"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)


def case_of(content, *commands, weights=()):
    arrays = {name: np.ones(3, np.float32) for name in weights}
    return Case("", content, npz(arrays), commands, output_exists=False)


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_once(name, capfd):
    """Every command keeps to the rules, and the one of the case says what it should."""
    case = CASES[name]
    found = case_of(regressions.model(case).SerializeToString(), *ARGUMENTS.values(), weights=case.weights)
    assert judge(found)[0] == []
    Path(MODEL).write_bytes(found.content)
    Path(WEIGHTS).write_bytes(found.weights)
    Path(OUTPUT).unlink(missing_ok=True)
    code = run(list(ARGUMENTS[case.command]))
    said = capfd.readouterr().err
    assert case.message in said
    errors = [line for line in said.splitlines() if not line.startswith("bngrad: warning: ")]
    assert (code, len(errors)) == ((2, 1) if case.message else (0, 0))


def test_a_short_campaign():
    """Mutated models against all commands; the long one is ``make fuzz``."""
    ran = subprocess.run(
        [sys.executable, PROGRAM, "--count", str(SHORT), "--seed", "20240229"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{SHORT} models of {SHORT} in" in ran.stdout
    # It is no campaign in which all models are refused at the door.
    for end in ("inspect 0", "rewrite output loaded", "differentiate output loaded", "finalize output loaded"):
        assert re.search(rf"^ *[1-9]\d* {end}$", ran.stdout, re.MULTILINE), ran.stdout


def test_a_case_is_its_seed_and_number():
    some = [make(7, index) for index in range(40)]
    assert some == [make(7, index) for index in range(40)]
    assert len({case.content for case in some}) > 35
    assert some[0] != make(8, 0)


# ---- a campaign finds what is there to find ----


@pytest.fixture(scope="module")
def found():
    program = PROGRAM.with_name("injected_faults.py")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def test_nothing_is_found_where_nothing_is_wrong(found):
    assert found["none"] == []


@pytest.mark.parametrize(("fault", "what"), [(fault.__name__, what) for fault, what in FAULTS.items()])
def test_a_planted_fault_is_found_and_nothing_else(fault, what, found):
    """The models before and behind it go through, also where the worker died."""
    assert found[fault] == [[1, what]]
