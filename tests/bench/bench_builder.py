"""Times differentiation: beside ORT's builder, and by the number of batch norms.

    python tests/bench/bench_builder.py

ORT's time is only that of its own builder, in its own process, without reading or writing the model.
"""

from __future__ import annotations

import time

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.training_graph import training_graph
from bngrad.oracle import Oracle, prepare_forward
from bngrad.passes.pipeline import for_target
from models import light

SIZES = (10, 100, 1000, 10_000)


def main() -> None:
    print("network          ORT's builder     ours  ours/ORT   and lowered for stock; seconds, best of 3")
    with Oracle() as oracle:
        for name in light.BATCH_NORMS:
            proto = light.prepare(name)
            prepared = prepare_forward(proto)
            model = ir.from_proto(proto)
            theirs = best(lambda p=prepared: oracle.build_gradient(p.model, p.loss, p.wrt))
            ours = best(lambda m=model: training_graph(m))
            graph = training_graph(model).model
            lowered = best(lambda g=graph: for_target(g, target="stock"))
            print(f"{name:14} {theirs:12.3f} {ours:12.3f} {ours / theirs:8.2f} {lowered:12.3f}")
    print("batch norms     training graph, ms each     lowered for stock, ms each")
    for size in SIZES:
        model = chain(size)
        ours = best(lambda m=model: training_graph(m), 1 if size > 1000 else 3)
        graph = training_graph(model).model
        lowered = best(lambda g=graph: for_target(g, target="stock"), 1 if size > 1000 else 3)
        print(f"{size:11} {ours:10.3f} s {1e3 * ours / size:8.3f} {lowered:14.3f} s {1e3 * lowered / size:8.3f}")


def best(work, times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def chain(length: int) -> ir.Model:
    """Batch norms with a ReLU after each, one after the other."""
    float_type = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", type=float_type, shape=ir.Shape(["N", 2, 3]))
    graph = ir.Graph([x], [], nodes=[], name="chain", opset_imports={"": 18})
    for index in range(length):
        parameters = []
        for what in ("scale", "bias", "mean", "var"):
            value = ir.Value(name=f"{what}{index}", const_value=ir.tensor(np.ones(2, np.float32)))
            value.type, value.shape = float_type, ir.Shape([2])
            graph.register_initializer(value)
            parameters.append(value)
        training = {"training_mode": 1}
        node = ir.node("BatchNormalization", [x, *parameters], training, num_outputs=3, name=f"bn{index}")
        for value, name in zip(node.outputs, ("y", "new_mean", "new_var"), strict=True):
            value.name = f"{name}{index}"
        relu = ir.node("Relu", [node.outputs[0]], name=f"relu{index}")
        relu.outputs[0].name = f"z{index}"
        graph.extend([node, relu])
        (x,) = relu.outputs
    loss = ir.node("ReduceSum", [x], {"keepdims": 0}, name="loss")
    loss.outputs[0].name, loss.outputs[0].type, loss.outputs[0].shape = "loss", float_type, ir.Shape([])
    graph.append(loss)
    graph.outputs.append(loss.outputs[0])
    return ir.Model(graph, ir_version=8)


if __name__ == "__main__":
    main()
