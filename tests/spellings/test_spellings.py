"""Tests that spellings of batch norm are recognized, near misses are not, and wrong results are found."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spellings import campaign
from spellings.cases import CONSISTENTLY, make_near_miss, make_spelling
from spellings.judge import judge, model_finds
from spellings.mutations import MUTATIONS
from spellings.rewrite import REWRITES

SEED = 20240229
SHORT = 50
DOCUMENT = Path(__file__).parents[2] / "docs" / "measurements" / "spellings.md"


@pytest.mark.parametrize("what", campaign.MAKERS)
def test_a_short_campaign(what):
    """Runs a sample of the long campaign below."""
    results = list(campaign.run(what, SEED, range(SHORT), jobs=1))
    assert [(index, finds) for index, finds, _, _ in results if finds] == []
    assert len(results) == SHORT


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_long_campaign():
    """Runs 20,000 cases of each kind; the page in docs/measurements has the counts."""
    written = DOCUMENT.read_text(encoding="utf-8")
    command = [sys.executable, campaign.__file__, "--count", "20000", "--seed", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert written.strip() in ran.stdout


_PRINTED = """
import hashlib, sys
from spellings.cases import make_near_miss, make_spelling
for seed in (7, 8):
    models = [make(seed, index).model for make in (make_spelling, make_near_miss) for index in range(12)]
    print(hashlib.sha256(b"".join(model.SerializeToString(deterministic=True) for model in models)).hexdigest())
"""


def test_a_case_is_its_seed_and_number():
    """Compares processes, because the order of a set of strings differs between them."""

    def models(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _PRINTED]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()

    first, other = models(1)
    assert models(2) == [first, other]
    assert first != other


def test_every_rewrite_is_drawn():
    missing = set(REWRITES)
    for index in range(2000):
        missing -= {*make_spelling(SEED, index).used}
        if not missing:
            break
    assert missing == set()


def test_every_mutation_is_drawn():
    drawn = {make_near_miss(SEED, index).used[0] for index in range(len(MUTATIONS) + 1)}
    assert drawn == {f"near miss: {name}" for name in (*MUTATIONS, CONSISTENTLY)}


@pytest.mark.parametrize("make", [make_spelling, make_near_miss])
def test_models_are_valid(make):
    """Runs onnx's checker, its reference and ONNX Runtime."""
    for index in range(12):
        assert model_finds(make(SEED, index), everywhere=True) == []


def test_a_spelling_taken_for_a_near_miss_is_found():
    case = make_spelling(SEED, 0)
    verdict = judge(replace(case, taken=(), not_taken=case.taken), 1)
    assert verdict.finds == ["forward is taken, but right"]


def test_a_near_miss_taken_for_a_spelling_is_found():
    case = next(case for case in (make_near_miss(SEED, index) for index in range(99)) if case.not_taken)
    verdict = judge(replace(case, taken=case.not_taken, not_taken=()), 1)
    assert any("is not taken" in find for find in verdict.finds)


def test_a_model_that_computes_something_else_is_found():
    case = make_spelling(SEED, 0)
    outputs = {name: value * 1.01 for name, value in case.outputs.items()}
    assert judge(replace(case, outputs=outputs), 1).finds
