"""Learning-rate schedules: values by formula, PyTorch's where it is installed, and refused arguments."""

from __future__ import annotations

import importlib.util
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


def of_torch(schedule, updates):
    """The learning rates of PyTorch's scheduler for an optimizer's updates."""
    import torch
    from torch.optim import lr_scheduler as of

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=schedule.rate)
    match schedule:
        case LinearSchedule(_, total, start, end):
            made = of.LinearLR(optimizer, start_factor=start, end_factor=end, total_iters=total)
        case CosineSchedule(_, total, minimum, 0, _):
            made = of.CosineAnnealingLR(optimizer, T_max=total, eta_min=minimum)
        case CosineSchedule(_, total, minimum, warmup, start):
            first = of.LinearLR(optimizer, start_factor=start, total_iters=warmup)
            then = of.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=minimum)
            made = of.SequentialLR(optimizer, [first, then], milestones=[warmup])
        case StepSchedule(_, every, factor):
            made = of.StepLR(optimizer, step_size=every, gamma=factor)
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return rates


IN_TORCH = {
    "warm-up": LinearSchedule(0.3, 5),
    "decay": LinearSchedule(0.3, 7, start=1, end=0.25),
    "cosine": CosineSchedule(0.1, 20),
    "cosine-to-minimum": CosineSchedule(0.1, 20, minimum=0.01),
    "cosine-after-warm-up": CosineSchedule(0.1, 20, warmup=4),
    "step": StepSchedule(0.1, 6),
}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.filterwarnings("ignore")  # SequentialLR warns about itself
@pytest.mark.parametrize("case", IN_TORCH)
def test_values_of_pytorch(case):
    schedule = IN_TORCH[case]
    # PyTorch multiplies the last rate by a factor, so its rounding accumulates.
    assert [schedule(update) for update in range(20)] == pytest.approx(of_torch(schedule, 20), rel=1e-9, abs=1e-12)


REFUSED = {
    "negative": (lambda: ConstantSchedule(-0.1), "rate is -0.1; expected a finite number, at least 0"),
    "nan": (lambda: as_schedule(math.nan), "rate is nan; expected"),
    "infinite": (lambda: as_schedule(math.inf), "rate is inf; expected"),
    "text": (lambda: as_schedule("0.1"), "learning_rate has type str; expected a number or a schedule"),
    "boolean": (lambda: as_schedule(True), "learning_rate has type bool"),
    "none": (lambda: as_schedule(None), "learning_rate has type NoneType"),
    "no-warm-up": (lambda: LinearSchedule(0.1, 0), "total is 0; expected a number of updates, at least 1"),
    "start": (lambda: LinearSchedule(0.1, 1, start=-1), "start is -1; expected"),
    "cosine-total": (lambda: CosineSchedule(0.1, 0), "total is 0; expected"),
    "cosine-warm-up": (lambda: CosineSchedule(0.1, 5, warmup=-1), "warmup is -1; expected .* at least 0"),
    "cosine-all-warm-up": (lambda: CosineSchedule(0.1, 5, warmup=5), "warmup is 5; expected less than total"),
    "minimum": (lambda: CosineSchedule(0.1, 5, minimum=math.nan), "minimum is nan; expected"),
    "step-every": (lambda: StepSchedule(0.1, 0), "every is 0; expected"),
    "step-factor": (lambda: StepSchedule(0.1, 2, factor=-1), "factor is -1; expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()
