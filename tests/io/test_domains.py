"""Tests opset imports: unused imports are ignored, and ONNX's domain has two names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import ModelError
from bngrad.io.files import as_ir, load

# Some models have frozen batch norms, about which the public functions warn.
pytestmark = pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")

TRAINING = """g (float[3,2,4] X, float[3,2,4] dY, float[2] s, float[2] b, float[2] mu, float[2] va)
    => (float[3,2,4] Y, float[3,2,4] dX) {
    Z = f.F(X)
    Y, rm, rv, sm, sv = com.microsoft.BatchNormInternal<training_mode = 1>(Z, s, b, mu, va)
    [bn] dX, ds, db = com.microsoft.BatchNormalizationGrad(dY, Z, s, sm, sv) }
    <domain: "f", opset_import: ["" : 17]> F (x) => (y) { y = Neg(x) }"""
FORWARD = """g (float[3,2,4] X) => (float loss)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] mu = {0, 0}, float[2] va = {1, 1}> {
    Z = f.F(X)
    Y = BatchNormalization(Z, s, b, mu, va)
    Q = Relu(Y)
    loss = ReduceSum<keepdims = 0>(Q) }
    <domain: "f", opset_import: ["" : 17]> F (x) => (y) { y = Neg(x) }"""
COMMANDS = {"rewrite": (TRAINING, bngrad.rewrite), "differentiate": (FORWARD, bngrad.differentiate)}
UNUSED = [
    ("bngrad", 1000),
    ("bngrad", 0),
    ("com.ms.internal.nhwc", 26),
    ("com.microsoft.nchwc", 1),
    ("ai.onnx.ml", 99),
    ("ai.onnx.training", 5),
    ("mine", -1),
    ("mine", 1 << 40),
]


def parse(text, *imports, spelled=""):
    domains = ", ".join(f'"{domain}" : 1' for domain in ("f", *imports))
    text = text.replace('opset_import: ["" : 17]', f'opset_import: ["{spelled}" : 17]')
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["{spelled}" : 17, {domains}]>\n{text}')


@pytest.mark.parametrize("where", ["model", "function"])
@pytest.mark.parametrize(("domain", "version"), UNUSED)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_import_that_nothing_uses_does_not_matter(command, domain, version, where):
    text, run = COMMANDS[command]
    model = parse(text, "com.microsoft")
    plain = run(model)
    scope = model if where == "model" else model.functions[0]
    scope.opset_import.add(domain=domain, version=version)
    before = model.SerializeToString(deterministic=True)
    result = run(model)
    assert model.SerializeToString(deterministic=True) == before
    assert result.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
    bngrad.session(result)
    bngrad.session(result, "function")


def test_it_does_not_matter_in_an_onnx_ir_model_either():
    model = ir.from_proto(parse(TRAINING, "com.microsoft"))
    model.opset_imports["bngrad"] = 1000
    assert bngrad.rewrite(model).opset_imports["bngrad"] == 1
    assert model.opset_imports["bngrad"] == 1000


def test_nor_in_a_file(tmp_path):
    model = parse(TRAINING, "com.microsoft")
    model.opset_import.add(domain="bngrad", version=1000)
    onnx.save(model, tmp_path / "m.onnx")
    assert dict(load(tmp_path / "m.onnx").opset_imports) == {"": 17, "f": 1, "com.microsoft": 1}


@pytest.mark.parametrize("node", ["X", "subgraph", "function"])
@pytest.mark.parametrize("version", [0, 2, 1000])
def test_an_op_of_ours_in_a_version_that_is_not_known_is_refused(version, node):
    op = "[bn] Y, a, c, d, e = bngrad.BatchNormalizationTraining(X, p, p, p, p, axes)"
    inputs = "float[3,2] X, float[2] p, int64[1] axes"
    if node == "subgraph":
        text = f"""g (bool c, {inputs}) => (float[3,2] Z) {{
            Z = If(c) <then_branch = t () => (Y) {{ {op} }}, else_branch = e () => (W) {{ W = Identity(X) }}> }}"""
    elif node == "function":
        text = f"""g ({inputs}) => (float[3,2] Y) {{ Y = f.F(X, p, axes) }}
            <domain: "f", opset_import: ["" : 17, "bngrad" : {version}]> F (X, p, axes) => (Y) {{ {op} }}"""
    else:
        text = f"g ({inputs}) => (float[3,2] Y) {{ {op} }}"
    model = parse(text, "bngrad")
    for imported in model.opset_import:
        if imported.domain == "bngrad" and node != "function":
            imported.version = version
    for call in (bngrad.rewrite, bngrad.finalize, bngrad.differentiate):
        with pytest.raises(ModelError) as error:
            call(model, {}) if call is bngrad.finalize else call(model)
        node_text = "bngrad.BatchNormalizationTraining node 'bn' (outputs Y, a, c, d, e)"
        want = f"{node_text} has opset bngrad {version}; expected 1"
        assert str(error.value) == f"the model is not valid: {want}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_default_domain_by_its_other_name(command):
    text, run = COMMANDS[command]
    model = parse(text, "com.microsoft", spelled="ai.onnx")
    for node in [*model.graph.node, *model.functions[0].node]:
        node.domain = node.domain or "ai.onnx"
    want = run(parse(text, "com.microsoft"))
    result = run(model)
    assert [(n.domain, n.op_type) for n in result.graph.node] == [(n.domain, n.op_type) for n in want.graph.node]
    assert {o.domain: o.version for o in result.opset_import} == {o.domain: o.version for o in want.opset_import}
    bngrad.session(result, "function")


@pytest.mark.parametrize("spelled", ["", "ai.onnx"])
def test_both_names_in_one_version_are_one_import(spelled):
    model = parse(TRAINING, "com.microsoft", spelled=spelled)
    model.opset_import.add(domain="" if spelled else "ai.onnx", version=17)
    assert dict(as_ir(model).opset_imports) == {"": 17, "f": 1, "com.microsoft": 1}


def test_both_names_in_two_versions_are_refused():
    model = parse(TRAINING, "com.microsoft")
    model.opset_import.add(domain="ai.onnx", version=15)
    with pytest.raises(ModelError, match=r"it imports ai\.onnx in two versions, 15 and 17; expected one"):
        bngrad.rewrite(model)


@pytest.mark.parametrize(("domain", "name"), [("", "ai.onnx"), ("com.microsoft", "com.microsoft")])
def test_one_name_in_two_versions_is_refused(domain, name):
    model = parse(TRAINING, "com.microsoft")
    (first,) = (entry.version for entry in model.opset_import if entry.domain == domain)
    model.opset_import.add(domain=domain, version=first)
    bngrad.rewrite(model)
    model.opset_import.add(domain=domain, version=20)
    with pytest.raises(ModelError) as error:
        bngrad.rewrite(model)
    want = f"it imports {name} in two versions, {first} and 20; expected one"
    assert str(error.value) == f"the model cannot be read: {want}"


def test_a_function_in_the_default_domain_by_its_other_name():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float loss) { z = Twice(x) loss = ReduceSum<keepdims = 0>(z) }
        <domain: "ai.onnx", opset_import: ["ai.onnx" : 18]> Twice (x) => (y) { y = Add(x, x) }""")
    session = bngrad.session(bngrad.differentiate(model, wrt=["x"]))
    np.testing.assert_array_equal(session.run(["x_grad"], {"x": np.ones(2, np.float32)})[0], [2, 2])


# ---- functions in our domain ----

CALL = "g (float[2] dY, float[2] X) => (float[2] dX) { dX = com.microsoft.ReluGrad(dY, X) }"
NOT_OURS = {
    "overload": (
        "BatchNormalizationGrad",
        "v2",
        "its function BatchNormalizationGrad (overload 'v2') is in the domain bngrad, which has no such op; use ",
    ),
    "no-op": (
        "Mine",
        "",
        "its function Mine is in the domain bngrad, which has no such op; use another domain",
    ),
    "other-signature": (
        "BatchNormalizationGrad",
        "",
        "its function bngrad.BatchNormalizationGrad does not have the signature of that op; expected (dY, ",
    ),
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_functions_in_our_domain_that_are_not_ours_are_refused(case):
    name, overload, message = NOT_OURS[case]
    model = parse(CALL, "com.microsoft")
    model.ir_version = 10
    function = model.functions.add(domain="bngrad", name=name, overload=overload, input=["a"], output=["b"])
    function.opset_import.add(domain="", version=17)
    function.node.add(op_type="Identity", input=["a"], output=["b"])
    with pytest.raises(ModelError) as error:
        bngrad.rewrite(model)
    assert str(error.value).startswith(f"the model is not valid: {message}")


@pytest.mark.parametrize(("op_type", "overload"), [("Mine", ""), ("BatchNormalizationGrad", "v2")])
def test_nodes_in_our_domain_that_are_not_ours_are_refused(op_type, overload):
    model = parse(CALL, "com.microsoft", "bngrad")
    model.graph.node.add(domain="bngrad", op_type=op_type, overload=overload, name="n", input=["X"], output=["b"])
    with pytest.raises(ModelError) as error:
        bngrad.rewrite(model)
    assert f"{op_type} node 'n' (outputs b){' with the overload ' * bool(overload)}" in str(error.value)
    assert "is not an op of bngrad; expected one of BatchNormalizationGrad, " in str(error.value)
