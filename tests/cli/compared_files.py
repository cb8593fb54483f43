"""Logs of runs, and reports of bench, with values that are made up."""

from __future__ import annotations

import json
from pathlib import Path


def write_log(name, rate, epochs=2, options=None, seconds=0.5):
    """Writes the log of a run with 10 steps an epoch; the losses fall by a power of the rate."""
    lines = [] if options is None else [{"options": options}]
    for step in range(1, 10 * epochs + 1):
        numbers = {"epoch": (step - 1) // 10 + 1, "loss": rate**step, "seconds": seconds * step}
        lines.append({"step": step, **numbers})
        if step % 10 == 0:
            validated = {"validation_loss": rate ** (step / 10), "accuracy": 1 - 0.5**step}
            lines.append({**lines[-1], **validated, "training_loss": rate})
            del lines[-1]["loss"]
    Path(name).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def case(shape, low, median, high, op="grad"):
    spread = {"low": low, "median": median, "high": high}
    return {"shape": shape, "axes": [0, 2], "dtype": "float", "op": op, "frozen": op == "training", "ms": spread}


def write_bench(name, *rows, **settings):
    head = {"library": "l", "version": "0.1", "isa": "avx2", "threads": 2, "repeats": 3}
    Path(name).write_text(json.dumps({**head, **settings, "rows": rows}), encoding="utf-8")
