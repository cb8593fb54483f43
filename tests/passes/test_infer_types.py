"""Types behind ops that onnx infers nothing for."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from bngrad.passes.infer_types import InferTypesPass

NODES = {
    "gelu": "y = com.microsoft.Gelu(x)",
    "fast-gelu": "y = com.microsoft.FastGelu(x)",
    "fast-gelu-bias": "y = com.microsoft.FastGelu(x, s)",
    "quick-gelu": "y = com.microsoft.QuickGelu <alpha = 0.5> (x)",
    "bias-gelu": "y = com.microsoft.BiasGelu(x, s)",
    "group-norm": "y = GroupNormalization <num_groups = 2> (x, s, s)",
    "one-after-another": "a = com.microsoft.Gelu(x) b = Relu(a) d = com.microsoft.Gelu(b) y = Neg(d)",
    "in-a-branch": """y = If(c) <then_branch = t () => (float[N, 4] p) { h = com.microsoft.Gelu(x) p = Neg(h) },
        else_branch = e () => (float[N, 4] q) { q = Neg(x) }>""",
}


@pytest.mark.parametrize("name", NODES)
def test_types(name):
    model = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
            g (float[N, 4] x, float[4] s, bool c) => (float[N, 4] z) {{ {NODES[name]} z = Neg(y) }}"""
        )
    )
    before = [(node.domain, node.op_type, dict(node.attributes)) for node in model.graph.all_nodes()]
    InferTypesPass()(model)
    assert [(node.domain, node.op_type, dict(node.attributes)) for node in model.graph.all_nodes()] == before
    values = [value for node in model.graph.all_nodes() for value in node.outputs]
    assert {(value.dtype, str(value.shape)) for value in values} == {(ir.DataType.FLOAT, "[N,4]")}
