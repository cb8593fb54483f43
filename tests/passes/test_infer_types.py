"""Types after ops for which onnx has no inference."""

from __future__ import annotations

import logging

import onnx.parser
import onnx_ir as ir
import pytest

from bngrad.graph.nodes import all_nodes
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass
from bngrad.passes.imports.ort import ImportOrtPass
from bngrad.passes.prepare.infer_types import CONTRADICTS, InferTypesPass

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


TYPED = {
    "loop": (
        """n = Constant <value_int = 3> ()
        v = Loop(n, c, x) <body = b (int64 i, bool go, float carried) => (bool go2, float[N, 4] next)
        { go2 = Identity(go) h = Relu(x) next = Add(h, carried) }>
        z = Neg(v)""",
        {"h": "FLOAT[N,4]", "go2": "BOOL[]", "v": "FLOATNone"},
    ),
    "both-branches": (
        """y = If(c) <then_branch = t () => (p) { h = Shape(x) p = Cast <to = 1> (h) },
        else_branch = e () => (q) { k = Shape(x) q = Cast <to = 1> (k) }> z = Add(x, y)""",
        {"h": "INT64[2]", "p": "FLOAT[2]", "k": "INT64[2]", "q": "FLOAT[2]", "y": "FLOAT[2]"},
    ),
    "data-says-the-shape": (
        """s = Shape(x) two = Constant <value = int64[1] {2}> () r = Concat <axis = 0> (s, two) e = Expand(w, r)
        z = Neg(x)""",
        {"e": "FLOAT[N,4,2]"},
    ),
    "transposed-data-of-unknown-rank": (
        """s = Shape(x) m = Cast <to = 9> (s) k = Compress(s, m) r = Reshape(x, k)
        t = Transpose <perm = [1, 0, 2]> (r) a = Constant <value_ints = [0]> ()
        q = Squeeze(t, a) n = Neg(q) u = Transpose(r) z = Neg(x)""",
        {"r": "FLOATNone", "t": "FLOAT[None,None,None]", "n": "FLOAT[unk__2,unk__3]", "u": "FLOATNone"},
    ),
    "nothing-known-of-an-op": ("u = other.Thing(x) v = Relu(u) z = Neg(x)", {"u": "NoneNone", "v": "NoneNone"}),
}


@pytest.mark.parametrize("name", TYPED)
def test_inferred(name):
    nodes, expected = TYPED[name]
    model = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 21, "other" : 1]>
            g (float[N, 4] x, bool c) => (float[N, 4] z) <float[1] w = {{1}}> {{ {nodes} }}"""
        )
    )
    is_known = "NoneNone" not in expected.values()
    assert InferTypesPass()(model).modified == is_known
    values = {value.name: value for node in model.graph.all_nodes() for value in node.outputs}
    actual = {key: f"{getattr(values[key].dtype, 'name', None)}{values[key].shape}" for key in expected}
    assert actual == expected
    assert not InferTypesPass()(model).modified


IMPORTED = {
    "ort": (
        ImportOrtPass,
        """g (float[N,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3,4,4] z) {
        y, nm, nv, sm, si = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, b, m, v)
        h = Relu(y) z = Neg(h) }""",
    ),
    "in-primitives": (
        ImportDecomposedPass,
        """g (float[N,3,4,4] x, float[1,3,1,1] s, float[1,3,1,1] b) => (float[N,3,4,4] z) {
        eps = Constant <value_float = 0.001> () a = ReduceMean <axes = [0, 2, 3]> (x) c = Sub(x, a) q = Mul(c, c)
        v = ReduceMean <axes = [0, 2, 3]> (q) e = Add(v, eps) r = Sqrt(e) n = Div(c, r) u = Mul(n, s)
        y = Add(u, b) h = Relu(y) z = Neg(h) }""",
    ),
    "in-a-function": (
        ImportOrtPass,
        """g (float[N,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3,4,4] z) {
        y = local.Norm(x, s, b, m, v) h = Relu(y) z = Neg(h) }
        <domain: "local", opset_import: ["" : 17, "com.microsoft" : 1]> Norm (x, s, b, m, v) => (y) {
        y, nm, nv, sm, si = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, b, m, v) }""",
    ),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_types_behind_an_op_that_a_pass_imported(name):
    import_pass, text = IMPORTED[name]
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "local" : 1]> {text}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    InferTypesPass()(model)
    import_pass()(model)
    assert any(node.domain == "bngrad" for node in all_nodes(model))
    (h,) = (value for node in model.graph for value in node.outputs if value.name == "h")
    h.type = h.shape = None
    InferTypesPass()(model)
    assert (h.dtype, str(h.shape)) == (ir.DataType.FLOAT, "[N,3,4,4]")


NEW = {
    "one-after-another": ("a = Relu(x) z = Neg(a)", {"a": "FLOAT[N,4]", "z": "FLOAT[N,4]"}),
    "a-constant-says-the-rank": (
        "k = Constant <value = int64[1] {1}> () z = ReduceSum <keepdims = 0> (x, k)",
        {"z": "FLOAT[N]"},
    ),
    "a-shape": ("z = Shape(x)", {"z": "INT64[2]"}),
    "an-op-that-onnx-does-not-infer": ("z = com.microsoft.Scale(x, w)", {"z": "FLOAT[N,4]"}),
}
"""Nodes, and the types that they have after an inference of only these nodes."""

OF_THE_WHOLE = {
    "values-of-a-shape": ("s = Shape(x) r = Concat <axis = 0> (s, two) z = Expand(w, r)", {"z": "FLOAT[N,4,2]"}),
    "an-unknown-dimension": ("z = NonZero(x)", {"z": "INT64[2,unk__0]"}),
    "an-input-of-a-wrong-type": ("z = Squeeze(x, w)", {}),
    "an-opset-beyond-32-bits": ("z = far.Op(x)", {}),
    "a-body": (
        """z = If(c) <then_branch = t () => (p) { p = Neg(x) }, else_branch = e () => (q) { q = Relu(x) }>""",
        {"z": "FLOAT[N,4]", "p": "FLOAT[N,4]"},
    ),
}
"""The same for nodes that need an inference of the whole model."""


@pytest.mark.parametrize("name", [*NEW, *OF_THE_WHOLE])
def test_types_of_new_nodes(name, monkeypatch):
    nodes, expected = (NEW | OF_THE_WHOLE)[name]
    far = ', "far" : 4294967296' if "far." in nodes else ""
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1{far}]>
        g (float[N, 4] x, bool c) => (z) <float[1] w = {{1}}, int64[1] two = {{2}}> {{ {nodes} }}"""
    model, calls = ir.from_proto(onnx.parser.parse_model(text)), []
    model.meta[CONTRADICTS] = False  # as after an inference without the new nodes
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda proto, **how: calls.append(proto) or infer(proto, **how)
    )
    InferTypesPass()(model)
    values = {value.name: value for node in model.graph.all_nodes() for value in node.outputs}
    assert {name: f"{values[name].dtype.name}{values[name].shape}" for name in expected} == expected
    assert bool(calls) == (name in OF_THE_WHOLE)


@pytest.mark.parametrize("before", [0, 1])
def test_a_failure_is_a_warning_where_an_earlier_inference_succeeded(before, caplog, expected_failures):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] z) { z = Relu(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for _ in range(before):
        InferTypesPass()(model)
    model.graph[0].domain = "bngrad"  # which the model does not import
    model.graph.outputs[0].shape = None
    with caplog.at_level(logging.INFO, logger="bngrad"):
        InferTypesPass()(model)
    assert [record.levelno for record in caplog.records] == [(logging.INFO, logging.WARNING)[before]]
    assert len(expected_failures) == before


def test_a_contradiction_stays():
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[2, 4] x, float[3, 5] w) => (float[2, 7] z) <float[2, 6] y> { y = Relu(x) z = Add(y, w) }"""
        )
    )
    InferTypesPass()(model)
    (y, z) = (value for node in model.graph for value in node.outputs)
    assert (str(y.shape), str(z.shape)) == ("[2,6]", "[2,7]")


STATED = {
    "another-layout": ("", "float[2, 4, 4, 3] r", None),
    "another-rank": ("", "float[2, 48] r", None),
    "what-onnx-cannot-infer": ("", "float[2, 3, 2, 2] c", "[2,3,2,2]"),
    "both": ("", "float[2, 4, 4, 3] r, float[2, 3, 2, 2] c", "[2,3,2,2]"),
    "symbols-in-another-layout": ("jax2onnx", "float[N, H, W, 3] r", None),
    "a-symbol-for-a-size": ("jax2onnx", "float[N, 3, 4, 4] r", None),
    "in-a-subgraph": ("jax2onnx", "", None),
}
"""The producer, the stated type, and the shape of the value that onnx cannot infer."""


@pytest.mark.parametrize("name", STATED)
def test_stated_shapes(name):
    producer, stated, of_unknown_op = STATED[name]
    inner = "float[2, 4, 4, 3] p" if name == "in-a-subgraph" else ""
    model = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 21, "other" : 1]>
            g (float[2, 3, 4, 4] x, bool b) => (float[A, B, C, D] y, float[E, F, G, K] z) <{stated}> {{
                r = Relu(x) c = other.Thing(r) y = Neg(c)
                z = If(b) <then_branch = t () => (float[2, 3, 4, 4] q) <{inner}> {{ p = Neg(r) q = Relu(p) }},
                    else_branch = e () => (float[2, 3, 4, 4] s) {{ s = Relu(r) }}> }}"""
        )
    )
    InferTypesPass()(model)
    shapes = {value.name: value.shape for node in model.graph.all_nodes() for value in node.outputs}
    assert (str(shapes["r"]), str(shapes["p"])) == ("[2,3,4,4]", "[2,3,4,4]")
    assert str(shapes["c"]) == str(of_unknown_op)
    if of_unknown_op is not None:
        assert str(shapes["y"]) == of_unknown_op
    assert not model.meta[CONTRADICTS]


def test_large_tables_of_integers_are_not_serialized(monkeypatch):
    table = ir.Value(name="w", const_value=ir.tensor([1] * 1000, dtype=ir.DataType.INT64))
    table.type, table.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1000])
    node = ir.node("Identity", [table])
    node.outputs[0].name = "y"
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[table], opset_imports={"": 21})
    model, seen = ir.Model(graph, ir_version=10), []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda proto, **how: seen.append(proto) or infer(proto, **how)
    )
    InferTypesPass()(model)
    assert len(seen[0].graph.initializer) == 0
    assert str(node.outputs[0].shape) == "[1000]"
    assert graph.initializers["w"] is table
    assert table.const_value is not None
    assert not graph.inputs
