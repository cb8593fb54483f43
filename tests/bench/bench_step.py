"""One training step of the light networks: ours on stock ONNX Runtime beside ORT's training build, and others.

    python tests/bench/bench_step.py [NETWORK ...] [--torch PYTHON]

Every way is a process of its own, so that its peak memory is its own too; steps are taken in turns, so that
whatever else the machine does hits all alike. PYTHON is an interpreter that has PyTorch and onnx. Not a test: it
only prints.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from bngrad.oracle import ensure
from bngrad.runtime.native_library import library_path
from bngrad.training.differentiate import differentiate
from bngrad.validation.inputs import bind_dimensions, draw_inputs
from models import light

FOLDER = Path(__file__).parent


class Way:
    """A process that steps when told."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.times: list[float] = []
        self.peak = 0.0
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = self._process.stdout.readline().strip()
        if answer != "ready":
            raise SystemExit(f"{name} said {answer!r}")

    def step(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.times.append(float(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.stdin.close()
        self.peak = float(self._process.stdout.readline())
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(light.BATCH_NORMS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch", metavar="PYTHON", help="also time PyTorch, in this interpreter")
    options = parser.parse_args()
    print(f"{options.threads} threads, batch {options.batch}; seconds a step: median (quartiles); peak of memory")
    for network in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            ways = start(network, Path(folder), options)
            for _ in range(options.steps):
                for way in ways:
                    way.step()
            for way in ways:
                way.end()
        report(network, ways)


def start(network: str, folder: Path, options: argparse.Namespace) -> list[Way]:
    forward = folder / "forward.onnx"
    onnx.save(light.prepare(network), forward)
    ours = differentiate(ir.load(forward)).model
    # ORT's AveragePoolGrad takes the batch size from the model; ours serves every one.
    fixed = ir.load(forward)
    bind_dimensions(fixed, {"N": options.batch}, {})
    theirs = differentiate(fixed, builder="ort", target="ort").model
    ir.save(ours, folder / "ours.onnx")
    ir.save(differentiate(ir.load(forward), memory="lean").model, folder / "lean.onnx")
    ir.save(theirs, folder / "theirs.onnx")
    bound = ours.clone()
    bind_dimensions(bound, {"N": options.batch}, {})
    defaults = ours.graph.initializers.items()
    weights = {name: value.const_value.numpy() for name, value in defaults if value.is_graph_input()}
    np.savez(folder / "feeds.npz", **draw_inputs(bound, arrays=weights, seed=0))
    common = [str(folder / "feeds.npz"), "--threads", str(options.threads)]
    worker = str(FOLDER / "step_worker.py")
    stock, lean = (
        [sys.executable, worker, str(folder / name), *common, "--as-bngrad"] for name in ("ours.onnx", "lean.onnx")
    )
    training = [str(ensure().python), worker, str(folder / "theirs.onnx"), *common]
    ways = [
        Way("ours, native", [*stock, "--library", str(library_path())]),
        Way("ours, native, lean", [*lean, "--library", str(library_path())]),
        Way("ours, nothing registered", stock),
        Way("ORT training build", training),
    ]
    if options.torch:
        torch = [options.torch, str(FOLDER / "torch_step_worker.py"), str(forward), *common]
        ways += [Way("PyTorch", torch), Way("PyTorch, channels last", [*torch, "--channels-last"])]
    return ways


def report(network: str, ways: list[Way]) -> None:
    first = ways[0]
    print(network)
    for way in ways:
        low, median, high = np.quantile(way.times, [0.25, 0.5, 0.75])
        ratio = np.median(first.times) / median
        print(
            f"  {way.name:26} {median:7.3f} ({low:.3f}-{high:.3f})  ours/this {ratio:5.2f}   "
            f"{way.peak:6.0f} MB  ours/this {first.peak / way.peak:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
