"""Parametrization by a few combinations: every two values of two parameters meet, or every value occurs."""

from __future__ import annotations

import itertools
import random

import pytest

_TRIES = 30
"""Combinations of which the best is taken: more make the selection a little smaller."""


def all_pairs(*columns, seed=0):
    """Returns combinations, one value of each column, that contain every pair of values of two columns.

    Values need not be hashable, and the selection depends only on the lengths and the seed.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    ranges = [range(len(column)) for column in columns]
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(columns)), 2)
        for i, j in itertools.product(ranges[a], ranges[b])
    }
    rows = [] if missing else [(i,) for i in ranges[0]]
    while missing:
        # Each candidate has a missing pair, so that every row adds one.
        candidates = []
        for pair in draw.choices(sorted(missing), k=_TRIES):
            row = [draw.randrange(len(column)) for column in columns]
            for column, index in pair:
                row[column] = index
            candidates.append(row)
        best = max(candidates, key=lambda row: len(missing.intersection(_pairs(row))))
        missing.difference_update(_pairs(best))
        rows.append(tuple(best))
    return [tuple(column[i] for column, i in zip(columns, row, strict=True)) for row in rows]


def _pairs(row):
    return itertools.combinations(enumerate(row), 2)


def pairwise(**columns):
    """Parametrizes a test by all combinations, of which those outside a pairwise selection are marked ``long``.

    A column is a sequence of values, or a dictionary of values by name.
    """
    return _parametrize(columns, all_pairs)


def every_value(**columns):
    """Parametrizes a test as `pairwise` does, with as many combinations as the longest column has values."""
    return _parametrize(columns, all_values)


def all_values(*columns):
    """Returns combinations, one value of each column, that contain every value."""
    return [tuple(column[place % len(column)] for column in columns) for place in range(max(map(len, columns)))]


def _parametrize(columns, select):
    named = [
        list(column.items()) if isinstance(column, dict) else [(str(value), value) for value in column]
        for column in columns.values()
    ]
    chosen = set(select(*(range(len(column)) for column in named)))
    parameters = []
    for places in itertools.product(*(range(len(column)) for column in named)):
        names, values = zip(*(column[place] for column, place in zip(named, places, strict=True)), strict=True)
        marks = [] if places in chosen else [pytest.mark.long]
        parameters.append(pytest.param(*values, id="-".join(names), marks=marks))
    return pytest.mark.parametrize(tuple(columns), parameters)
