"""Mutations of nodes: their order, names, inputs, outputs and attributes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import onnx

from bngrad.opset import ort_dialect, schemas  # noqa: F401 - both register schemas
from fuzz.draw import FLOATS, NAMES, SIZES, graphs, nodes, value_names

if TYPE_CHECKING:
    from fuzz.draw import Draw

DOMAINS = ("", "ai.onnx", "com.microsoft", "bngrad", "ngraph", "miopen", "aten", "local", "org.pytorch.aten")


@cache
def op_types() -> list[tuple[str, str]]:
    """Returns all ops of onnx and bngrad, and some ops of the dialects."""
    standard = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}
    ort = ("ConvGrad", "ReluGrad", "SoftmaxGrad_13", "GatherGrad", "LayerNormalizationGrad", "ConcatTraining")
    foreign = ("FusedBatchNormGradV3", "BatchNormTrainingBackprop", "DML_BATCH_NORMALIZATION_GRAD")
    return sorted(standard) + [("com.microsoft", op) for op in ort] + [("", op) for op in foreign]


def drop(draw: Draw, model: onnx.ModelProto) -> None:
    graph = _graph(draw, model)
    if graph:
        del graph.node[draw.randrange(len(graph.node))]


def duplicate(draw: Draw, model: onnx.ModelProto) -> None:
    """Duplicates a node, with the same or new output names."""
    graph = _graph(draw, model)
    if graph:
        node = graph.node.add()
        node.CopyFrom(draw.choice(graph.node[:-1]))
        if draw.chance(0.5):
            node.output[:] = [f"{name}_again" for name in node.output]


def reorder(draw: Draw, model: onnx.ModelProto) -> None:
    graph = _graph(draw, model)
    if graph:
        moved = list(graph.node)
        draw.shuffle(moved)
        del graph.node[:]
        graph.node.extend(moved)


def insert(draw: Draw, model: onnx.ModelProto) -> None:
    """Inserts a node of any op, and often makes the next node read its output."""
    graph = _graph(draw, model)
    if not graph:
        return
    domain, op_type = draw.choice(op_types())
    names = value_names(model)
    inputs = [draw.choice(names) for _ in range(draw.choice((0, 1, 1, 2, 3, 5)))] if names else []
    node = onnx.helper.make_node(op_type, inputs, [f"made_{i}" for i in range(draw.choice((1, 1, 2, 5)))])
    node.domain = domain
    where = draw.randrange(len(graph.node) + 1)
    rest = list(graph.node)
    if where < len(rest) and rest[where].input and draw.chance(0.8):
        rest[where].input[draw.randrange(len(rest[where].input))] = "made_0"
    rest.insert(where, node)
    del graph.node[:]
    graph.node.extend(rest)


def rename_op(draw: Draw, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if node:
        node.domain, node.op_type = draw.choice(op_types())


def rename_domain(draw: Draw, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if node:
        node.domain = draw.choice((*DOMAINS, *NAMES))


def rename_type(draw: Draw, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if node:
        node.op_type = draw.choice(NAMES)


def overload(draw: Draw, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if node:
        node.overload = draw.choice(NAMES)


def rename_node(draw: Draw, model: onnx.ModelProto) -> None:
    """Renames a node, possibly to the name of another node."""
    node = _node(draw, model)
    if node:
        node.name = draw.choice((*NAMES, draw.choice(nodes(model)).name))


def rewire(draw: Draw, model: onnx.ModelProto) -> None:
    """Replaces an input by another value, which may cause cycles, wrong types and wrong shapes."""
    node, names = _node(draw, model), value_names(model)
    if node and node.input and names:
        node.input[draw.randrange(len(node.input))] = draw.choice(names)


def dangle(draw: Draw, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    if node and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice((*NAMES, "nothing"))


def inputs(draw: Draw, model: onnx.ModelProto) -> None:
    """Removes or adds inputs."""
    node, names = _node(draw, model), value_names(model)
    if not node:
        return
    if node.input and draw.chance(0.5):
        del node.input[draw.randrange(len(node.input)) :]
    elif names:
        node.input.extend(draw.choice((*names, "")) for _ in range(draw.choice((1, 2, 40))))


def outputs(draw: Draw, model: onnx.ModelProto) -> None:
    """Removes or adds outputs."""
    node = _node(draw, model)
    if not node:
        return
    if node.output and draw.chance(0.5):
        del node.output[draw.randrange(len(node.output)) :]
    else:
        node.output.extend(draw.choice((f"more_{i}", "")) for i in range(draw.choice((1, 2, 40))))


def rename_output(draw: Draw, model: onnx.ModelProto) -> None:
    """Omits an output, or gives it the name of another value, of the node's input, or any name."""
    node = _node(draw, model)
    if node and node.output:
        taken = draw.choice(value_names(model) or [""])
        own = draw.choice(node.input) if node.input else ""
        node.output[draw.randrange(len(node.output))] = draw.choice(("", taken, own, draw.choice(NAMES)))


def drop_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    node = _with_attributes(draw, model)
    if node:
        del node.attribute[draw.randrange(len(node.attribute))]


def duplicate_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    node = _with_attributes(draw, model)
    if node:
        node.attribute.add().CopyFrom(draw.choice(node.attribute[:-1]))


def rename_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    node = _with_attributes(draw, model)
    if node:
        draw.choice(node.attribute).name = draw.choice((*NAMES, "axis", "axes", "training_mode", "value"))


def retype_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes the declared type of an attribute, but not its value."""
    node = _with_attributes(draw, model)
    if node:
        draw.choice(node.attribute).type = draw.randrange(15)


def refer_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    """Makes an attribute refer to an attribute of the function, even outside of functions."""
    node = _with_attributes(draw, model)
    if node:
        draw.choice(node.attribute).ref_attr_name = draw.choice(NAMES)


def change_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes an attribute to an unsuitable value of the right type."""
    node = _with_attributes(draw, model)
    if not node:
        return
    a = draw.choice(node.attribute)
    kind = a.type
    if kind == onnx.AttributeProto.INT:
        a.i = draw.choice(SIZES)
    elif kind == onnx.AttributeProto.FLOAT:
        a.f = draw.choice(FLOATS)
    elif kind == onnx.AttributeProto.STRING:
        a.s = draw.choice((b"", b"\xff\xfe", b"NHWC", b"SAME_UPPER", b"VALID", b"none", b"x" * 5000))
    elif kind == onnx.AttributeProto.INTS:
        if a.ints and draw.chance(0.6):
            a.ints[draw.randrange(len(a.ints))] = draw.choice(SIZES)
        else:
            a.ints[:] = [draw.choice(SIZES) for _ in range(draw.choice((0, 1, 2, 3, 5, 9)))]
    elif kind == onnx.AttributeProto.FLOATS:
        a.floats[:] = [draw.choice(FLOATS) for _ in range(draw.choice((0, 1, 4)))]


def add_attribute(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds an attribute that the op may have, with any value."""
    node = _node(draw, model)
    if not node:
        return
    try:
        attributes = sorted(onnx.defs.get_schema(node.op_type, domain=node.domain).attributes)
    except (onnx.defs.SchemaError, UnicodeError):
        attributes = []
    name = draw.choice((*attributes, "layout", "epsilon", "training_mode", "axis"))
    if not any(a.name == name for a in node.attribute):
        value = draw.choice((*SIZES, *FLOATS, "text", [1, -1], [1 << 40] * 3, [0.5]))
        node.attribute.append(onnx.helper.make_attribute(name, value))


def _graph(draw, model):
    return draw.some([graph for graph in graphs(model) if len(graph.node)])


def _node(draw, model):
    return draw.some(nodes(model))


def _with_attributes(draw, model):
    return draw.some([node for node in nodes(model) if len(node.attribute)])


MUTATIONS = (
    drop, duplicate, reorder, insert, rename_op, rename_domain, rename_type, overload, rename_node, rewire,
    rewire, dangle, inputs, outputs, rename_output, drop_attribute, duplicate_attribute, rename_attribute,
    retype_attribute, refer_attribute, change_attribute, change_attribute, add_attribute,
)  # fmt: skip
"""The mutations; listed twice means twice as often."""
