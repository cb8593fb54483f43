"""Tests the selections of combinations in which every two values meet, or every value occurs."""

from __future__ import annotations

import itertools
import math

import pytest

from pairwise import all_pairs, all_values, pairwise

SIZES = [(2, 3), (3, 3, 3), (10, 2, 4, 2, 3), (2,) * 8, (1, 4, 1), (3,), (5, 1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_two_values_meet(sizes):
    columns = [[f"{name}{i}" for i in range(size)] for name, size in zip("abcdefgh", sizes, strict=False)]
    for seed in range(3):
        rows = all_pairs(*columns, seed=seed)
        assert set(rows) <= set(itertools.product(*columns))
        assert len(set(rows)) == len(rows)
        for (a, values), (b, others) in itertools.combinations(enumerate(columns), 2):
            assert {(row[a], row[b]) for row in rows} == set(itertools.product(values, others))
        # At least as many as the two longest columns have pairs, and not many more.
        least = math.prod(sorted(sizes)[-2:])
        assert least <= len(rows) <= 2 * least + 6


def test_a_seed_gives_one_selection():
    columns = [range(4)] * 4
    assert all_pairs(*columns, seed=1) == all_pairs(*columns, seed=1)
    assert all_pairs(*columns, seed=1) != all_pairs(*columns, seed=2)


def test_other_combinations_are_long():
    mark = pairwise(first={"one": 1, "two": [2]}, second=[1.5, None, "x"], third=["y", "z"]).mark
    names, parameters = mark.args
    assert names == ("first", "second", "third")
    assert len(parameters) == 12
    assert {parameter.id for parameter in parameters} >= {"one-1.5-y", "two-None-z"}
    short = [parameter.values for parameter in parameters if not parameter.marks]
    assert sorted(map(str, short)) == sorted(map(str, all_pairs([1, [2]], [1.5, None, "x"], ["y", "z"])))
    assert {mark.name for parameter in parameters for mark in parameter.marks} == {"long"}


def test_every_value_occurs():
    columns = "abcde", range(3), [None]
    rows = all_values(*columns)
    assert len(rows) == 5
    assert [set(values) for values in zip(*rows, strict=True)] == [set(column) for column in columns]
