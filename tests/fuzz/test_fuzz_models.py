"""Tests of the fuzzer: all former findings, a short campaign, and injected faults that a campaign must find."""

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
from fuzz.injected_faults import FAULTS
from fuzz.judge import judge, prepare

CASES = {**regressions.CASES, **node_regressions.CASES, **lowering_regressions.CASES}
SHORT = 40
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


@pytest.mark.usefixtures("expected_failures")  # the models are broken
@pytest.mark.parametrize("name", CASES)
def test_a_former_finding(name, capfd):
    """Has no finding with any command, and the expected message with the command of the regression."""
    regression = CASES[name]
    content = regressions.model(regression).SerializeToString()
    case = case_of(content, *ARGUMENTS.values(), weights=regression.weights)
    assert judge(case)[0] == []
    Path(MODEL).write_bytes(case.content)
    Path(WEIGHTS).write_bytes(case.weights)
    Path(OUTPUT).unlink(missing_ok=True)
    code = run(list(ARGUMENTS[regression.command]))
    stderr = capfd.readouterr().err
    assert regression.message in stderr
    errors = [line for line in stderr.splitlines() if not line.startswith("bngrad: warning: ")]
    assert (code, len(errors)) == ((2, 1) if regression.message else (0, 0))


def test_a_short_campaign():
    """Runs mutated models; ``make fuzz`` runs many more."""
    ran = subprocess.run(
        [sys.executable, PROGRAM, "--count", str(SHORT), "--seed", "20240229"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{SHORT} models of {SHORT} in" in ran.stdout
    # Some models must be accepted, or the campaign would test little.
    for end in ("inspect 0", "rewrite output loaded", "differentiate output loaded", "finalize output loaded"):
        assert re.search(rf"^ *[1-9]\d* {end}$", ran.stdout, re.MULTILINE), ran.stdout


def test_a_case_is_determined_by_seed_and_index():
    some = [make(7, index) for index in range(40)]
    assert some == [make(7, index) for index in range(40)]
    assert len({case.content for case in some}) > 35
    assert some[0] != make(8, 0)


# ---- a campaign finds injected faults ----


@pytest.fixture(scope="module")
def findings():
    program = PROGRAM.with_name("injected_faults.py")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def test_without_a_fault_there_is_no_finding(findings):
    assert findings["none"] == []


@pytest.mark.parametrize(("fault", "what"), [(fault.__name__, what) for fault, what in FAULTS.items()])
def test_an_injected_fault_is_the_only_finding(fault, what, findings):
    """The cases before and after it have no finding, even if the worker died."""
    assert findings[fault] == [[1, what]]
