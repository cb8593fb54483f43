"""Mutations of models: versions, imports, functions, subgraphs, and parts of another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from fuzz.draw import NAMES, SIZES, graphs, nodes
from fuzz.mutate_nodes import DOMAINS

if TYPE_CHECKING:
    from fuzz.draw import Draw

OPSETS = (0, 1, 6, 7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 21, 22, 23, 24, 26, 27, 99, -1, 1 << 31, 1 << 62)
IR_VERSIONS = (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 99, -1, 1 << 40)


def opset(draw: Draw, model: onnx.ModelProto) -> None:
    if len(model.opset_import):
        draw.choice(model.opset_import).version = draw.choice(OPSETS)


def rename_import(draw: Draw, model: onnx.ModelProto) -> None:
    if len(model.opset_import):
        draw.choice(model.opset_import).domain = draw.choice((*DOMAINS, *NAMES))


def drop_import(draw: Draw, model: onnx.ModelProto) -> None:
    if len(model.opset_import):
        del model.opset_import[draw.randrange(len(model.opset_import))]


def add_import(draw: Draw, model: onnx.ModelProto) -> None:
    """Imports a domain that may already be imported in another version."""
    model.opset_import.append(helper.make_opsetid(draw.choice((*DOMAINS, *NAMES)), draw.choice(OPSETS)))


def ir_version(draw: Draw, model: onnx.ModelProto) -> None:
    model.ir_version = draw.choice(IR_VERSIONS)


def properties(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds metadata, possibly with duplicate keys."""
    for _ in range(2):
        model.metadata_props.add(key=draw.choice(NAMES), value=draw.choice(NAMES))
    draw.choice((model, model.graph)).doc_string = draw.choice(NAMES)
    model.producer_name = draw.choice(NAMES)


def clear(draw: Draw, model: onnx.ModelProto) -> None:
    """Clears a field of the model or its graph."""
    message = draw.choice((model, model.graph, model.graph))
    fields = [field.name for field, _ in message.ListFields()]
    if fields:
        message.ClearField(draw.choice(fields))


def make_function(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds a function for an op of the model, whose body is the op, another op, a recursive call, or empty."""
    called = draw.some(nodes(model))
    if called is None:
        return
    kind = draw.choice(("itself", "another", "nothing", "wrapped"))
    inputs, outputs = list(called.input), list(called.output)
    node = onnx.NodeProto()
    node.CopyFrom(called)
    if kind == "another":
        other = draw.choice(nodes(model))
        node.op_type, node.domain = other.op_type, other.domain
    function = model.functions.add(name=called.op_type, domain=called.domain)
    function.opset_import.extend(model.opset_import)
    function.input.extend(dict.fromkeys(name for name in inputs if name))
    function.output.extend(name for name in outputs if name)
    if kind == "wrapped":
        # The model calls the function by another name.
        function.name, function.domain = "Wrapped", "local"
        called.op_type, called.domain = "Wrapped", "local"
        model.opset_import.append(helper.make_opsetid("local", 1))
    if kind != "nothing":
        function.node.append(node)


def mutual_recursion(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds two functions that call each other, and makes a node call one of them."""
    names = ("Ping", "Pong")
    for name, other in zip(names, reversed(names), strict=True):
        function = model.functions.add(name=name, domain="local")
        function.input.append("a")
        function.output.append("b")
        function.opset_import.append(helper.make_opsetid("local", 1))
        function.node.append(helper.make_node(other, ["a"], ["b"], domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    node = draw.some(nodes(model))
    if node is not None and draw.chance(0.7):
        node.op_type, node.domain = draw.choice(names), "local"


def change_function(draw: Draw, model: onnx.ModelProto) -> None:
    """Changes the name, imports, inputs or outputs of a function, or duplicates it."""
    function = draw.some(model.functions)
    if function is None:
        return
    kind = draw.randrange(6)
    if kind == 0:
        function.name = draw.choice((*NAMES, "BatchNormalizationGrad", "Relu"))
    elif kind == 1:
        function.domain = draw.choice(DOMAINS)
    elif kind == 2:
        del function.opset_import[:]
        function.opset_import.append(helper.make_opsetid(draw.choice(DOMAINS), draw.choice(OPSETS)))
    elif kind == 3:
        draw.choice((function.input, function.output)).append(draw.choice(NAMES))
    elif kind == 4:
        field = draw.choice((function.input, function.output))
        if len(field):
            del field[-1]
    else:
        model.functions.add().CopyFrom(function)


def nest(draw: Draw, model: onnx.ModelProto) -> None:
    """Moves the whole graph into the branches of nested If nodes."""
    if len(model.graph.node) > 60:
        return
    for _ in range(draw.choice((1, 2, 12))):
        inner = onnx.GraphProto()
        inner.CopyFrom(model.graph)
        if draw.chance(0.8):
            del inner.input[:]
        names = [value.name for value in inner.output]
        condition = draw.choice([value.name for value in model.graph.input] or ["nothing"])
        node = helper.make_node("If", [condition], names)
        try:
            node.attribute.append(helper.make_attribute("then_branch", inner))
        except DecodeError:  # protobuf limits the depth of messages
            return
        if inner.ByteSize() < 10_000:
            node.attribute.append(helper.make_attribute("else_branch", inner))
        del model.graph.node[:]
        model.graph.node.append(node)


def empty_subgraph(draw: Draw, model: onnx.ModelProto) -> None:
    inner = draw.some([graph for graph in graphs(model) if isinstance(graph, onnx.GraphProto)][1:])
    if inner is not None:
        inner.ClearField(draw.choice(("node", "output", "input", "name")))


def splice(draw: Draw, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Adds the nodes of another model, and possibly their inputs, outputs and functions."""
    if len(other.graph.node) > 60:
        return
    model.graph.node.extend(other.graph.node)
    if draw.chance(0.8):
        model.graph.initializer.extend(other.graph.initializer)
        taken = {value.name for value in model.graph.input}
        model.graph.input.extend(value for value in other.graph.input if value.name not in taken)
    if draw.chance(0.5):
        model.graph.output.extend(other.graph.output)
    if draw.chance(0.8):
        model.functions.extend(other.functions)
        taken = {opset.domain for opset in model.opset_import}
        model.opset_import.extend(opset for opset in other.opset_import if opset.domain not in taken)


def train(draw: Draw, model: onnx.ModelProto) -> None:
    """Adds training_info, which hardly any program reads."""
    info = model.training_info.add()
    info.algorithm.CopyFrom(model.graph)
    info.update_binding.add(key=draw.choice(NAMES), value=draw.choice(NAMES))


def huge_version(draw: Draw, model: onnx.ModelProto) -> None:
    model.model_version = draw.choice(SIZES)


MUTATIONS = (
    opset, opset, rename_import, drop_import, add_import, ir_version, properties, clear, make_function,
    mutual_recursion, change_function, nest, empty_subgraph, train, huge_version,
)  # fmt: skip
"""The mutations; listed twice means twice as often. `splice` is missing because it needs another model."""
