"""The paths of nodes in a model."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bngrad.graph.node_paths import node_paths

HEADER = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>\n'
CASES = {
    "main-graph": ("g (float[2] x) => (float[2] y) { [relu] y = Relu(x) }", ["relu"]),
    "no-name": ("g (float[2] x) => (float[2] y) { y = Relu(x) }", ["y"]),
    "branches": (
        """g (bool c, float[2] x) => (float[2] y) {
            [if] y = If (c) <then_branch = t () => (float[2] a) { [in] a = Relu(x) },
                             else_branch = e () => (float[2] a) { [in] a = Neg(x) }> }""",
        ["if", "if::else_branch::in", "if::then_branch::in"],
    ),
    "function": (
        """g (float[2] x) => (float[2] y) { [call] y = my.block(x) }
        <domain: "my", opset_import: ["" : 17]> block (x) => (y) { [in] y = Relu(x) }""",
        ["call", "my.block::in"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_path_of_each_node(case):
    text, expected = CASES[case]
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    assert sorted(node_paths(model).values()) == expected
