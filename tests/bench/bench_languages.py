"""A training step of the digits network, batch 64, in Python, Node and Chromium.

    make test-web                           # installs the npm packages
    python tests/bench/bench_languages.py

Steps are taken in turns. Not a test: it only prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1])]

from bngrad.runtime.session import session
from digits_training import Training, prepare
from serve_examples import served

ROUNDS = 60
UNCOUNTED = 10


def in_python(folder, implementation, threads):
    training = Training(folder)
    training.session = session(folder / "step.onnx", implementation, threads=threads)
    state = training.files.info.flatten(training.files.state)
    flat = training.info.flat

    def step(index):
        nonlocal state
        rows = training.digits["batches"][index]
        feeds = {name: training.digits[f"training/{name}"][rows] for name in training.info.data}
        feeds |= {training.info.learning_rate: np.array(0.01, np.float32), flat.input: state}
        start = time.perf_counter()
        _, state = training.session.run([training.info.loss, flat.output], feeds)
        return 1e3 * (time.perf_counter() - start)

    return step


@contextmanager
def in_javascript(*arguments):
    command = ["node", FOLDER / "language_worker.mjs", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{arguments[0]} does not start")

        def step(_):
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield step
        process.stdin.close()


def main():
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(folder, "flat")
        url = stack.enter_context(served(folder))
        ways = {
            f"Python, {implementation}, {threads} thread{'s' * (threads > 1)}": in_python(
                folder, implementation, threads
            )
            for threads in (1, 2)
            for implementation in ("native", "function")
        }
        scripts = {
            "Node, 1 thread": ["node", folder, 1],
            "Node, 2 threads": ["node", folder, 2],
            "Chromium, WebAssembly, 1 thread": ["chromium", url, shutil.which("chromium")],
        }
        ways |= {way: stack.enter_context(in_javascript(*arguments)) for way, arguments in scripts.items()}
        times = {way: [] for way in ways}
        for index in range(ROUNDS):
            for way, step in ways.items():
                times[way].append(step(index))
    print("| | ms a step (quartiles) | fastest |\n|---|---|---|")
    for way, all_times in times.items():
        low, middle, high, fastest = np.quantile(all_times[UNCOUNTED:], [0.25, 0.5, 0.75, 0])
        print(f"| {way} | {middle:.1f} ({low:.1f}-{high:.1f}) | {fastest:.1f} |")


if __name__ == "__main__":
    main()
