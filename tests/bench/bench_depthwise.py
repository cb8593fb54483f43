"""Times depthwise convolutions, forward and both gradients: the native kernels beside the functions of the ops.

.venv/bin/python tests/bench/bench_depthwise.py

The layers are those of ShuffleNet and MobileNet v2, of float, in one thread. A session without the library runs
the functions, which are ONNX Runtime's own ops. Both take turns; the least processor time of several runs is
printed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import bngrad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BATCH = 8
RUNS = 7
# (channels, size of the data, stride) of kernels of 3x3
LAYERS = [
    *((112, 56, 2), (136, 28, 1), (272, 14, 1), (544, 7, 1)),
    *(
        (32, 112, 1),
        (96, 112, 2),
        (144, 56, 1),
        (144, 56, 2),
        (192, 28, 1),
        (384, 14, 1),
        (576, 14, 2),
        (960, 7, 1),
    ),
]


def main() -> None:
    print("| channels, size, stride | ONNX Runtime, ms | native, ms | |")
    print("|---|---|---|---|")
    for layer in LAYERS:
        plain, native = measure(*layer)
        print(f"| {', '.join(map(str, layer))} | {plain:.2f} | {native:.2f} | {plain / native:.1f} |", flush=True)


def measure(channels: int, size: int, stride: int) -> list[float]:
    """Returns the times without and with the library, in ms."""
    out = (size - 1) // stride + 1
    shapes = {
        "X": [BATCH, channels, size, size],
        "W": [channels, 1, 3, 3],
        "dY": [BATCH, channels, out, out],
    }
    attributes = {"group": channels, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride, stride]}
    nodes = [
        helper.make_node("Conv", ["X", "W"], ["Y"], "conv", **attributes),
        helper.make_node("ConvGrad", ["dY", "X", "W"], ["dX", "dW"], "grad", domain="com.microsoft", **attributes),
    ]
    like = {"Y": "dY", "dX": "X", "dW": "W"}
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "layer",
        [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [info(name, TensorProto.FLOAT, shapes[other]) for name, other in like.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = bngrad.rewrite(helper.make_model(graph, opset_imports=imports, ir_version=8)).SerializeToString()
    return least_times(model, shapes)


def least_times(model: bytes, shapes: Mapping[str, Sequence[int]]) -> list[float]:
    """Returns the least processor times of a model without and with the library, in ms."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    sessions = [session_of(model, native=native) for native in (False, True)]
    times: list[list[float]] = [[], []]
    for _ in range(1 + RUNS):
        for session, own in zip(sessions, times, strict=True):
            start = time.process_time()
            session.run(None, feeds)
            own.append(time.process_time() - start)
    return [1e3 * min(own[1:]) for own in times]


def session_of(model: bytes, *, native: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if native:
        bngrad.register(options)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
