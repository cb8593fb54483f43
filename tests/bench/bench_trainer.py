"""One training step in several ways: `bngrad.Trainer`, loops over its step, and gradients with updates in NumPy.

    python tests/bench/bench_trainer.py
    python tests/bench/bench_trainer.py --model build/resnet50.onnx --trials 9    # models/light.py makes it

SGD with momentum on the digits ResNet-20, batches of 64, or on another network, batches of 8. Every way is a
process of its own, and they take turns. Before the digits, the processor time in one thread, in turn in one
process: the overhead of the Trainer over its session with everything bound, and all ways. Not a test: it only
prints.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

import bngrad
import trainer_worker
from bench_step import Way

WORKER = str(Path(__file__).with_name("trainer_worker.py"))
WAYS = {
    "Trainer, named": ("trainer", "named"),
    "Trainer, flat": ("trainer", "flat"),
    "bound session, named": ("bare", "named"),
    "bound session, flat": ("bare", "flat"),
    "arrays in and out, named": ("loop", "named"),
    "arrays in and out, flat": ("loop", "flat"),
    "gradients, update in NumPy": ("numpy", "named"),
}
OVERHEAD = {"tiny": (trainer_worker.tiny, 200), "digits": (trainer_worker.digits, 1)}
"""Networks, and how many calls are timed at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=41)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", help="instead of the digits ResNet-20, without the overhead of the Trainer")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    common = ["--threads", str(options.threads)]
    if options.model:
        common += ["--model", options.model]
    else:
        print("overhead of the Trainer, one thread: processor ms a step, median (quartiles)")
        for network, (make, calls) in OVERHEAD.items():
            for layout in ("named", "flat"):
                overhead(f"{network}, {layout}", *make(), layout=layout, calls=calls, trials=options.trials)
        print("digits, one thread: processor ms a step, median (quartiles)")
        calls = {name: trainer_worker.make(*way, *trainer_worker.digits(), 1) for name, way in WAYS.items()}
        for name, milliseconds in in_turn(calls, 1, options.trials).items():
            print(f"  {name:28} {spread(milliseconds)}", flush=True)
    print(f"{options.model or 'digits'}, {options.threads} threads: ms a step, median (quartiles); peak memory")
    ways = [
        Way(name, [sys.executable, WORKER, way, "--layout", layout, *common])
        for name, (way, layout) in WAYS.items()
    ]
    for _ in range(options.trials):
        for way in ways:
            way.step()
    for way in ways:
        way.end()
        print(f"  {way.name:28} {spread(np.array(way.times) * 1e3)} {way.peak:8.0f} MB", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


def overhead(name, model, data, *, layout, calls, trials) -> None:
    step = bngrad.training_step(model, optimizer=bngrad.SGD(momentum=0.9), layout=layout)
    trainer = bngrad.Trainer(step, learning_rate=1e-4, threads=1)
    ways = {"trained": trainer_worker.stepping(trainer, data), "bare": trainer_worker.bare(trainer, data)}
    times = in_turn(ways, calls, trials)
    difference = np.median(times["trained"]) - np.median(times["bare"])
    print(
        f"  {name:14} Trainer {spread(times['trained'])}, bound session {spread(times['bare'])}, "
        f"difference {difference:.4f}",
        flush=True,
    )


def in_turn(ways, calls, trials):
    """The processor ms of a call in each way, in an order that turns around with every trial."""
    times = {name: [] for name in ways}
    order = list(ways)
    for _ in range(trials):
        for name in order:
            start = time.thread_time()
            for _ in range(calls):
                ways[name]()
            times[name].append((time.thread_time() - start) / calls * 1e3)
        order.reverse()
    return times


def spread(times) -> str:
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
    return f"{median:.4f} ({low:.4f}-{high:.4f})"


if __name__ == "__main__":
    main()
