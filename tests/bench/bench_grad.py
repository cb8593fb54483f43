"""BatchNormalizationGrad of this library beside that of ONNX Runtime's training build, in one process.

    python tests/bench/bench_grad.py --python TRAINING_ENV/bin/python --library libbngrad.so [SHAPE ...]

TRAINING_ENV is a virtual environment with numpy, onnx and onnxruntime-training-cpu 1.19.2, the last release that
has the op; without --python the running interpreter must be it. SHAPE is N,C,H,W (default: ResNet-50's); with
--layout NHWC ours alone runs, on N,H,W,C arrays. Repetitions of both alternate, so that whatever else the machine
does hits both alike. GB/s counts X and dY read once and dX written once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

RESNET50 = (
    "32,64,112,112",
    "32,256,56,56",
    "32,512,28,28",
    "32,1024,14,14",
    "32,2048,7,7",
    "8,64,56,56",
    "2,64,56,56",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", default=RESNET50)
    parser.add_argument("--python", help="interpreter of an environment with onnxruntime-training-cpu")
    parser.add_argument("--library", default=os.environ.get("BNGRAD_LIBRARY"), help="our library's path")
    parser.add_argument("--layout", choices=["NCHW", "NHWC"], default="NCHW")
    parser.add_argument("--frozen", action="store_true", help="training_mode 0; the other op has only 1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each shape")
    options = parser.parse_args()
    if options.library is None:
        parser.error("--library or the environment variable BNGRAD_LIBRARY must name the library")
    if options.python:
        arguments = [a for i, a in enumerate(sys.argv) if a != "--python" and sys.argv[i - 1] != "--python"]
        os.environ["BNGRAD_LIBRARY"] = options.library
        raise SystemExit(subprocess.run([options.python, *arguments], check=False).returncode)
    run(options)


def run(options: argparse.Namespace) -> None:
    """Prints one row a shape."""
    import onnxruntime

    peer = "com.microsoft" if options.layout == "NCHW" and not options.frozen else None
    write(f"onnxruntime {onnxruntime.__version__}, {options.threads} threads, {options.layout}, float")
    write(f"{'ms: median (quartiles)':>43}")
    write(f"{'shape':>18} {'bngrad':>24} {'GB/s':>5} {'training build':>24} {'GB/s':>5} {'ratio':>6}")
    for text in options.shapes:
        shape = [int(extent) for extent in text.split(",")]
        if options.layout == "NHWC":
            shape = [shape[0], *shape[2:], shape[1]]
        ways = [Way("bngrad", shape, options)] + ([Way(peer, shape, options)] if peer else [])
        measure(ways, options.seconds)
        row = f"{text:>18}"
        for way in ways:
            row += f" {way.summary():>24} {way.bandwidth():5.1f}"
        if len(ways) == 2:
            row += f" {ways[1].median() / ways[0].median():6.2f}"
        write(row)


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
    """One op on one shape: a session with inputs and outputs bound, and the times of its runs."""

    def __init__(self, domain: str, shape: list[int], options: argparse.Namespace) -> None:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper

        rng = np.random.default_rng(0)
        channel_axis = 1 if options.layout == "NCHW" else 3
        channels = [shape[channel_axis]]
        feeds = {name: rng.standard_normal(shape, np.float32) for name in ("dY", "X")}
        feeds |= {
            name: rng.uniform(0.5, 1.5, channels).astype(np.float32) for name in ("scale", "mean", "inv_std")
        }
        shapes = {"dX": shape, "dscale": channels, "dbias": channels}

        names = list(feeds)
        attributes: dict[str, float] = {"epsilon": 1e-5}
        initializers = []
        if domain == "bngrad":
            names.append("axes")
            attributes = {"training_mode": 0 if options.frozen else 1}
            axes = [axis for axis in range(4) if axis != channel_axis]
            initializers.append(helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes))
        node = helper.make_node("BatchNormalizationGrad", names, list(shapes), domain=domain, **attributes)
        graph = helper.make_graph(
            [node],
            "bench",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in feeds.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in shapes.items()],
            initializers,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = options.threads
        session_options.register_custom_ops_library(options.library)
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), session_options, providers=["CPUExecutionProvider"]
        )
        self.binding = self.session.io_binding()
        self.keep = []  # bound memory must outlive the binding
        for name, array in feeds.items():
            self.keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
            self.binding.bind_ortvalue_input(name, self.keep[-1])
        for name, s in shapes.items():
            self.keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(s, np.float32)))
            self.binding.bind_ortvalue_output(name, self.keep[-1])
        self.bytes = 3 * feeds["X"].nbytes
        self.times: list[float] = []

    def once(self) -> None:
        start = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.times.append(time.perf_counter() - start)

    def _quantile(self, q: float) -> float:
        return sorted(self.times)[int(q * (len(self.times) - 1))]

    def median(self) -> float:
        return self._quantile(0.5)

    def bandwidth(self) -> float:
        return self.bytes / self.median() / 1e9

    def summary(self) -> str:
        low, mid, high = (1e3 * self._quantile(q) for q in (0.25, 0.5, 0.75))
        return f"{mid:.3f} ({low:.3f}-{high:.3f})"


if __name__ == "__main__":
    main()
