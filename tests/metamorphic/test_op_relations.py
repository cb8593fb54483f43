"""Checks the relations of op_relations.py, each on every op, layout and type for which it holds."""

from __future__ import annotations

import pytest

from metamorphic.comparisons import check
from metamorphic.op_relations import RELATIONS, comparisons, problems


@pytest.mark.parametrize("name", RELATIONS)
def test_relation(name):
    tried = 0
    for op, pattern, type_name in problems(RELATIONS[name]):
        for comparison in comparisons(name, op, pattern, type_name):
            check(comparison._replace(name=f"{op} {pattern} {type_name}: {comparison.name}"))
            tried += 1
    assert tried, "the relation compares nothing"
