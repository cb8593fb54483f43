"""Tests the limits of a model file: what is at a limit is taken, and what is beyond it refused in no time."""

from __future__ import annotations

import re
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.errors import ModelError
from bngrad.io.files import as_ir

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
SECONDS = 2


def model(*nodes, x=("N", 4), initializers=(), functions=()):
    """Returns a model whose loss is the sum of z, which the nodes compute of x and c."""
    nodes = [*nodes, helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0)]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=IMPORTS, ir_version=8, functions=functions)


def relu(**attributes):
    return helper.make_node("Relu", ["x"], ["z"], **attributes)


def ranks(rank):
    return model(relu(), x=[1] * rank)


def rank_of_a_reshape(rank):
    shape = onnx.numpy_helper.from_array(np.int64([-1] + [1] * (rank - 1)), "shape")
    return model(helper.make_node("Reshape", ["x", "shape"], ["z"]), initializers=[shape])


def rank_of_unsqueeze(rank):
    axes = onnx.numpy_helper.from_array(np.arange(rank - 2), "axes")
    constant = helper.make_node("Constant", [], ["axes"], value=axes)
    return model(constant, helper.make_node("Unsqueeze", ["x", "axes"], ["z"]))


def rank_of_a_weight(rank):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * rank, raw_data=bytes(4))
    return model(
        helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Relu", ["w"], ["y"]), initializers=[weight]
    )


def nested(level, name="x", output="z"):
    """Returns a node with branches within branches."""
    node = helper.make_node("Relu", [name], [f"{output}{level}" if level else output])
    for left in range(level, 0, -1):
        inner = node.output[0]
        branches = {
            key: helper.make_graph(
                [node] if key == "then_branch" else [helper.make_node("Identity", [name], [f"e{left}{output}"])],
                key,
                [],
                [
                    helper.make_tensor_value_info(
                        inner if key == "then_branch" else f"e{left}{output}", TensorProto.FLOAT, None
                    )
                ],
            )
            for key in ("then_branch", "else_branch")
        }
        node = helper.make_node("If", ["c"], [f"{output}{left - 1}" if left > 1 else output], **branches)
    return node


def branches(level):
    return model(nested(level))


def function(name, *nodes):
    return helper.make_function("f", name, ["x", "c"], ["z"], nodes, IMPORTS)


def call(name, source="x", output="z"):
    return helper.make_node(name, [source, "c"], [output], domain="f")


def branches_of_a_function(level):
    """Half of the levels are around the call, and half in the function."""
    outer = nested(level // 2)
    graph = outer
    while graph.op_type == "If":
        (graph,) = [attribute.g.node[0] for attribute in graph.attribute if attribute.name == "then_branch"]
    graph.CopyFrom(call("F", "x", graph.output[0]))
    return model(outer, functions=[function("F", nested(level - level // 2))])


def calls(depth):
    functions = [function("F0", relu())]
    functions += [function(f"F{number}", call(f"F{number - 1}")) for number in range(1, depth)]
    return model(call(f"F{depth - 1}"), functions=functions)


def inlined(nodes):
    def chain(count, make):
        return [make(f"v{i}" if i else "x", f"v{i + 1}" if i < count - 1 else "z") for i in range(count)]

    body = chain(100, lambda source, output: helper.make_node("Relu", [source], [output]))
    calls_of_it = chain(nodes // 100, lambda source, output: call("F", source, output))
    return model(*calls_of_it, functions=[function("F", *body)])


def doubling(times):
    functions = [function("F0", relu())]
    for number in range(1, times + 1):
        inner = f"F{number - 1}"
        functions.append(function(f"F{number}", call(inner, "x", "h"), call(inner, "h")))
    return model(call(f"F{times}"), functions=functions)


def attributes(count):
    node = helper.make_node("Own", ["x"], ["y"], domain="f", **{f"a{number}": 1 for number in range(count)})
    return model(relu(), node)


def names(length):
    return model(relu(name="n" * length))


def value_names(length):
    name = "v" * length
    return model(helper.make_node("Relu", ["x"], [name]), helper.make_node("Relu", [name], ["z"]))


def dimension_names(length):
    return model(relu(), x=("N" * length, 4))


LIMITS = {
    ranks: (64, 65, 100_000, "value 'x' has {} dimensions; expected at most 64"),
    rank_of_a_reshape: (
        64,
        65,
        100_000,
        "'shape' has {} elements, and is a shape or its axes; expected at most 64",
    ),
    rank_of_unsqueeze: (64, 68, 100_000, "and is a shape or its axes; expected at most 64"),
    rank_of_a_weight: (8, 65, 100_000, "value 'w' has {} dimensions; expected at most 64"),
    branches: (16, 17, 31, "it has subgraphs nested 17 deep; expected at most 16"),
    branches_of_a_function: (16, 17, 28, "it has subgraphs nested {} deep; expected at most 16"),
    calls: (60, 66, 5000, "its functions call each other 65 deep; expected at most 64"),
    inlined: (200, 100_100, 1_000_000, "nodes after inlining its functions; expected at most 100000"),
    doubling: (6, 17, 60, "nodes after inlining its functions; expected at most 100000"),
    attributes: (1000, 1001, 50_000, "Own node (outputs y) has {} attributes; expected at most 1000"),
    names: (10_000, 10_001, 900_000, "has a name of {} characters, 'nnnnnnnn"),
    value_names: (10_000, 10_001, 400_000, "has a name of {} characters, 'vvvvvvvv"),
    dimension_names: (10_000, 10_001, 900_000, "has a name of {} characters, 'NNNNNNNN"),
}
"""For each way to build a model, a number within the limit, two beyond it, and the message."""
CASES = [pytest.param(make, id=make.__name__) for make in LIMITS]


@pytest.mark.filterwarnings("ignore::bngrad.errors.BngradWarning")
@pytest.mark.parametrize("make", CASES)
def test_a_model_within_the_limit(make):
    """Every pass takes it."""
    accepted = make(LIMITS[make][0])
    assert bngrad.inspect(accepted) is not None
    bngrad.differentiate(accepted, wrt=["x"], loss="loss")


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("index", [1, 2], ids=["just beyond", "far beyond"])
def test_a_model_beyond_the_limit_is_refused_at_once(make, index):
    number, message = LIMITS[make][index], LIMITS[make][3]
    content = make(number)
    begin = time.process_time()
    with pytest.raises(ModelError, match=re.escape(message.format(number))) as error:
        as_ir(content)
    assert time.process_time() - begin < SECONDS
    assert len(str(error.value)) < 300


def test_functions_that_call_each_other():
    functions = [function("F", call("G")), function("G", call("F"))]
    with pytest.raises(ModelError, match="its functions call each other in a cycle"):
        as_ir(model(call("F"), functions=functions))
