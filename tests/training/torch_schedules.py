"""Writes the learning rates of PyTorch's schedulers to torch_schedules.json.

``PYTHONPATH=.:tests python tests/training/torch_schedules.py`` needs PyTorch; the tests need the file alone.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from bngrad.training.schedules import CosineSchedule, LinearSchedule, StepSchedule

FILE = Path(__file__).with_suffix(".json")
UPDATES = 20
CASES = {
    "warm-up": LinearSchedule(0.3, 5),
    "decay": LinearSchedule(0.3, 7, start=1, end=0.25),
    "cosine": CosineSchedule(0.1, 20),
    "cosine-to-minimum": CosineSchedule(0.1, 20, minimum=0.01),
    "cosine-after-warm-up": CosineSchedule(0.1, 20, warmup=4),
    "step": StepSchedule(0.1, 6),
}


def of_torch(schedule, updates):
    """The learning rates of PyTorch's scheduler for an optimizer's updates."""
    import torch
    from torch.optim import lr_scheduler as of

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=schedule.rate)
    match schedule:
        case LinearSchedule(_, total, start, end):
            scheduler = of.LinearLR(optimizer, start_factor=start, end_factor=end, total_iters=total)
        case CosineSchedule(_, total, minimum, 0, _):
            scheduler = of.CosineAnnealingLR(optimizer, T_max=total, eta_min=minimum)
        case CosineSchedule(_, total, minimum, warmup, start):
            first = of.LinearLR(optimizer, start_factor=start, total_iters=warmup)
            then = of.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=minimum)
            scheduler = of.SequentialLR(optimizer, [first, then], milestones=[warmup])
        case StepSchedule(_, every, factor):
            scheduler = of.StepLR(optimizer, step_size=every, gamma=factor)
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # SequentialLR warns about itself
    rates = {name: of_torch(schedule, UPDATES) for name, schedule in CASES.items()}
    FILE.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
