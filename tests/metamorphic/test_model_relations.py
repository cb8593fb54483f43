"""The relations of model_relations.py on every whole model, with its batch norms in training and frozen."""

from __future__ import annotations

from functools import cache

import pytest

from metamorphic.dues import check
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
    dues = RELATIONS[name].dues(run_of(model, frozen))
    assert dues, "a relation says nothing"
    for due in dues:
        check(due)
