"""The picture of a graph: nodes in layers, edges between them, and the nodes near one."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.inspection.graph_nodes import GraphNode, graph_nodes, neighbourhood
from bngrad.inspection.inspect import inspect
from bngrad.reports.html.graph import MOST, draw
from models import digits_resnet20

GRAPHS = {
    "none": [],
    "one": [()],
    "chain": [(), (0,), (1,), (2,)],
    "skip": [(), (0,), (1,), (2, 0)],
    "long-edge": [(), *[(i,) for i in range(20)], (0, 20)],
    "sources": [(), (0,), (1,), (), (3, 2)],
    "not-sorted": [(2,), (0,), (1,)],
    "wide": [(), *[(0,)] * 30, tuple(range(1, 31))],
}


def nodes_of(reads):
    return [GraphNode(f"n{i}", "x" * (1 + 7 * i % 40), "", sources, "") for i, sources in enumerate(reads)]


def random_graph(seed):
    generator = np.random.default_rng(seed)
    return [tuple({int(generator.integers(max(0, i - 9), i)) for _ in range(3)}) if i else () for i in range(MOST)]


def drawing(nodes):
    return draw(nodes, range(len(nodes)), title="t", kinds={}, href=lambda position: f"#nodes-{position}")


@pytest.mark.parametrize("reads", [*GRAPHS.values(), *map(random_graph, range(3))], ids=[*GRAPHS, 0, 1, 2])
def test_nodes_lie_below_what_they_read_and_beside_each_other(reads):
    picture = drawing(nodes_of(reads))
    boxes = picture.boxes
    assert [box.href for box in boxes] == [f"#nodes-{i}" for i in range(len(reads))]
    edges = [(source, i) for i, sources in enumerate(reads) for source in sources if source < i]
    assert all(boxes[source].y < boxes[i].y for source, i in edges)
    drawn = len(picture.edges) + len(picture.long_edges)
    assert drawn == len(edges)
    rows = {}
    for box in boxes:
        assert box.x >= 0
        assert box.x + box.width <= picture.width
        assert box.y + picture.box_height <= picture.height
        rows.setdefault(box.y, []).append(box)
    for row in rows.values():
        ordered = sorted(row, key=lambda box: box.x)
        assert all(a.x + a.width < b.x for a, b in pairwise(ordered))


def test_an_edge_passes_a_layer_beside_its_nodes():
    picture = drawing(nodes_of(GRAPHS["skip"]))
    (edge,) = (edge for edge in picture.edges if edge.count("M") == 3)  # two points between the ends
    box = picture.boxes[1]
    points = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)", edge)]
    at = next(x for x, y in points if box.y <= y <= box.y + picture.box_height)
    assert not box.x <= at <= box.x + box.width


def test_a_source_is_next_to_its_reader():
    boxes = drawing(nodes_of(GRAPHS["sources"])).boxes
    assert boxes[3].y == boxes[2].y


@pytest.mark.parametrize("most", [1, 3, 4, 20])
def test_the_nodes_near_one(most):
    nodes = nodes_of(GRAPHS["wide"])
    chosen = neighbourhood(nodes, 3, most)
    assert len(chosen) == most
    assert chosen == sorted(chosen)
    assert 3 in chosen
    assert neighbourhood(nodes_of(GRAPHS["chain"]), 1, 3) == [0, 1, 2]


def test_positions_are_those_of_inspect():
    model = ir.from_proto(digits_resnet20.build())
    nodes = graph_nodes(model)
    inspection = inspect(model)
    assert len(nodes) == inspection.nodes
    for norm in inspection.batch_norms:
        node = nodes[norm.position]
        assert (node.name, node.op, node.shape) == (norm.name, norm.op, norm.shape)
        assert nodes[node.reads[0]].op == "Conv"


TRACE = """File "/home/me/net.py", line 11, in forward
    h = self.block(x)
  File "/home/me/net.py", line 6, in forward
    return torch.relu(self.bn(self.conv(x)))
  File "/lib/site-packages/torch/nn/modules/conv.py", line 565, in forward
    return self._conv_forward(input, self.weight, self.bias)"""
TRACES = {
    "none": ("", ""),
    "own-code": (TRACE, "/home/me/net.py:6: return torch.relu(self.bn(self.conv(x)))"),
    "torch-only": (
        'File "/lib/torch/nn/conv.py", line 565, in forward\n    return self._conv_forward(input)',
        "/lib/torch/nn/conv.py:565: return self._conv_forward(input)",
    ),
    "nonsense": ("File no line", ""),
}


def test_a_gradient_node_has_the_line_of_its_forward_node():
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] z) { y = Relu(x) z = Mul(y, y) w = Mul(y, y) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for node, name in zip(model.graph, ["n", "n_Grad/Mul_0", "other_Grad/Mul_0"], strict=True):
        node.name = name
    model.graph[0].metadata_props["pkg.torch.onnx.stack_trace"] = TRACE
    assert [bool(node.source) for node in graph_nodes(model)] == [True, True, False]
    assert [node.outputs for node in graph_nodes(model)] == [("y",), ("z",), ("w",)]


@pytest.mark.parametrize("case", TRACES)
def test_the_line_that_a_node_was_exported_from(case):
    trace, expected = TRACES[case]
    text = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[2] x) => (float[2] y) { y = Relu(x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    for node in model.graph:
        node.metadata_props["pkg.torch.onnx.stack_trace"] = trace
    assert [node.source for node in graph_nodes(model)] == [expected]
