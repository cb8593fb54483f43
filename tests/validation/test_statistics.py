"""Statistics of tensors, and which subjects are described."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from bngrad.validation.statistics import MOST, WorstSubjects, tensor_statistics

NOTHING = (None, None, None, None)
CASES = {
    "floats": (np.float32([[1, -2], [0, 3]]), (-2, 3, 0.5, 1.8027756377), (1, 0, 0)),
    "scalar": (np.float64(2.5).reshape(()), (2.5, 2.5, 2.5, 0), (0, 0, 0)),
    "empty": (np.zeros((0, 3), np.float32), NOTHING, (0, 0, 0)),
    "not-finite": (np.float32([np.nan, np.inf, -np.inf, 0, 4]), (0, 4, 2, 2), (1, 1, 2)),
    "only-nan": (np.float32([np.nan, np.nan]), NOTHING, (0, 2, 0)),
    "half": (np.float16([60000] * 3), (59999, 60001, 60000, 0), (0, 0, 0)),  # their sum is infinite in float16
    "bfloat16": (np.array([1, 3], ml_dtypes.bfloat16), (1, 3, 2, 1), (0, 0, 0)),
    "integers": (np.int64([0, 2, 4]), (0, 4, 2, 1.6329931619), (1, 0, 0)),
    "booleans": (np.array([True, False]), (0, 1, 0.5, 0.5), (1, 0, 0)),
    "text": (np.array(["a"], object), NOTHING, (0, 0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_statistics(case):
    value, numbers, counts = CASES[case]
    found = tensor_statistics("input", "x", value)
    assert (found.role, found.name, found.dtype, found.shape) == (
        "input",
        "x",
        str(value.dtype),
        list(value.shape),
    )
    got = (found.minimum, found.maximum, found.mean, found.std)
    assert got == numbers if numbers == NOTHING else got == pytest.approx(numbers, rel=1e-4)
    assert (found.zeros, found.nan, found.infinite) == counts


def test_the_worst_subjects_are_kept_and_only_they_are_read():
    worst, read = WorstSubjects(), []
    measures = [(7 * i) % 100 / 100 for i in range(100)]
    measures[40], measures[60] = math.nan, math.inf
    for index, measure in enumerate(measures):

        def tensors(index=index):
            read.append(index)
            return [("input", str(index), np.zeros(1))]

        worst.offer(str(index), measure, tensors)
    kept = worst.worst_first()
    order = sorted(range(100), key=lambda i: -math.inf if math.isnan(measures[i]) else -measures[i])
    assert list(kept)[2:] == [str(index) for index in order[2:MOST]]
    assert set(list(kept)[:2]) == {"40", "60"}
    assert len(read) < 60
    assert all(tensor.name == subject for subject, (tensor,) in kept.items())


def test_a_subject_is_described_where_it_is_worst():
    worst = WorstSubjects()
    for measure, name in ((0.5, "first"), (0.9, "second"), (0.7, "third")):
        worst.offer("n", measure, lambda name=name: [("input", name, np.zeros(1))])
    assert [tensor.name for tensor in worst.worst_first()["n"]] == ["second"]
