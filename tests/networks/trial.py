"""One network, one way, in a process of its own: ``python trial.py NAME WAY`` prints the result as JSON."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch

from bngrad.errors import BngradError
from bngrad.validation.float32_error import float32_error
from build import build
from legacy import Step, training_graph
from rows import NETWORKS
from torch_runs import kind_of, runs, torch_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bngrad.validation.report import Row


def main(name: str, way: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    begun = time.monotonic()
    (network,) = (one for one in NETWORKS if one.name == name)
    module, loss_fn, example = build(network)
    result: dict[str, Any] = {
        "name": name,
        "way": way,
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    try:
        result |= _judged(WAYS[way](module, loss_fn, example))
    except BngradError as error:
        result |= {"outcome": "refused", "by": ops_of(str(error)), "message": str(error)}
    except Exception as error:  # noqa: BLE001 - what exporters and sessions raise is the result
        result |= {"outcome": "failed", "by": [type(error).__name__], "message": str(error)}
    result["seconds"] = round(time.monotonic() - begun, 1)
    sys.stdout.write(json.dumps(result) + "\n")


def by_legacy_exporter(module: torch.nn.Module, loss_fn: Callable, example: tuple) -> list[Row]:
    """The rows of a comparison of the legacy exporter's training graph with torch."""
    step = Step(training_graph(module, loss_fn, example))
    got, float32, float64 = [], [], []
    for state, data in runs(module, example):
        got.append(step(state, data))
        float32.append(torch_step(module, loss_fn, example, state, data, torch.float32))
        float64.append(torch_step(module, loss_fn, example, state, data, torch.float64))
    kinds = {name: kind_of(name) for name in float64[0] if name in got[0] or is_expected(name, module, float64[0])}
    check = float32_error(got, float32, float64, kinds, implementation="bngrad", against="torch float64")
    return check.worst_first()


def is_expected(name: str, module: torch.nn.Module, results: Mapping[str, Any]) -> bool:
    """Whether a training graph of the legacy exporter has to have an output: no buffer that stays, no count."""
    if kind_of(name) != "buffer":
        return True
    old = module.get_buffer(name.removesuffix("_new")).numpy()
    return not (name.endswith("num_batches_tracked_new") or np.array_equal(results[name], old))


def by_bngrad_torch(module: torch.nn.Module, loss_fn: Callable, example: tuple) -> list[Row]:
    """The rows of `bngrad.torch.compare`."""
    import bngrad.torch

    report = bngrad.torch.compare(module, loss_fn, example)
    return [row for check in report.checks for row in check.worst_first()]


WAYS = {"bngrad.torch": by_bngrad_torch, "legacy": by_legacy_exporter}


def _judged(rows: list[Row]) -> dict[str, Any]:
    """The outcome, and the output that differs most."""
    worst = rows[0]
    wrong = [row for row in rows if not row.passed]
    return {
        "outcome": "wrong" if wrong else "right",
        "compared": len(rows),
        "wrong": [
            f"{row.tensor}: {row.measure:.3g}, {row.relative_l2:.2e} of its norm {row.note}" for row in wrong
        ],
        "worst": worst.measure if math.isfinite(worst.measure) else str(worst.measure),
        "worst_of": worst.tensor,
        "relative": worst.relative_l2 if math.isfinite(worst.relative_l2) else str(worst.relative_l2),
    }


def ops_of(message: str) -> list[str]:
    """The ops that a refusal names: ``X node 'a' ... (and 2 more: Y, Z)``."""
    first = re.match(r"([\w.]+) node ", message)
    more = re.search(r"\(and \d+ more: ([^)]*)\)", message)
    names = [first[1]] if first else []
    return sorted({*names, *(more[1].split(", ") if more else [])})


if __name__ == "__main__":
    main(*sys.argv[1:])
