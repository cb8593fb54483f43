"""Learning-rate schedules: values by formula, PyTorch's, and refused arguments."""

from __future__ import annotations

import json
import math

import pytest

from bngrad.errors import InputError
from bngrad.training.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    StepSchedule,
    as_schedule,
)
from training.torch_schedules import CASES, FILE, UPDATES

HALF = math.sqrt(0.5)

VALUES = {
    "constant": (ConstantSchedule(0.1), {0: 0.1, 1: 0.1, 10**9: 0.1}),
    "number": (as_schedule(0.1), {0: 0.1, 7: 0.1}),
    "integer": (as_schedule(1), {0: 1.0}),
    "warm-up": (LinearSchedule(0.3, 4), {0: 0.1, 1: 0.15, 2: 0.2, 4: 0.3, 5: 0.3, 10**9: 0.3}),
    "warm-up-from-zero": (LinearSchedule(0.4, 4, start=0), {0: 0.0, 1: 0.1, 3: 0.3, 4: 0.4, 9: 0.4}),
    "decay-to-zero": (LinearSchedule(0.4, 4, start=1, end=0), {0: 0.4, 1: 0.3, 4: 0.0, 5: 0.0}),
    "cosine": (CosineSchedule(0.2, 4), {0: 0.2, 1: 0.1 * (1 + HALF), 2: 0.1, 3: 0.1 * (1 - HALF), 4: 0.0, 5: 0.0}),
    "cosine-to-minimum": (CosineSchedule(0.3, 2, minimum=0.1), {0: 0.3, 1: 0.2, 2: 0.1, 3: 0.1}),
    "cosine-after-warm-up": (
        CosineSchedule(0.2, 6, warmup=2, start=0.5),
        {0: 0.1, 1: 0.15, 2: 0.2, 3: 0.1 * (1 + HALF), 4: 0.1, 6: 0.0, 7: 0.0},
    ),
    "step": (StepSchedule(0.8, 3), {0: 0.8, 2: 0.8, 3: 0.08, 5: 0.08, 6: 0.008}),
    "step-by-half": (StepSchedule(0.8, 1, factor=0.5), {0: 0.8, 1: 0.4, 3: 0.1}),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(case):
    schedule, values = VALUES[case]
    assert {update: schedule(update) for update in values} == pytest.approx(values, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("case", CASES)
def test_values_of_pytorch(case):
    expected = json.loads(FILE.read_text(encoding="utf-8"))[case]
    # PyTorch multiplies the last rate by a factor, so its rounding accumulates.
    assert [CASES[case](update) for update in range(UPDATES)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


REFUSED = {
    "negative": (lambda: ConstantSchedule(-0.1), "rate is -0.1; expected a finite number, at least 0"),
    "nan": (lambda: as_schedule(math.nan), "learning_rate is nan; expected a finite number, at least 0"),
    "infinite": (lambda: as_schedule(math.inf), "learning_rate is inf; expected"),
    "text": (lambda: as_schedule("0.1"), "learning_rate is '0.1'; expected a number or a schedule"),
    "boolean": (lambda: as_schedule(True), "learning_rate is True; expected"),
    "none": (lambda: as_schedule(None), "learning_rate is None; expected"),
    "no-warm-up": (lambda: LinearSchedule(0.1, 0), "total is 0; expected a number of updates, at least 1"),
    "start": (lambda: LinearSchedule(0.1, 1, start=-1), "start is -1; expected"),
    "cosine-total": (lambda: CosineSchedule(0.1, 0), "total is 0; expected"),
    "cosine-warm-up": (lambda: CosineSchedule(0.1, 5, warmup=-1), "warmup is -1; expected .* at least 0"),
    "cosine-all-warm-up": (
        lambda: CosineSchedule(0.1, 5, warmup=5),
        "warmup is 5; expected less than the number of updates",
    ),
    "minimum": (lambda: CosineSchedule(0.1, 5, minimum=math.nan), "minimum is nan; expected"),
    "step-every": (lambda: StepSchedule(0.1, 0), "every is 0; expected"),
    "step-factor": (lambda: StepSchedule(0.1, 2, factor=-1), "factor is -1; expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()
