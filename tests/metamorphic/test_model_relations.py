"""Checks the relations of model_relations.py on every model, with batch norms in training mode and frozen."""

from __future__ import annotations

from functools import cache

import pytest

from metamorphic.comparisons import check
from metamorphic.forward_models import FORWARD_MODELS
from metamorphic.model_relations import RELATIONS
from metamorphic.steps import Run

MODELS = {model.name: model for model in FORWARD_MODELS}
CASES = [
    (model.name, frozen, name)
    for name, relation in RELATIONS.items()
    for model in FORWARD_MODELS
    for frozen in (False, True)
    if frozen in relation.frozen and relation.holds(model)
]


@cache
def run_of(model, frozen):
    return Run(MODELS[model], frozen=frozen)


@pytest.mark.parametrize(("model", "frozen", "name"), CASES)
def test_relation(model, frozen, name):
    comparisons = RELATIONS[name].compare(run_of(model, frozen))
    assert comparisons, "the relation compares nothing"
    for comparison in comparisons:
        check(comparison)
