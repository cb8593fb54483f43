"""Conditions on sizes: their values, their text, and refusals in a file."""

from __future__ import annotations

import pytest

from bngrad.autodiff.size_conditions import condition_text, holds, names_in, require_conditions

CASES = [
    ([">", "N", 6], "N > 6", {7: True, 6: False}),
    (["!=", "N", 1], "N != 1", {1: False, 2: True}),
    (["==", ["%", "N", 2], 0], "N % 2 == 0", {4: True, 5: False}),
    (["==", ["-", "N", ["//", ["+", "N", 1], 2]], 2], "N - ((N + 1) // 2) == 2", {4: True, 5: True, 6: False}),
    ([">", ["/", "N", 3], ["/", 3, 2]], "N / 3 > 3 / 2", {4: False, 5: True}),
    (["<=", ["min", "N", 3], 2], "min(N, 3) <= 2", {2: True, 9: False}),
    (["==", ["max", "N", 3], ["*", 2, "N", 1]], "max(N, 3) == (2 * N * 1)", {2: False, 3: False}),
    (["or", ["not", [">", "N", 3]], ["==", "N", 8]], "not(N > 3) or N == 8", {3: True, 4: False, 8: True}),
    (["and", ["<", 1, "N"], [">=", 9, "N"]], "1 < N and 9 >= N", {1: False, 9: True, 10: False}),
    (
        ["==", ["ceil", ["/", "N", 2]], ["floor", ["/", "N", 2]]],
        "ceil(N / 2) == floor(N / 2)",
        {4: True, 5: False},
    ),
    (["==", ["//", 8, ["-", "N", 2]], 4], "8 // (N - 2) == 4", {2: False, 4: True}),
]


@pytest.mark.parametrize(("condition", "text", "sizes"), CASES, ids=[text for _, text, _ in CASES])
def test_conditions(condition, text, sizes):
    assert require_conditions([condition], ["N"]) == (condition,)
    assert {size: holds(condition, {"N": size}) for size in sizes} == sizes
    assert names_in(condition) == ["N"]
    assert condition_text(condition).replace("(", "").replace(")", "") == text.replace("(", "").replace(")", "")
    assert not holds(condition, {}) or condition[0] == "or"


def test_texts_keep_the_order_of_operations():
    assert condition_text(["==", ["*", 2, ["+", "N", 1]], 4]) == "2 * (N + 1) == 4"
    assert condition_text(["==", ["-", "N", ["-", "M", 1]], 4]) == "N - (M - 1) == 4"


def nested(depth):
    term = ["+", "N", 1]
    for _ in range(depth):
        term = ["+", term, 1]
    return term


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        "N > 3",
        [3],
        ["N"],
        [[]],
        [["N"]],
        [[">", "N"]],
        [[">", "N", 1, 2]],
        [[">", "M", 1]],
        [[">", "N", 1.5]],
        [[">", "N", True]],
        [[">", "N", 2**63]],
        [["+", "N", 1]],
        [["and", "N", "N"]],
        [["==", [">", "N", 1], 1]],
        [["eval", "N", 1]],
        [[["=="], "N", 1]],
        [["not", ["==", "N", 1], ["==", "N", 1]]],
        [["==", nested(100), 3]],
    ],
    ids=str,
)
def test_other_documents_are_refused(document):
    with pytest.raises((ValueError, TypeError)):
        require_conditions(document, ["N"])
