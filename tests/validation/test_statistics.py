"""Statistics of tensors, and which subjects are described."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import pytest

from bngrad import validate
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
    tensor = tensor_statistics("input", "x", value)
    assert (tensor.role, tensor.name, tensor.dtype, tensor.shape) == (
        "input",
        "x",
        str(value.dtype),
        list(value.shape),
    )
    got = (tensor.minimum, tensor.maximum, tensor.mean, tensor.std)
    assert got == numbers if numbers == NOTHING else got == pytest.approx(numbers, rel=1e-4)
    assert (tensor.zeros, tensor.nan, tensor.infinite) == counts


def test_the_worst_subjects_are_kept_and_only_they_are_read():
    worst, computed = WorstSubjects(), []
    measures = [(7 * i) % 100 / 100 for i in range(100)]
    measures[40], measures[60] = math.nan, math.inf
    for index, measure in enumerate(measures):

        def tensors(index=index):
            computed.append(index)
            return [("input", str(index), np.zeros(1))]

        worst.offer(str(index), measure, tensors)
    kept = worst.worst_first()
    order = sorted(range(100), key=lambda i: -math.inf if math.isnan(measures[i]) else -measures[i])
    assert list(kept)[2:] == [str(index) for index in order[2:MOST]]
    assert set(list(kept)[:2]) == {"40", "60"}
    assert len(computed) < 60
    assert all(tensor.name == subject for subject, (tensor,) in kept.items())


def test_a_subject_is_described_where_it_is_worst():
    worst = WorstSubjects()
    for measure, name in ((0.5, "first"), (0.9, "second"), (0.7, "third")):
        worst.offer("n", measure, lambda name=name: [("input", name, np.zeros(1))])
    assert [tensor.name for tensor in worst.worst_first()["n"]] == ["second"]


MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,4,4] x) => (float loss)
<float[3] s = {1, 2, 3}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}> {
    [bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)
    loss = ReduceMean<keepdims = 0>(q)
}"""


def test_each_check_describes_its_worst_subjects():
    feeds = {"x": np.linspace(-1, 3, 96, dtype=np.float32).reshape(2, 3, 4, 4)}
    model = onnx.parser.parse_model(MODEL)
    report = validate(model, against="reference", implementation="function", inputs=feeds)
    assert report.passed
    checks = {check.name: check for check in report.checks}
    roles = {name: {t.role for ts in check.statistics.values() for t in ts} for name, check in checks.items()}
    assert roles == {
        "lock-step": {"input", "expected"},
        "float64": {"expected", "computed by float64, function"},
        "forward in float64": {"expected", "computed by float64, function"},
        "central differences": {"input", "computed by float64, function"},
        "on stock ONNX Runtime": {"expected", "computed by function"},
    }
    for check in checks.values():
        assert check.statistics.keys() <= {row.subject for row in check.rows}
        first = next(iter(check.statistics))
        assert first == check.worst_first()[0].subject
    x = next(tensor for tensor in checks["lock-step"].statistics["bn"] if tensor.name == "x")
    assert (x.role, x.shape, x.minimum, x.maximum) == ("input", [2, 3, 4, 4], -1.0, 3.0)
