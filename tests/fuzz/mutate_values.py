"""Mutations of values and tensors: names, types and shapes, numbers, and external data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto

from fuzz.draw import FLOATS, NAMES, SIZES, graphs, nodes, tensors, value_infos, value_names

if TYPE_CHECKING:
    from fuzz.draw import Draw

LOCATIONS = (
    "", ".", "..", "missing.bin", "model.onnx", "../weights.bin", "/etc/passwd", "/dev/zero", "/dev/stdin",
    "data.bin", "a/../data.bin", "\u0000", "x" * 300, "link.bin", "fifo",
)  # fmt: skip
"""Locations of external data. `data.bin` exists and has 64 bytes; `link.bin` points outside of the folder."""


def rename(draw: Draw, model: onnx.ModelProto) -> None:
    """Renames a value everywhere, possibly to the name of another value."""
    names = value_names(model)
    if not names:
        return
    old = draw.choice(names)
    new = draw.choice((*NAMES, f"{old}_grad", draw.choice(names)))
    for graph in graphs(model):
        for node in graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
        if hasattr(graph, "initializer"):
            for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                value.name = new if value.name == old else value.name
        else:
            graph.input[:] = [new if name == old else name for name in graph.input]
            graph.output[:] = [new if name == old else name for name in graph.output]


def rename_info(draw: Draw, model: onnx.ModelProto) -> None:
    info = draw.some(value_infos(model))
    if info:
        info.name = draw.choice((*NAMES, *value_names(model)))


def retype(draw: Draw, model: onnx.ModelProto) -> None:
    info = draw.some(value_infos(model))
    if info and info.type.HasField("tensor_type"):
        info.type.tensor_type.elem_type = draw.choice((*range(28), 99, 1, 10, 11, 16))


def retype_all(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes the type of most float values to another type."""
    new = draw.choice((TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32))
    for info in value_infos(model):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT and draw.chance(0.95):
            info.type.tensor_type.elem_type = new
    for tensor in tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            continue  # the file does not exist yet
        if tensor.data_type == TensorProto.FLOAT and new == TensorProto.DOUBLE and draw.chance(0.95):
            try:
                array = onnx.numpy_helper.to_array(tensor).astype("float64")
            except (ValueError, TypeError):
                continue
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def untype(draw: Draw, model: onnx.ModelProto) -> None:
    """Removes a type, or changes it to one other than a tensor."""
    info = draw.some(value_infos(model))
    if not info:
        return
    info.ClearField("type")
    kind = draw.choice(("none", "sequence", "optional", "map", "sparse", "no-shape", "empty"))
    if kind == "sequence":
        info.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == "optional":
        info.type.optional_type.elem_type.tensor_type.elem_type = 1
    elif kind == "map":
        info.type.map_type.key_type = 7
        info.type.map_type.value_type.tensor_type.elem_type = 1
    elif kind == "sparse":
        info.type.sparse_tensor_type.elem_type = 1
    elif kind == "no-shape":
        info.type.tensor_type.elem_type = 1
    elif kind == "empty":
        info.type.tensor_type.SetInParent()


def reshape(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes a shape to wrong, huge, negative or symbolic sizes, or to another rank."""
    info = draw.some([i for i in value_infos(model) if i.type.HasField("tensor_type")])
    if not info:
        return
    shape = info.type.tensor_type.shape
    shape.SetInParent()
    if len(shape.dim) and draw.chance(0.6):
        dim = draw.choice(shape.dim)
        if draw.chance(0.3):
            dim.dim_param = draw.choice((*NAMES, "N", "N+1", "-1"))
        elif draw.chance(0.2):
            dim.Clear()
        else:
            dim.dim_value = draw.choice(SIZES)
    elif len(shape.dim) and draw.chance(0.4):
        del shape.dim[draw.randrange(len(shape.dim))]
    else:
        for _ in range(draw.choice((1, 1, 1, 4, 9, 70))):
            shape.dim.add().dim_value = draw.choice((1, 1, *SIZES))


def drop_info(draw: Draw, model: onnx.ModelProto) -> None:
    graph = model.graph
    for field in draw.sample((graph.input, graph.output, graph.value_info, graph.initializer), 4):
        if len(field):
            del field[draw.randrange(len(field))]
            return


def duplicate_info(draw: Draw, model: onnx.ModelProto) -> None:
    graph = model.graph
    for field in draw.sample((graph.input, graph.output, graph.value_info, graph.initializer), 4):
        if len(field):
            field.add().CopyFrom(draw.choice(field[:-1]) if len(field) > 1 else field[0])
            return


def output_anything(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds a graph output that may be an input, an initializer, a value of a subgraph, or undefined."""
    name = draw.choice((*value_names(model), "nothing", ""))
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, draw.choice((1, 7, 11)), [3]))


def invent_info(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds a value_info entry that may contradict the value."""
    name = draw.choice((*value_names(model), "nothing"))
    shape = [draw.choice((*SIZES, "N", None)) for _ in range(draw.randrange(5))]
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, draw.choice((1, 7, 10, 11)), shape))


def become_initializer(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds an initializer that may have the name of an input or of a node's output."""
    name = draw.choice((*value_names(model), "new"))
    dims = [draw.choice((0, 1, 3)) for _ in range(draw.randrange(4))]
    values = [0.5] * math.prod(dims)
    model.graph.initializer.append(onnx.helper.make_tensor(name, TensorProto.FLOAT, dims, values))


def change_dims(draw: Draw, model: onnx.ModelProto) -> None:
    tensor = draw.some(tensors(model))
    if tensor is None:
        return
    if tensor.dims and draw.chance(0.7):
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(SIZES)
    else:
        tensor.dims.extend(draw.choice(SIZES) for _ in range(draw.choice((1, 2, 9, 70))))


def change_data_type(draw: Draw, model: onnx.ModelProto) -> None:
    tensor = draw.some(tensors(model))
    if tensor is not None:
        tensor.data_type = draw.choice((*range(28), 99, -1))


def change_data(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes the data of a tensor: too few or too many numbers, two fields, non-finite or huge numbers."""
    tensor = draw.some(tensors(model))
    if tensor is None:
        return
    kind = draw.randrange(6)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.raw_data = tensor.raw_data + draw.randbytes(draw.choice((1, 4, 8, 4096)))
    elif kind == 2:
        draw.choice((tensor.float_data, tensor.double_data)).extend(draw.choices(FLOATS, k=3))
    elif kind == 3:
        tensor.int64_data.extend(draw.choices(SIZES, k=3))
    elif kind == 4:
        tensor.string_data.append(b"text")
    elif tensor.int64_data:
        tensor.int64_data[draw.randrange(len(tensor.int64_data))] = draw.choice(SIZES)
    elif len(tensor.raw_data) >= 8:
        data = bytearray(tensor.raw_data)
        data[:8] = draw.choice(SIZES).to_bytes(8, "little", signed=True)
        tensor.raw_data = bytes(data)


def move_data_out(draw: Draw, model: onnx.ModelProto) -> None:
    """Makes data external: in a missing file, outside of the folder, in a device, or with a wrong range."""
    tensor = draw.some(tensors(model))
    if tensor is None:
        return
    tensor.data_location = TensorProto.EXTERNAL
    if draw.chance(0.7):
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    places = {"location": draw.choice(LOCATIONS)}
    for key in ("offset", "length"):
        if draw.chance(0.5):
            places[key] = draw.choice(("0", "4", "12", "-1", "x", "", "1e3", str(1 << 40), "9" * 30))
    for key, value in places.items():
        if draw.chance(0.95):
            tensor.external_data.add(key=key, value=value)


def sparse(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds a sparse initializer, which few programs support."""
    tensor = model.graph.sparse_initializer.add()
    tensor.values.CopyFrom(onnx.helper.make_tensor(draw.choice((*value_names(model), "new")), 1, [1], [0.5]))
    tensor.indices.CopyFrom(onnx.helper.make_tensor("", 7, [1], [draw.choice(SIZES)]))
    tensor.dims.append(draw.choice(SIZES))


def quantize(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds a quantization annotation that may name values that do not exist."""
    note = model.graph.quantization_annotation.add(tensor_name=draw.choice((*NAMES, *value_names(model))))
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=draw.choice(NAMES))


def constant(draw: Draw, model: onnx.ModelProto) -> None:
    """Replaces an input of a node by integers that are unsuitable as shape, axes or counts."""
    reading = [node for node in nodes(model) if len(node.input)]
    if not reading:
        return
    values = [draw.choice(SIZES) for _ in range(draw.choice((0, 1, 1, 2, 4, 9)))]
    shape = [len(values)] if len(values) != 1 or draw.chance(0.5) else []
    model.graph.initializer.append(onnx.helper.make_tensor("a_number", TensorProto.INT64, shape, values))
    node = draw.choice(reading)
    node.input[draw.randrange(len(node.input))] = "a_number"


MUTATIONS = (
    rename, rename, rename_info, retype, retype_all, untype, reshape, reshape, drop_info, duplicate_info,
    output_anything, invent_info, become_initializer, change_dims, change_data_type, change_data, move_data_out,
    sparse, quantize, constant,
)  # fmt: skip
"""The mutations; listed twice means twice as often."""
