"""Attributes that a function's calls give, and functions that have the names of ops."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.inspection.inspect import inspect
from bngrad.passes.pipeline import rewrite
from pass_models import close, content, feeds_for, header, ops, proto, run

HEADER = header(17, "f", "com.microsoft", "tf")
CALLS = """g (float[4,2,3] x, float[2] p, float[2] m, float[2] var) => (float[4,2,3] y, float[4,2,3] z) {
    y = f.F<tm = 1>(x, p, m, var)
    z = f.F<tm = 0>(x, p, m, var) }
"""
F = '<domain: "f", opset_import: ["" : 17, "com.microsoft" : 1, "tf" : 1]> '
BATCH_NORM = "y, a, b = BatchNormalization<training_mode: int = @tm>(x, p, p, m, v)"


def rewritten(text):
    return ir.to_proto(rewrite(ir.from_proto(proto(text))).model)


def spelled_out(feeds, training):
    """A batch norm over dimension 1 in float64."""
    x, p, mean, var = (feeds[name].astype(np.float64) for name in ("x", "p", "m", "var"))
    if training:
        mean, var = x.mean((0, 2)), x.var((0, 2))
    return (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * p[:, None] + p[:, None]


RESOLVED = {
    "one-function": f"{F} F<tm>(x, p, m, v) => (y) {{ {BATCH_NORM} }}",
    "a-default": f"{F} F<tm: int = 1>(x, p, m, v) => (y) {{ {BATCH_NORM} }}",
    "a-function-of-a-function": f"""{F} F<tm>(x, p, m, v) => (y) {{ y = f.G<tm: int = @tm>(x, p, m, v) }}
        {F} G<tm>(x, p, m, v) => (y) {{ {BATCH_NORM} }}""",
    "under-another-name": f"""{F} F<tm>(x, p, m, v) => (y) {{ y = f.G<mode: int = @tm>(x, p, m, v) }}
        {F} G<mode>(x, p, m, v) => (y) {{ {BATCH_NORM.replace("@tm", "@mode")} }}""",
    "in-a-branch": f"""{F} F<tm>(x, p, m, v) => (y) {{
        c = Constant<value = bool {{1}}>()
        y = If(c) <then_branch = t () => (y1) {{ {BATCH_NORM.replace("y, a", "y1, a")} }},
            else_branch = e () => (y2) {{ y2 = Identity(x) }}> }}""",
}


@pytest.mark.parametrize("case", RESOLVED)
def test_each_call_has_its_own_attributes(case, rng):
    text = HEADER + CALLS + RESOLVED[case]
    result = rewritten(text)
    assert not [f.name for f in result.functions if f.domain == "f"]
    assert ops(ir.from_proto(result)).count("bngrad.BatchNormalizationTraining") == 1
    feeds = feeds_for(result, rng)
    for implementation in ("function", "native"):
        close(
            run(result, feeds, implementation),
            {"y": spelled_out(feeds, training=True), "z": spelled_out(feeds, training=False)},
        )


def test_a_default_that_the_calls_leave_out(rng):
    result = rewritten(HEADER + CALLS.replace("<tm = 1>", "") + RESOLVED["a-default"])
    feeds = feeds_for(result, rng)
    close(run(result, feeds), {"y": spelled_out(feeds, training=True), "z": spelled_out(feeds, training=False)})


def test_other_functions_stay():
    text = f"""{HEADER} g (float[4,2,3] x, float[2] p) => (float[4,2,3] z) {{
        y = f.F<tm = 1>(x, p, p, p)
        z = f.Leaky<slope = 0.5>(y) }}
        {RESOLVED["one-function"]}
        {F} Leaky<slope>(x) => (y) {{ y = LeakyRelu<alpha: float = @slope>(x) }}
        {F} Uncalled<tm>(x, p, m, v) => (y) {{ {BATCH_NORM} }}"""
    result = rewritten(text)
    assert [f.name for f in result.functions if f.domain == "f"] == ["Leaky"]


def test_epsilon_and_momentum_are_handed_on():
    text = f"""{HEADER} g (float[4,2,3] x, float[2] p) => (float[4,2,3] y) {{ y = f.F<e = 0.5>(x, p) }}
        {F} F<e>(x, p) => (y) {{
            y, a, b = BatchNormalization<training_mode = 1, epsilon: float = @e>(x, p, p, p, p) }}"""
    result = rewritten(text)
    (function,) = (f for f in result.functions if f.domain == "f")
    (node,) = (n for n in function.node if n.domain == "bngrad")
    assert {a.name: a.ref_attr_name for a in node.attribute}["epsilon"] == "e"


OTHER_OPS = {
    "ort": """a, b, c, d, e = com.microsoft.BatchNormInternal<training_mode: int = @k>(x, p, p, p, p)
        y = Identity(a)""",
    "tensorflow": """a, b, c, d, e, r = tf.FusedBatchNormV3<is_training: int = @k, data_format = "NCHW">
        (x, p, p, p, p)
        y = Identity(a)""",
    "lowered": "y = com.microsoft.SoftmaxGrad_13<axis: int = @k>(x, x)",
}


@pytest.mark.parametrize("case", OTHER_OPS)
def test_references_of_every_op_that_is_read_are_resolved(case):
    text = f"""{HEADER} g (float[4,2,3,3] x, float[2] p) => (float[4,2,3,3] y) {{ y = f.F<k = 1>(x, p) }}
        {F} F<k>(x, p) => (y) {{ {OTHER_OPS[case]} }}"""
    result = rewritten(text)
    assert not [f for f in result.functions if f.domain == "f"]
    assert not [n for n in result.graph.node if n.domain in ("tf", "com.microsoft", "f")]


ANEW = "z, a, b = BatchNormalization<training_mode: int = @tm>(x, p, p, m, v) y = ReduceSum(z) k = ReduceMean(z)"
"""ReduceMean is another one since opset 18."""


@pytest.mark.parametrize("opset", [15, 16, 18])
def test_a_function_in_another_opset_whose_ops_are_the_same(opset, rng):
    result = rewritten(HEADER + CALLS + RESOLVED["one-function"].replace('"" : 17', f'"" : {opset}'))
    feeds = feeds_for(result, rng)
    close(run(result, feeds), {"y": spelled_out(feeds, training=True), "z": spelled_out(feeds, training=False)})


@pytest.mark.parametrize("opset", [13, 15, 16])
def test_a_function_of_an_older_opset_takes_ops_of_ours(opset, rng):
    text = f"""{HEADER} g (float[4,2,3] x, float[2] p, float[2] m, float[2] var) => (float[4,2,3] y) {{
        y = f.F(x, p, m, var) }}
        {F.replace('"" : 17', f'"" : {opset}')} F(x, p, m, v) => (y) {{
            y, a, b, c, d = com.microsoft.BatchNormInternal(x, p, p, m, v)
            r = Sqrt(y) }}"""
    result = rewritten(text)
    feeds = feeds_for(result, rng)
    close(run(result, feeds), {"y": spelled_out(feeds, training=True)})


def test_a_function_in_another_opset_is_refused():
    text = HEADER + CALLS + RESOLVED["one-function"].replace('"" : 17', '"" : 18').replace(BATCH_NORM, ANEW)
    original = ir.from_proto(proto(text))
    before = content(original)
    with pytest.raises(ModelError) as error:
        rewrite(original)
    assert str(error.value) == (
        "the model's functions cannot be inlined: Opset mismatch when inlining function 'f::F': domain '' has "
        "version 17 in the model but version 18 in the function; export it without functions"
    )
    assert content(original) == before


def test_a_call_that_gives_what_the_op_cannot_take_is_refused():
    text = (
        HEADER
        + CALLS.replace("tm = 0", "tm = 2")
        + RESOLVED["one-function"].replace("BatchNormalization<", "com.microsoft.BatchNormInternal<")
    )
    with pytest.raises(UnsupportedNodeError, match="it has training_mode 2; expected 1"):
        rewrite(ir.from_proto(proto(text)))


def test_inspect_lists_what_each_call_is():
    report = inspect(ir.from_proto(proto(HEADER + CALLS + RESOLVED["one-function"])))
    assert [batch_norm.mode for batch_norm in report.batch_norms] == ["training", "frozen"]


# ---- functions that have the names of ops ----


def test_a_function_is_what_its_body_says(rng):
    """The name is that of a training op, but the model defines it."""
    text = f"""{HEADER} g (float[4] dy, float[4] x) => (float[4] a, float[4] b) {{
        a = com.microsoft.ReluGrad(dy, x)
        b = com.microsoft.TanhGrad(dy, x) }}
        <domain: "com.microsoft", opset_import: ["" : 17]> ReluGrad(dy, x) => (y) {{ y = Sub(dy, x) }}"""
    answer = rewrite(ir.from_proto(proto(text)))
    assert answer.lowered == {"TanhGrad": 1}
    result = ir.to_proto(answer.model)
    feeds = feeds_for(result, rng)
    dy, x = feeds["dy"], feeds["x"]
    close(run(result, feeds), {"a": dy - x, "b": dy * (1 - x * x)})


def test_a_foreign_name_is_a_function_too():
    text = f"""{HEADER} g (float[4,2] x) => (float[4,2] y) {{ y = tf.FusedBatchNormV3(x) }}
        <domain: "tf", opset_import: ["" : 17]> FusedBatchNormV3(x) => (y) {{ y = Neg(x) }}"""
    with pytest.raises(ModelError, match="the model has no batch norm in training mode"):
        rewrite(ir.from_proto(proto(text)))
