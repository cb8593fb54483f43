"""One training step in several ways: `bngrad.Trainer`, loops over its step, and gradients with updates in NumPy.

    python tests/bench/bench_trainer.py

SGD with momentum, on a tiny network, where the overhead of a call is all that counts, and on the digits ResNet-20
with batches of 64. Every way is a process of its own, and they take turns. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from bench_step import Way

WORKER = str(Path(__file__).with_name("trainer_worker.py"))
WAYS = {
    "Trainer, named": ["trainer"],
    "Trainer, flat": ["trainer", "--layout", "flat"],
    "bound session, named": ["bare"],
    "bound session, flat": ["bare", "--layout", "flat"],
    "arrays in and out, named": ["loop"],
    "arrays in and out, flat": ["loop", "--layout", "flat"],
    "gradients, update in NumPy": ["numpy"],
}
CALLS = {"tiny": 200, "digits": 1}
"""How many calls are timed at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=41)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.threads} threads; ms a step: median (quartiles); load average {os.getloadavg()[0]:.1f}")
    for network, calls in CALLS.items():
        common = ["--threads", str(options.threads), "--calls", str(calls)]
        ways = [Way(name, [sys.executable, WORKER, network, *words, *common]) for name, words in WAYS.items()]
        for _ in range(options.trials):
            for way in ways:
                way.step()
        print(network)
        for way in ways:
            way.end()
            low, median, high = np.quantile(way.times, [0.25, 0.5, 0.75]) * 1e3 / calls
            print(f"  {way.name:28} {median:8.4f} ({low:.4f}-{high:.4f})", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
