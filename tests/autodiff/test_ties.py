"""Tests the gradients at limits and ties of files without a record, against docs/reference/ties.md."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ties.md"
pytestmark = pytest.mark.filterwarnings("ignore:jax2onnx does not record")
FRAMEWORKS = ("pytorch", "tensorflow", "jax", None)


def number(name, value):
    return f"{name} = Constant <value_float = {value}> ()"


def floats(name, *values):
    return f"{name} = Constant <value_floats = {list(values)}> ()"


def axes(*values):
    return f"a = Constant <value_ints = {list(values)}> ()"


NOTHING = "s = Shape (x) z = ConstantOfShape (s)"
SCATTERED = f"{NOTHING} i = ConstantOfShape <value = int64[1] {{0}}> (s) y = ScatterElements"
MODELS = {
    "`Clip`": ([-1, 1], f"{number('a', -1.0)} {number('b', 1.0)} y = Clip (x, a, b)"),
    "`Clip` from 0 to 6": ([0, 6], f"{number('a', 0.0)} {number('b', 6.0)} y = Clip (x, a, b)"),
    "`Max`, `Min`": (
        [0.5, 3],
        f"{floats('a', 0.5, 1.0)} {floats('b', 4.0, 3.0)} c = Max (x, a) y = Min (c, b)",
    ),
    "`Max(x, 0)`": ([0, 0], f"{number('a', 0.0)} y = Max (x, a)"),
    "`Min(Max(x, -1), 1)`": ([-1, 1], f"{number('a', -1.0)} {number('b', 1.0)} c = Max (x, a) y = Min (c, b)"),
    "`ReduceMax` of one axis": ([2, 2], f"{axes(1)} y = ReduceMax (x, a)"),
    "`ReduceMax` of two axes": ([2, 2], f"{axes(0, 1)} y = ReduceMax (x, a)"),
    "`GlobalMaxPool`": ([2, 2], f"{axes(1, 1, 1, 2)} b = Reshape (x, a) y = GlobalMaxPool (b)"),
    "`Elu`, alpha 2": ([0, 0], "y = Elu <alpha = 2.0> (x)"),
    "`Relu`": ([0, 0], "y = Relu (x)"),
    "`LeakyRelu`, alpha 1/4": ([0, 0], "y = LeakyRelu <alpha = 0.25> (x)"),
    "`PRelu`, slope 1/4": ([0, 0], f"{floats('a', 0.25)} y = PRelu (x, a)"),
    "`Abs`": ([0, 0], "y = Abs (x)"),
    "`ReduceL1`": ([0, 0], "y = ReduceL1 (x)"),
    "`ScatterElements`": ([1, 2], f"{SCATTERED} <axis = 1> (z, i, x)"),
    "`ScatterND`": (
        [1, 2],
        f"{NOTHING} {axes(1, 2, 2)} i = ConstantOfShape <value = int64[1] {{0}}> (a) y = ScatterND (z, i, x)",
    ),
    "`ScatterElements`, largest": ([2, 2], f'{SCATTERED} <axis = 1, reduction = "max"> (z, i, x)'),
    "`Unique`": ([2, 2], "y = Unique (x)"),
}
"""The point, and the nodes from x to y; both elements are at a limit or tie."""


def rows():
    """The table of nodes of the page: the numbers of each framework by the node."""
    table = PAGE.read_text().split("## By node")[1]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)
    ]
    return {
        node: [[float(Fraction(part)) for part in cell.split(", ")] for cell in numbers]
        for node, _, *numbers in cells[2:]
    }


def gradient(nodes, x, framework, *, producer="", producer_version="", record=None, name="", outputs=""):
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[1, 2] x) => (float loss) {{ {nodes} '
        "loss = ReduceSum <keepdims = 0> (y) }"
    )
    model.producer_name, model.producer_version = producer, producer_version
    if framework:
        onnx.helper.set_model_props(model, {"bngrad.framework": framework})
    for number, node in enumerate(model.graph.node):
        if node.op_type in ("Clip", "Max", "Min", "ReduceMax", "ReduceMin"):
            onnx.helper.set_metadata_props(node, {"pkg.torch.onnx.fx_node": record} if record else {})
            node.name = name and f"{name}_{number}{outputs}"
    graph = bngrad.differentiate(model, wrt=["x"])
    return bngrad.session(graph).run(["x_grad"], {"x": np.array([x], np.float32)})[0][0].tolist()


def test_every_row_of_the_page_is_tried():
    assert rows().keys() == MODELS.keys()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("node", MODELS)
def test_nodes_without_a_record(node, framework):
    x, nodes = MODELS[node]
    expected = rows()[node][FRAMEWORKS.index(framework)]
    assert gradient(nodes, x, framework) == expected * (2 // len(expected))


def call(op, *arguments):
    arguments = ", ".join(("%x", *arguments))
    return f"%y : [num_users=1] = call_function[target=torch.ops.aten.{op}](args = ({arguments}), kwargs = {{}})"


NUMBERS = ("%scalar_tensor_default", "%scalar_tensor_default_1")
TENSORS = ("%p_low", "%high")
CLAMP, MAX_MIN = (MODELS[node] for node in ("`Clip`", "`Min(Max(x, -1), 1)`"))
LARGEST = MODELS["`ReduceMax` of one axis"]
NOW, BEFORE = (
    {"producer": "pytorch", "producer_version": "2.14.1+cpu"},
    {"producer": "pytorch", "producer_version": "2.13"},
)
RECORDED = {
    "hardtanh": (CLAMP, {"record": call("hardtanh.default", "-1", "1"), **NOW}, [0, 0]),
    "hardtanh, before": (CLAMP, {"record": call("hardtanh.default", "-1", "1"), **BEFORE}, [0, 0]),
    "relu6, before": (MODELS["`Clip` from 0 to 6"], {"record": call("relu6.default"), **BEFORE}, [0, 0]),
    "clamp by numbers": (CLAMP, {"record": call("clamp.Tensor", *NUMBERS), **NOW}, [0, 0]),
    "clamp by numbers, before": (CLAMP, {"record": call("clamp.Tensor", *NUMBERS), **BEFORE}, [1, 1]),
    "clamp by numbers as Max and Min": (MAX_MIN, {"record": call("clamp.Tensor", *NUMBERS), **NOW}, [0, 0]),
    "clamp as Max and Min, before": (MAX_MIN, {"record": call("clamp.Tensor", *NUMBERS), **BEFORE}, [1, 1]),
    "clamp by tensors": (CLAMP, {"record": call("clamp.Tensor", *TENSORS), **NOW}, [0.5, 0.5]),
    "clamp by tensors as Max and Min": (MAX_MIN, {"record": call("clamp.Tensor", *TENSORS), **NOW}, [0.5, 0.5]),
    "maximum, before": (MAX_MIN, {"record": call("maximum.default", "%z"), **BEFORE}, [0.5, 0.5]),
    "clamp of another producer": (CLAMP, {"record": call("clamp.default", "-1", "1"), "producer": "x"}, [0, 0]),
    "no record, before": (CLAMP, BEFORE, [1, 1]),
    "no record, from 0 to 6, before": (MODELS["`Clip` from 0 to 6"], BEFORE, [0, 0]),
    "the name alone, before": (CLAMP, {"name": "node_hardtanh", **BEFORE}, [0, 0]),
    "the name of a clamp": (MAX_MIN, {"name": "node_Max", **NOW}, [0, 0]),
    "the name of a maximum": (MAX_MIN, {"name": "node_maximum", **NOW}, [0.5, 0.5]),
    "max(dim)": (LARGEST, {"record": call("max.dim", "1"), **NOW}, [1, 0]),
    "amax": (LARGEST, {"record": call("amax.default", "[1]"), **NOW}, [0.5, 0.5]),
    "max of all": (LARGEST, {"record": call("max.default"), **NOW}, [0.5, 0.5]),
    "max(dim) by its name": (LARGEST, {"outputs": "__0", "name": "node_max", **NOW}, [1, 0]),
    "max of all by its name": (LARGEST, {"name": "node_max", **NOW}, [0.5, 0.5]),
}
"""The model, what a file records of its nodes, and the gradient."""


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_ops_of_pytorch(case):
    (x, nodes), record, expected = RECORDED[case]
    assert gradient(nodes, x, None, **record) == expected


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, 1)])
@pytest.mark.parametrize("x", [0, 1, 3])
def test_limits_that_are_trained(x, low, high):
    """PyTorch 2.14: where the limits are equal, x gets the gradient there."""
    nodes = " ".join(
        [
            f"{number('one', 1.0)} a = Mul (x, one)",
            f"{number('l', float(low))} {number('h', float(high))}",
            "z = Sub (x, x) lo = Add (z, l) hi = Add (z, h)",
            "c = Max (a, lo) y = Min (c, hi)",
        ]
    )
    record = call("clamp.Tensor", *TENSORS)
    got = gradient(nodes, [x, x], None, record=record, **NOW)
    share = 0.0 if low > high or not low <= x <= high else 1.0 if low == high or low < x < high else 0.5
    assert got == [share] * 2
