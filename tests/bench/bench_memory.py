"""Steps of a light network in several amounts of memory: the simulated and the measured peak, and the time.

    python tests/bench/bench_memory.py NETWORK --memory full --memory 800MB --memory lean

Every step is a process of its own, with its outputs bound to memory as a `Trainer` does. The measured peak is the
growth from before the process reads the step and its state. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

import bngrad
from bngrad.passes.optimize.live_bytes import LiveBytes
from bngrad.training.step import build_step
from bngrad.validation.inputs import bind_dimensions
from models import light


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("--memory", action="append", required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        forward, feeds = Path(folder, "forward.onnx"), Path(folder, "feeds.npz")
        onnx.save(light.prepare(options.network), forward)
        for memory in options.memory:
            model = ir.load(forward)
            bind_dimensions(model, {"N": options.batch}, {})
            step = build_step(model, memory=memory)
            peak = LiveBytes(step.model.graph, outputs_first=True).run().peak
            again = sum(node.name.startswith("bngrad_again_Batch") for node in step.model.graph)
            ir.save(step.model, Path(folder, "step.onnx"))
            if not feeds.exists():
                data = {value.name: value for value in step.model.graph.inputs if value.name not in step.state}
                arrays = {n: np.zeros(v.shape.numpy(), v.dtype.numpy()) for n, v in data.items()}
                np.savez(feeds, **step.state, **arrays)
            command = [sys.executable, __file__, folder, str(options.steps), str(options.threads)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            print(
                f"{options.network} {memory:8} {again:3} batch norms again, simulated {peak / 1e6:6.0f} MB, "
                f"measured {float(answer[0]):6.0f} MB, {answer[1]} s a step",
                flush=True,
            )


def measure(folder: str, steps: int, threads: int) -> None:
    """Prints the growth of memory in MB, and the median of the seconds of a step."""
    bngrad.register(onnxruntime.SessionOptions())  # reads the library
    before = _status("VmRSS")
    session = bngrad.session(Path(folder, "step.onnx"), threads=threads)
    binding = session.io_binding()
    kept = []
    for name, array in np.load(Path(folder, "feeds.npz")).items():
        kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_input(name, kept[-1])
    for output in session.get_outputs():
        array = np.zeros(output.shape, np.int64 if output.type == "tensor(int64)" else np.float32)
        kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_output(output.name, kept[-1])
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - start)
    print((_status("VmHWM") - before) * 1024 / 1e6, round(float(np.median(times)), 3))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    measure(sys.argv[1], *map(int, sys.argv[2:])) if Path(sys.argv[1]).is_dir() else main()
