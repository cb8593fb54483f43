"""Tries networks; runs where PyTorch, torchvision and timm are installed.

``python trial.py`` reads lines ``NAME WAY`` and prints each result as a line of JSON. Each network is tried in a
fork of this process, which has imported everything, with a limit of time and memory.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import onnxruntime
import timm
import torch
import torchvision

import bngrad.torch
from bngrad.errors import BngradError
from networks.build import build
from networks.legacy import by_legacy_exporter
from networks.rows import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.validation.report import Check, Row

STEPS = 2
"""The number of steps that are compared."""
SECONDS = 900
"""The most that a network may take, one way."""
BYTES = 16 << 30
"""The most memory that it may take."""


def by_bngrad_torch(module: torch.nn.Module, loss_fn: Callable, example: tuple, steps: int) -> Check:
    """The comparison of `bngrad.torch` with PyTorch."""
    (check,) = bngrad.torch.compare(module, loss_fn, example, steps=steps).checks
    return check


VERSIONS = {package.__name__: package.__version__ for package in (torch, torchvision, timm, onnxruntime)}
WAYS = {"bngrad.torch": by_bngrad_torch, "legacy": by_legacy_exporter}


def main() -> None:
    """Tries the networks that standard input names."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.onnx.export(torch.nn.Identity(), (torch.zeros(1),), dynamo=True, verbose=False)  # imports the exporter
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # exporters print, too
    for line in sys.stdin:
        name, way = line.split()
        result = {"name": name, "way": way, "versions": VERSIONS} | _in_fork(name, way)
        print(json.dumps(result), file=results, flush=True)


def _in_fork(name: str, way: str) -> dict[str, Any]:
    """The result of a network, or the reason why its process ended."""
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        with os.fdopen(writing, "w") as pipe:
            json.dump(attempt(name, way), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return json.loads(text)
    reason = f"took more than {SECONDS} s" if -code == signal.SIGALRM else f"its process ended with {code}"
    return {"outcome": "failed", "by": [reason], "message": reason, "seconds": round(time.monotonic() - begun, 1)}


def attempt(name: str, way: str) -> dict[str, Any]:
    """Builds a network and compares it."""
    begun = time.monotonic()
    (network,) = (row for row in NETWORKS if row.name == name)
    module, loss_fn, example = build(network)
    result: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in module.parameters())}
    try:
        check = WAYS[way](module, loss_fn, example, STEPS)
        result |= _judged(check.worst_first()) if check.rows else {"outcome": "failed", "message": check.problem}
    except BngradError as error:
        result |= {"outcome": "refused", "by": ops_of(str(error)), "message": str(error)}
    except Exception as error:  # noqa: BLE001 - what exporters and sessions raise is the result
        result |= {"outcome": "failed", "by": [type(error).__name__], "message": str(error)}
    return result | {"seconds": round(time.monotonic() - begun, 1)}


def _judged(rows: list[Row]) -> dict[str, Any]:
    """The outcome, and the output that differs most."""
    worst, wrong = rows[0], [row for row in rows if not row.passed]
    return {
        "outcome": "wrong" if wrong else "right",
        "compared": len(rows),
        "wrong": [
            f"{row.tensor}: {row.measure:.3g}, {row.relative_l2:.2e} of it; {row.note}" for row in wrong[:5]
        ],
        "worst": worst.measure if np.isfinite(worst.measure) else str(worst.measure),
        "worst_of": worst.tensor,
    }


def ops_of(message: str) -> list[str]:
    """The ops that a refusal names: ``X node 'a' ... (and 2 more: Y, Z)``, ``cannot write aten.x``."""
    first = re.match(r"([\w.]+) node ", message)
    first = first or re.search(r"(?:cannot write|calls|DynamicOutputShapeException:) ([\w.:]+)", message)
    more = re.search(r"\(and \d+ more: ([^)]*)\)", message)
    names = [first[1]] if first else []
    return sorted({*names, *(more[1].split(", ") if more else [])})


if __name__ == "__main__":
    main()
