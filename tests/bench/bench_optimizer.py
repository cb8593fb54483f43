"""The update of the 25.6 million weights of a ResNet-50 by AdamW: the op, its function, standard ops, and NumPy.

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
    "native": "AdamUpdate, native",
    "function": "AdamUpdate, as a function",
    "standard": "standard ops",
    "numpy": "NumPy, in place",
}
BYTES = 7 * 4
"""Read and written for each element at the least."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    ways = {name: Way(name, [sys.executable, str(WORKER), name, str(options.threads)]) for name in WAYS}
    for _ in range(options.steps):
        for way in ways.values():
            way.step()
    for way in ways.values():
        way.end()
    elements = sum(map(math.prod, shapes()))
    base = statistics.median(ways["numpy"].times)
    print(f"{elements / 1e6:.1f} M weights in {len(shapes())} tensors, {options.threads} threads\n")
    print("| way | ms (quartiles) | of NumPy's time | GB/s | peak memory, MB |\n|---|---|---|---|---|")
    for name, way in ways.items():
        low, median, high = statistics.quantiles(way.times, n=4)
        print(
            f"| {WAYS[name]} | {1e3 * median:.0f} ({1e3 * low:.0f}, {1e3 * high:.0f}) | {median / base:.2f} "
            f"| {BYTES * elements / median / 1e9:.1f} | {way.peak:.0f} |"
        )


if __name__ == "__main__":
    main()
