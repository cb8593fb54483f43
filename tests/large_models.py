"""Writes models whose weights exceed the limit of protobuf, quickly, because the weights are a sparse file.

python tests/large_models.py FOLDER [EXTENT [LAYERS]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

EXTENT, LAYERS = 12_800, 4
"""2.6 GB of weights, in four tensors of 655 MB."""


def marks(index):
    """Returns the first and the last element of a weight; the others are zero."""
    return [1.0 + index, -1.0 - index]


def forward(folder: Path, extent: int = EXTENT, layers: int = LAYERS) -> Path:
    """Writes a model of matrix products, each followed by a batch norm, with the matrices as external data."""
    size = 4 * extent * extent
    vectors = ("scale", "bias", "mean", "var")
    nodes, initializers, x = [], [], "x"
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(layers * size)
        for index in range(layers):
            for place, number in zip((index * size, (index + 1) * size - 4), marks(index), strict=True):
                file.seek(place)
                file.write(np.float32(number).tobytes())
            weight = onnx.TensorProto(
                name=f"w{index}", data_type=onnx.TensorProto.FLOAT, data_location=onnx.TensorProto.EXTERNAL
            )
            weight.dims.extend((extent, extent))
            for key, value in (("location", "weights.bin"), ("offset", index * size), ("length", size)):
                weight.external_data.add(key=key, value=str(value))
            initializers.append(weight)
            ones = np.ones(extent, np.float32)
            initializers += [onnx.numpy_helper.from_array(ones, f"{vector}{index}") for vector in vectors]
            parameters = [f"{vector}{index}" for vector in vectors]
            outputs = [f"y{index}", f"new_mean{index}", f"new_var{index}"]
            nodes += [
                helper.make_node("MatMul", [x, weight.name], [f"p{index}"]),
                helper.make_node("BatchNormalization", [f"p{index}", *parameters], outputs, training_mode=1),
                helper.make_node("Relu", [f"y{index}"], [f"z{index}"]),
            ]
            x = f"z{index}"
    nodes.append(helper.make_node("ReduceMean", [x], ["loss"], keepdims=0))
    data = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", extent])
    loss = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "large", [data], [loss], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "forward.onnx"
    path.write_bytes(model.SerializeToString())
    return path


if __name__ == "__main__":
    forward(Path(sys.argv[1]), *map(int, sys.argv[2:]))
