"""Results of a part of `run_gpu.py`: lines of JSON on stdout, and a check that goes on after a failure."""

from __future__ import annotations

import contextlib
import json
import time

import numpy as np

PREFIX = "RESULT "


def report(table, **row):
    """Prints a row of a table; `run_gpu.py` collects it."""
    print(PREFIX + json.dumps({"table": table} | row), flush=True)


@contextlib.contextmanager
def check(name):
    """Reports whether a block raises an error. The block may add to the note."""
    notes = []
    try:
        yield notes
    except Exception as error:  # noqa: BLE001 - the next check is run
        text = " ".join(f"{type(error).__name__}: {error}".split())
        report("checks", check=name, passed=False, note=text[:300])
    else:
        report("checks", check=name, passed=True, note="; ".join(notes))


def median_ms(call, seconds, least=3):
    """The median time of a call in milliseconds, of calls in some seconds, after one that is not timed."""
    call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))
