"""Times models side by side; `bench_grad.py` runs it with the oracle's Python, which has NumPy and ORT only.

Reads a job from stdin and prints a row for each shape. Repetitions of a shape's models alternate. GB/s counts X
and dY read once and dX written once.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime


def main() -> None:
    job = json.load(sys.stdin)
    write(f"onnxruntime {onnxruntime.__version__}, {job['title']}; ms: median (quartiles)")
    write(f"{'shape':>18} {'bngrad':>24} {'GB/s':>5} {'training build':>24} {'GB/s':>5} {'ratio':>6}")
    for row in job["rows"]:
        ways = [Way(path, job["library"], job["threads"]) for path in row["models"]]
        measure(ways, job["seconds"])
        line = f"{row['shape']:>18}"
        for way in ways:
            line += f" {way.summary():>24} {way.bandwidth():5.1f}"
        if len(ways) == 2:
            line += f" {ways[1].quantile(0.5) / ways[0].quantile(0.5):6.2f}"
        write(line)


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(ways: list[Way], seconds: float) -> None:
    for way in ways:
        way.once()
        way.times.clear()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ways[0].times) < 5:
        for way in ways:
            way.once()


class Way:
    """A model in a session with inputs and outputs bound, and the times of its runs."""

    def __init__(self, model: str, library: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(library)
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.keep = []  # bound memory must outlive the binding
        rng = np.random.default_rng(0)
        for value in self.session.get_inputs():
            is_data = len(value.shape) > 1
            array = rng.standard_normal(value.shape) if is_data else rng.uniform(0.5, 1.5, value.shape)
            self.keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(np.float32)))
            self.binding.bind_ortvalue_input(value.name, self.keep[-1])
            self.bytes = max(getattr(self, "bytes", 0), 3 * 4 * array.size)
        for value in self.session.get_outputs():
            self.keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(value.shape, np.float32)))
            self.binding.bind_ortvalue_output(value.name, self.keep[-1])
        self.times: list[float] = []

    def once(self) -> None:
        start = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.times.append(time.perf_counter() - start)

    def quantile(self, q: float) -> float:
        return sorted(self.times)[int(q * (len(self.times) - 1))]

    def bandwidth(self) -> float:
        return self.bytes / self.quantile(0.5) / 1e9

    def summary(self) -> str:
        low, mid, high = (1e3 * self.quantile(q) for q in (0.25, 0.5, 0.75))
        return f"{mid:.3f} ({low:.3f}-{high:.3f})"


if __name__ == "__main__":
    main()
