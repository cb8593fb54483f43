"""The relations of op_relations.py, each on every op, layout and type that it is about."""

from __future__ import annotations

import pytest

from metamorphic.dues import check
from metamorphic.op_relations import RELATIONS, dues, problems


@pytest.mark.parametrize("name", RELATIONS)
def test_relation(name):
    tried = 0
    for op, pattern, type_name in problems(RELATIONS[name]):
        for due in dues(name, op, pattern, type_name):
            check(due._replace(what=f"{op} {pattern} {type_name}: {due.what}"))
            tried += 1
    assert tried, "a relation is about nothing"
