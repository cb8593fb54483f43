"""Times convolutions of few pixels and their data gradients: the native kernels beside the functions of the ops.

.venv/bin/python tests/bench/bench_batched_conv.py

A session without the library runs the functions, which are ONNX Runtime's Conv and ConvTranspose of float. Both
take turns, in one thread; the least processor time of several runs is printed.
"""

from __future__ import annotations

from onnx import TensorProto, helper
from onnx_ir import to_proto

from bench_depthwise import least_times
from bngrad.graph.overloads import function_of
from bngrad.opset.batched_conv import CONV, SIGNATURES, TRANSPOSE, function
from bngrad.opset.domain import DOMAIN

OPSET = 17
# (batch, C, M, height and width of the result, kernel, stride)
LAYERS = [
    *((batch, 512, 512, 1, 3, 1) for batch in (2, 8, 32)),
    *((batch, 512, 512, 2, 3, 1) for batch in (2, 8, 32, 128)),
    *((32, channels, channels, 2, 1, 1) for channels in (64, 512, 1024)),
    *((32, 256, 256, size, 3, 1) for size in (3, 4, 5, 6, 7, 8, 10, 14)),
    *((8, 512, 512, 7, 3, 1), (2, 256, 256, 5, 1, 1), (128, 64, 64, 4, 3, 1)),
    *((32, 256, 512, 2, 3, 2), (32, 256, 512, 2, 1, 2), (128, 256, 256, 5, 1, 2), (128, 64, 64, 7, 1, 2)),
]


def main() -> None:
    print("| batch, C, M, size, kernel, stride | Conv | native | | ConvTranspose | native | |")
    print("|---|---|---|---|---|---|---|")
    for layer in LAYERS:
        cells = []
        for name in (CONV, TRANSPOSE):
            plain, native = measure(name, *layer)
            cells += [f"{plain:.2f}", f"{native:.2f}", f"{plain / native:.2f}"]
        print(f"| {', '.join(map(str, layer))} | {' | '.join(cells)} |", flush=True)


def measure(name: str, batch: int, c: int, m: int, size: int, kernel: int, stride: int) -> list[float]:
    """Returns the times without and with the library, in ms."""
    pad, of_data = kernel // 2, size * stride
    shapes = {"X": [batch, c, of_data, of_data], "W": [m, c, kernel, kernel]}
    lists = {"dilations": [1, 1], "kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}
    if name == TRANSPOSE:
        shapes["X"] = [batch, m, size, size]
        lists["output_padding"] = [of_data - ((size - 1) * stride + kernel - 2 * pad)] * 2
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, ["X", "W"], ["Y"], "conv", domain=DOMAIN, **lists)],
        "layer",
        [info(value, TensorProto.FLOAT, shape) for value, shape in shapes.items()],
        [info("Y", TensorProto.FLOAT, None)],
    )
    body = to_proto(function_of(name, "", function(name, OPSET), SIGNATURES[name][2]))
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, functions=[body], opset_imports=imports, ir_version=8).SerializeToString()
    return least_times(model, shapes)


if __name__ == "__main__":
    main()
