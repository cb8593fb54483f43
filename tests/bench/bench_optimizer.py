"""The update of the 25.6 million weights of a ResNet-50: AdamUpdate, its function, standard ops, and NumPy.

    python tests/bench/bench_optimizer.py [--steps N] [--threads N]

Every way is a process of its own, so that its peak memory is its own too; updates are taken in turns. Not a test:
it only prints.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path

from bench_step import Way
from optimizer_models import shapes

WORKER = Path(__file__).with_name("optimizer_worker.py")
WAYS = {
    "adamw": {
        "native": "AdamUpdate, native",
        "function": "AdamUpdate, its function",
        "standard": "standard ops",
        "numpy": "NumPy, in place",
    },
    "sgd": {"standard": "standard ops", "numpy": "NumPy, in place"},
}
"""By optimizer; SGD has a momentum of 0.9."""


class TimedWay(Way):
    """A way that reports its processor time, too."""

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__(name, command)
        self.processor_times: list[float] = []

    def step(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        wall, processor = map(float, self._process.stdout.readline().split())
        self.times.append(wall)
        self.processor_times.append(processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    elements = sum(map(math.prod, shapes()))
    print(f"{elements / 1e6:.1f} M weights in {len(shapes())} tensors, {options.threads} threads\n")
    print("| optimizer | way | ms (quartiles) | of NumPy's | processor ms | of NumPy's | peak memory, MB |")
    print("|---|---|---|---|---|---|---|")
    for optimizer, names in WAYS.items():
        command = [sys.executable, str(WORKER), optimizer]
        ways = {name: TimedWay(name, [*command, name, str(options.threads)]) for name in names}
        for _ in range(options.steps):
            for way in ways.values():
                way.step()
        for way in ways.values():
            way.end()
        base = [statistics.median(t) for t in (ways["numpy"].times, ways["numpy"].processor_times)]
        for name, way in ways.items():
            low, median, high = statistics.quantiles(way.times, n=4)
            processor = statistics.median(way.processor_times)
            print(
                f"| {optimizer} | {names[name]} | {1e3 * median:.0f} ({1e3 * low:.0f}, {1e3 * high:.0f}) "
                f"| {median / base[0]:.2f} | {1e3 * processor:.0f} | {processor / base[1]:.2f} | {way.peak:.0f} |"
            )


if __name__ == "__main__":
    main()
