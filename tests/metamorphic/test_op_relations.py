"""Checks the relations of op_relations.py, each on every op, layout and type for which it holds."""

from __future__ import annotations

import pytest

from metamorphic.comparisons import check
from metamorphic.op_relations import FEW, OF_FUNCTIONS, RELATIONS, comparisons, problems


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*((name, "native") for name in RELATIONS), *((name, "function") for name in OF_FUNCTIONS)],
)
def test_relation(name, implementation):
    tried = 0
    for op, pattern, type_name in problems(RELATIONS[name]):
        if implementation == "function" and pattern not in FEW:
            continue
        for comparison in comparisons(name, op, pattern, type_name, implementation):
            check(comparison._replace(name=f"{op} {pattern} {type_name}: {comparison.name}"))
            tried += 1
    assert tried, "the relation compares nothing"
