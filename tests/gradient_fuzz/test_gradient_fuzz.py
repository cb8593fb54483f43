"""Random graphs over all gradient rules: former finds, a short campaign, and proof that an error is found."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.autodiff.rules import RULES
from gradient_fuzz import campaign, regressions
from gradient_fuzz.cases import SECOND_ORDER, make, rules
from gradient_fuzz.entries import ENTRIES
from gradient_fuzz.judge import judge

PROGRAM = Path(campaign.__file__)
DOCUMENT = Path(__file__).parents[2] / "docs" / "measurements" / "backend-models.md"


def test_every_rule_is_drawn():
    assert RULES.keys() - ENTRIES.keys() == SECOND_ORDER, "a rule that no campaign tries; give it an entry"
    assert ENTRIES.keys() - RULES.keys() == set()


@pytest.mark.parametrize("name", regressions.CASES)
def test_what_was_found_once(name):
    verdict = judge(regressions.case(name), range(4))
    assert verdict.finds == []
    assert (verdict.end, verdict.kinks) == ("right", 0)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_short_campaign(every):
    """Makes a graph for each of these rules; the long campaign is ``make fuzz-gradients``."""
    op_types = [op_type for _, op_type in rules()[::every]]
    count = len(op_types)
    arguments = [word for op_type in op_types for word in ("--rule", op_type)]
    ran = _run(PROGRAM, "--count", str(count), "--seed", "20240229", "--jobs", "1", *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{count} graphs of {count} in" in ran.stdout
    # Not all graphs may be refused.
    right = sum(int(number) for number in re.findall(r"^ *(\d+) right", ran.stdout, re.MULTILINE))
    assert right > count * 0.7, ran.stdout


def test_a_case_is_its_seed_and_number():
    def some(seed):
        return [make(seed, index).model.SerializeToString(deterministic=True) for index in range(12)]

    assert some(7) == some(7)
    assert some(7)[0] != some(8)[0]


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_an_error_in_any_rule_is_found(every):
    """One percent is enough."""
    ran = _run(PROGRAM.with_name("injected_errors.py"), str(every))
    assert ran.returncode == 0, ran.stderr
    graphs_of_rules = json.loads(ran.stdout)
    assert len(graphs_of_rules) == math.ceil(len(rules()) / every)
    assert [rule for rule, graphs in graphs_of_rules.items() if graphs is None] == []


@pytest.mark.long
def test_backend_models():
    """The table in docs/measurements/backend-models.md is up to date, and there are no finds."""
    ran = _run(PROGRAM.with_name("backend_models.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() in DOCUMENT.read_text()


def test_some_backend_models():
    ran = _run(PROGRAM.with_name("backend_models.py"), "--every", "40")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^\| \d+ \| right \|", ran.stdout, re.MULTILINE), ran.stdout


def _run(program, *arguments):
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=False)
