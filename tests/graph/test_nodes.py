"""Names of nodes in messages: by the op, the name if there is one, and the outputs."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bngrad.graph.nodes import all_nodes, describe

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
NAMED = {
    "a-name": ("[c] y = Conv(x, w)", "Conv node 'c' (outputs y)"),
    "no-name": ("y = Conv(x, w)", "Conv node (outputs y)"),
    "a-domain": ("y = com.microsoft.Gelu(x)", "com.microsoft.Gelu node (outputs y)"),
    "outputs-left-out": ('y, "", z = Foo(x)', "Foo node (outputs y, z)"),
    "nothing": ('"" = Foo(x)', "Foo node"),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_node_in_messages(case):
    text, described = NAMED[case]
    graph = f"g (float[N] x, float[N] w) => (float[N] x) {{ {text} }}"
    (node,) = all_nodes(ir.from_proto(onnx.parser.parse_model(f"{HEADER} {graph}")))
    assert describe(node) == described
