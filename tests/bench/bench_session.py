"""Times BatchNormalizationGrad in a session of the installed ONNX Runtime.

    python tests/bench/bench_session.py

Small: a chain of 200 nodes of 64 elements each, beside the same chain of an op that looks at its inputs, makes its
outputs, and does nothing; and of one that does nothing and borrows its inputs' shapes, as ours do where they can.
Large: one node of 8x64x56x56 by each of the implementations, and by a function in Python that hands its inputs
over as outputs, which is the least that onnxruntime-extensions takes. In turns, in one process; the implementation
in Python has the session's threads, too.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_extensions
from onnx import helper
from onnxruntime_extensions import PyCustomOpDef

import bngrad
from bngrad.bench.timing import run_trial, time_interleaved
from bngrad.runtime.extensions import _NoCopyOutput

CHAIN = 200
SMALL, LARGE = (2, 4, 2, 4), (8, 64, 56, 56)
REPEATS = 21
LENDING = (1, 24)
"""Since when ONNX Runtime lends an op the shapes of its inputs."""


def main() -> None:
    versions = f"onnxruntime {onnxruntime.__version__}, bngrad {bngrad.__version__}"
    print(f"{versions}; median (quartiles) of {REPEATS} turns")
    with tempfile.TemporaryDirectory() as folder:
        library = compile_nothing(Path(folder))
        feeds = make_feeds(SMALL)
        borrowing = {}
        if tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= LENDING:
            borrowing["borrows shapes"] = session(chain("nothing", "NothingLent", CHAIN), feeds, library=library)
        chains = {
            "does nothing": session(chain("nothing", "Nothing", CHAIN), feeds, library=library),
            **borrowing,
            "native": session(chain("bngrad", "BatchNormalizationGrad", CHAIN), feeds, implementation="native"),
        }
        print(f"\na node of {'x'.join(map(str, SMALL))}, in a chain of {CHAIN}, microseconds")
        show(chains, 1e6 / CHAIN, "does nothing")
    feeds = make_feeds(LARGE)
    graph = chain("bngrad", "BatchNormalizationGrad", 1)
    nodes = {
        "native": session(graph, feeds, implementation="native"),
        "python": session(graph, feeds, implementation="python"),
        "python alone": session(chain("nothing", "HandedOver", 1), feeds, library=define_handed_over()),
        "function": session(bngrad.rewrite(graph), feeds, implementation="function"),
    }
    print(f"\none node of {'x'.join(map(str, LARGE))}, milliseconds")
    show(nodes, 1e3, "native")


def show(ways, unit, base):
    spreads = time_interleaved({name: partial(run_trial, call) for name, call in ways.items()}, REPEATS)
    for name, spread in spreads.items():
        low, median, high = (unit * seconds for seconds in spread)
        ratio = spread.median / spreads[base].median
        print(f"  {name:14} {median:8.3f} ({low:.3f}-{high:.3f})   {ratio:.2f} of {base}")


def make_feeds(shape):
    rng = np.random.default_rng(0)
    dY, X = rng.normal(size=(2, *shape)).astype(np.float32)
    scale, mean, inv_std = rng.uniform(0.5, 1.5, (3, shape[1])).astype(np.float32)
    return {"dY": dY, "X": X, "scale": scale, "mean": mean, "inv_std": inv_std}


def chain(domain, op_type, length):
    """The dX of each is the dY of the next."""
    nodes, dY = [], "dY"
    for i in range(length):
        outputs = [f"dX{i}", f"dscale{i}", f"dbias{i}"]
        attributes = {"training_mode": 1} if domain == "bngrad" else {}
        inputs = [dY, "X", "scale", "mean", "inv_std", "axes"]
        nodes.append(helper.make_node(op_type, inputs, outputs, f"n{i}", domain=domain, **attributes))
        dY = outputs[0]
    float_info = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    inputs = [float_info(name, shape=["N", "C", "H", "W"]) for name in ("dY", "X")]
    inputs += [float_info(name, shape=["C"]) for name in ("scale", "mean", "inv_std")]
    axes = onnx.numpy_helper.from_array(np.array([0, 2, 3]), "axes")
    graph = helper.make_graph(nodes, "chain", inputs, [float_info(dY, shape=["N", "C", "H", "W"])], [axes])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session(model, feeds, *, implementation=None, library=None):
    """A call that runs a model with everything bound beforehand."""
    if library is None:
        session = bngrad.session(model, implementation)
    else:
        options = onnxruntime.SessionOptions()
        options.enable_mem_pattern = False  # as in our sessions
        options.register_custom_ops_library(str(library))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    output = np.empty_like(feeds["X"])
    (value,) = session.get_outputs()
    binding.bind_output(value.name, "cpu", 0, np.float32, output.shape, output.ctypes.data)
    kept = feeds, output  # the binding has addresses only
    return lambda: (session.run_with_iobinding(binding), kept)


def define_handed_over():
    """An op in Python that computes nothing; returns the library that calls it."""

    @onnxruntime_extensions.onnx_op(
        op_type="nothing::HandedOver",
        inputs=[PyCustomOpDef.dt_float] * 5 + [PyCustomOpDef.dt_int64],
        outputs=[PyCustomOpDef.dt_float] * 3,
    )
    def hand_over(dY, X, scale, mean, inv_std, axes):  # noqa: ARG001 - the op's inputs
        return tuple(map(_NoCopyOutput, (dY, scale, scale)))

    return onnxruntime_extensions.get_library_path()


def compile_nothing(folder):
    source, library = Path(__file__).with_name("nothing_op.cc"), folder / "libnothing.so"
    compiler = shutil.which("c++")
    if compiler is None:
        raise SystemExit("there is no C++ compiler for the op that does nothing")
    include = f"-I{Path(__file__).parents[2] / 'ops'}"
    subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", include, source, "-o", library], check=True)
    return library


if __name__ == "__main__":
    main()
