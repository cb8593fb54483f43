"""The changes and choices of `prepare_forward`; every result is built and run by the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.oracle import prepare_forward
from oracle_cases import BATCH_NORM, CNN, CNN_WEIGHTS, FRESH, TO_LOSS, cnn_feeds, gradients, model, parse, sum_of

ONES = np.ones((4, 2), np.float32)
TWO = np.array([2, 3], np.float32)


INFERENCE = "Dropout in inference mode written as Identity (1x)"
RATIO = "r = Constant <value_float = 0.25> ()\n"

# Nodes that ORT's builder fails on, or gets wrong, as they stand; x is ones, w = [2, 3].
RESPELLED = {
    "Sum of one": (sum_of("b = Sum (a)"), [4, 4], "Sum written as Identity (1x)"),
    "Sum of two": (sum_of("b = Sum (a, x)"), [4, 4], "Sum written as Add (1x)"),
    "Sum of four, broadcast": (sum_of("b = Sum (a, w, a, x)"), [12, 12], "Sum written as Add (1x)"),
    "Transpose": (sum_of("b = Transpose (a)"), [4, 4], "Transpose given its permutation (1x)"),
    "Dropout": (sum_of("b = Dropout (a)"), [4, 4], INFERENCE),
    "Dropout with a mask": (sum_of("b, mask = Dropout (a)"), [4, 4], INFERENCE),
    "Dropout with a ratio": (RATIO + sum_of("b = Dropout (a, r)"), [4, 4], INFERENCE),
    "Dropout switched off": (
        RATIO + sum_of("f = Constant <value = bool {0}> ()\n b = Dropout (a, r, f)"),
        [4, 4],
        INFERENCE,
    ),
    "Dropout that drops nothing": (
        sum_of("r = Constant <value_float = 0.0> ()\n t = Constant <value = bool {1}> ()\n b = Dropout (a, r, t)"),
        [4, 4],
        "Dropout given all of its outputs (1x)",
    ),
}


@pytest.mark.parametrize(("body", "expected", "note"), RESPELLED.values(), ids=RESPELLED.keys())
def test_respelled(oracle, body, expected, note):
    forward = model(body)
    before = forward.SerializeToString()
    prepared = prepare_forward(forward)
    assert forward.SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(prepared.model), full_check=True)
    assert prepared.notes == [note]
    assert gradients(oracle, prepared, x=ONES) == {"w": expected}


def test_nothing_to_do(oracle):
    prepared = prepare_forward(parse(CNN))
    assert (prepared.loss, prepared.wrt, prepared.values, prepared.notes) == ("loss", CNN_WEIGHTS, {}, [])
    graph, original = prepared.model.graph, parse(CNN).graph
    assert [node.op_type for node in graph] == [node.op_type for node in original.node]
    assert [value.name for value in graph.inputs] == [value.name for value in original.input]
    assert [value.name for value in graph.outputs] == ["loss", "new_mean", "new_var"]
    assert list(gradients(oracle, prepared, **cnn_feeds())) == CNN_WEIGHTS


def test_names_survive():
    forward = model(
        "a = Mul (x, w)\n b = Sum (a, x, a)\n loss = ReduceSum <keepdims = 0> (b)",
        initializers="float[2] w = {1.0, 1.0}",
    )
    for node, name in zip(forward.graph.node, ("first", "second", "third"), strict=True):
        node.name = name
    prepared = prepare_forward(forward).model.graph
    assert [node.name for node in prepared] == ["first", "second_Add", "second_Add_1", "third"]
    assert [node.outputs[0].name for node in prepared] == ["a", "second_add", "b", "loss"]


def test_softmax_cross_entropy_gets_log_prob(oracle):
    forward = model("z = Mul (x, w)\n loss = SoftmaxCrossEntropyLoss (z, labels)", "float[4,2] x, int64[4] labels")
    prepared = prepare_forward(forward)
    assert [value.name for value in prepared.model.graph[1].outputs] == ["loss", "loss/log_prob"]
    gradient = gradients(oracle, prepared, x=ONES, labels=np.array([0, 1, 1, 1]))["w"]
    p = np.exp(TWO) / np.exp(TWO).sum()
    np.testing.assert_allclose(gradient, p - [0.25, 0.75], rtol=1e-5)


def test_fresh_batch_norm(oracle):
    """Scale, bias and variance are equal; ORT would merge them, and write the new variance over the bias."""
    forward = model(BATCH_NORM.format(TO_LOSS), "float[4,2] x, float[4,2] t", initializers=FRESH)
    prepared = prepare_forward(forward)
    assert prepared.wrt == ["s", "b"]
    assert {name: value.tolist() for name, value in prepared.values.items()} == {
        "s": [1, 1], "b": [1, 1], "rm": [0, 0], "rv": [1, 1]
    }  # fmt: skip
    assert all(value.flags.writeable for value in prepared.values.values())
    rng = np.random.default_rng(0)
    x, t = (rng.standard_normal((4, 2)).astype(np.float32) for _ in range(2))
    results = gradients(oracle, prepared, x=x, t=t)
    np.testing.assert_allclose(results["b"], t.sum(0), rtol=1e-5)
    np.testing.assert_allclose(results["s"], (t * (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)).sum(0), rtol=1e-4)
    only = prepare_forward(forward, wrt=["x"])
    assert (only.wrt, list(only.values)) == (["x"], ["rm", "rv"])


@pytest.mark.parametrize("outputs", [["y", "", ""], ["y", "nm", ""], ["y", "", "nv"], ["y", "nm"], ["y"]])
def test_batch_norm_gets_its_outputs(oracle, outputs):
    forward = model(BATCH_NORM.format(TO_LOSS), "float[4,2] x, float[4,2] t", initializers=FRESH)
    del forward.graph.node[0].output[:]
    forward.graph.node[0].output.extend(outputs)
    prepared = prepare_forward(forward)
    defaults = ["y", "rm_new", "rv_new"]
    expected = [old or new for old, new in zip([*outputs, "", ""], defaults, strict=False)]
    assert [value.name for value in prepared.model.graph[0].outputs] == expected
    assert gradients(oracle, prepared, x=ONES, t=ONES)["b"] == [4, 4]


SHARED = {
    "initializers": ("", "rm", "rv"),
    "Identity": ("rm2 = Identity (rm)\n rv2 = Identity (rv)\n", "rm2", "rv2"),
    "Constant": (
        "rm2 = Constant <value_floats = [0.0, 0.0]> ()\n rv2 = Constant <value_floats = [1.0, 1.0]> ()\n",
        "rm2",
        "rv2",
    ),
}


@pytest.mark.parametrize(("nodes", "mean", "var"), SHARED.values(), ids=SHARED.keys())
def test_shared_running_statistics_are_separated(oracle, nodes, mean, var):
    body = f"""{nodes} y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, rm, rv)
        z, nm2, nv2 = BatchNormalization <training_mode = 1> (y, s, b, {mean}, {var})
        {TO_LOSS.replace("(p)", "(z)")}"""
    forward = model(body, outputs="float loss, float[2] nm, float[2] nm2, float[2] nv2", initializers=FRESH)
    prepared = prepare_forward(forward)
    batch_norms = [node for node in prepared.model.graph if node.op_type == "BatchNormalization"]
    statistics = [value.name for node in batch_norms for value in node.inputs[3:]]
    assert len(set(statistics)) == 4
    assert set(statistics) <= set(prepared.values)
    x = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    results = oracle.run(training, {**prepared.values, "x": x})
    np.testing.assert_allclose(results["nm"], 0.1 * x.mean(0), atol=1e-6)
    np.testing.assert_allclose(results["nm2"], [0.1, 0.1], atol=1e-6)
    np.testing.assert_allclose(results["nv2"], [1.0, 1.0], atol=1e-4)


NO_MEAN = FRESH.replace("float[2] rm = {0.0, 0.0},", "")


def test_a_running_mean_that_is_read_elsewhere_is_separated(oracle):
    body = BATCH_NORM.format("q = Add (p, rm)\n loss = ReduceSum <keepdims = 0> (q)")
    forward = model(body, "float[4,2] x, float[4,2] t, float[2] rm", initializers=NO_MEAN)
    prepared = prepare_forward(forward)
    names = [value.name for value in prepared.model.graph.inputs if value.name not in prepared.values]
    assert names == ["x", "t", "rm", "y/running_mean"]
    results = gradients(oracle, prepared, x=ONES, t=ONES, rm=TWO, **{"y/running_mean": TWO})
    assert results["b"] == [4, 4]


def test_a_running_mean_that_is_an_output_stays(oracle):
    forward = model(
        BATCH_NORM.format(TO_LOSS), "float[4,2] x, float[4,2] t, float[2] rm", "float loss, float[2] rm", NO_MEAN
    )
    prepared = prepare_forward(forward)
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    results = oracle.run(training, {**prepared.values, "x": ONES, "t": ONES, "rm": TWO}, ["rm", "nm"])
    assert results["rm"].tolist() == [2, 3]
    np.testing.assert_allclose(results["nm"], 0.9 * TWO + 0.1, rtol=1e-6)


@pytest.mark.parametrize("opset", [22, 23, 24])
def test_new_opsets_are_converted(oracle, opset):
    prepared = prepare_forward(model(sum_of("b = Relu (a)"), opset=opset, ir=10))
    assert prepared.notes == [f"converted from opset {opset} to 21"]
    assert prepared.model.opset_imports == {"": 21}
    assert gradients(oracle, prepared, x=ONES) == {"w": [4, 4]}


def test_new_ir_version(oracle):
    prepared = prepare_forward(model(sum_of("b = Relu (a)"), ir=12))
    assert prepared.notes == ["IR version 12 stated as 10"]
    assert gradients(oracle, prepared, x=ONES) == {"w": [4, 4]}


def test_functions_are_inlined(oracle):
    forward = parse("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        m (float[4,2] x) => (float loss) <float[2] w = {2.0, 3.0}> {
            a = local.twice (x, w)
            loss = ReduceSum <keepdims = 0> (a)
        }
        <domain: "local", opset_import: ["" : 17]> twice (a, b) => (c) { d = Mul (a, b)
            c = Sum (d, d) }""")
    prepared = prepare_forward(forward)
    assert prepared.notes == ["Sum written as Add (1x)"]
    assert gradients(oracle, prepared, x=ONES) == {"w": [8, 8]}


@pytest.mark.parametrize(("batch", "other"), [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("stated", [True, False])
def test_matmul_of_batches_with_different_names(oracle, stated, batch, other):
    """From a stated shape of the output, ORT's builder takes the two for equal."""
    forward = parse(
        "m (float[B,3,4] a, float[D,4,5] b) => (float loss) "
        "{ y = MatMul (a, b) loss = ReduceSum <keepdims = 0> (y) }"
    )
    if stated:
        forward = onnx.shape_inference.infer_shapes(forward)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((batch, 3, 4), (other, 4, 5)))
    results = gradients(oracle, prepare_forward(forward, wrt=["a", "b"]), a=a, b=b)
    count = max(batch, other)
    want_a = np.broadcast_to(b.sum(2)[:, None], (count, 3, 4)).reshape(-1, batch, 3, 4).sum(0)
    want_b = np.broadcast_to(a.sum(1)[:, :, None], (count, 4, 5)).reshape(-1, other, 4, 5).sum(0)
    np.testing.assert_allclose(results["a"], want_a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["b"], want_b, rtol=1e-4, atol=1e-5)


def test_loss_that_is_no_output_becomes_one(oracle):
    prepared = prepare_forward(model(sum_of("b = Relu (a)"), outputs="float[4,2] b"), "loss")
    assert [value.name for value in prepared.model.graph.outputs] == ["b", "loss"]
    assert gradients(oracle, prepared, x=ONES) == {"w": [4, 4]}


# Which names are differentiated by when none are given: (inputs, initializers, body, names)
W = "float[2] w = {1.0, 2.0}"
V = "float[2] v = {1.0, 2.0}"
DEFAULT = {
    "initializers": ("float[4,2] x", W, "a = Mul (x, w)", ["w"]),
    "an initializer that is an input": ("float[4,2] x, float[2] w", W, "a = Mul (x, w)", ["w"]),
    "an input where weights stand": ("float[4,3] x, float[3,2] w", "", "a = MatMul (x, w)", ["w"]),
    "inputs first": ("float[4,3] x, float[3,2] w", V, "b = MatMul (x, w)\n a = Add (b, v)", ["w", "v"]),
    "not one of symbolic shape": (
        "float[4,3] x, float[3,M] w, float[3,2] v",
        "",
        "b = MatMul (x, v)\n d = MatMul (x, w)\n c = ReduceSum <keepdims = 0> (d)\n a = Add (b, c)",
        ["v"],
    ),
    "not data": ("float[4,2] x, float[4,2] u", W, "b = Mul (x, w)\n a = Mul (b, u)", ["w"]),
    "not integers": (
        "float[4,2] x",
        f"int64[2] i = {{0, 1}}, {W}",
        "b = Gather <axis = 1> (x, i)\n a = Mul (b, w)",
        ["w"],
    ),
    "not limits": ("float[4,2] x", f"float l = {{0.0}}, {W}", "b = Mul (x, w)\n a = Clip (b, l)", ["w"]),
    "not what the loss ignores": ("float[4,2] x", f"{W}, {V}", "a = Mul (x, w)\n b = Neg (v)", ["w"]),
}


@pytest.mark.parametrize(("inputs", "initializers", "body", "names"), DEFAULT.values(), ids=DEFAULT.keys())
def test_default_names(oracle, inputs, initializers, body, names):
    forward = model(f"{body}\n loss = ReduceSum <keepdims = 0> (a)", inputs, initializers=initializers)
    prepared = prepare_forward(forward)
    assert prepared.wrt == prepare_forward(forward, wrt=[]).wrt == names
    assert oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt)


@pytest.mark.parametrize(
    ("wrt", "expected"), [(["x"], ["x"]), (["x", "w"], ["x", "w"]), (["w", "x", "w"], ["w", "x"]), (["c"], ["c"])]
)
def test_names_that_were_given(oracle, wrt, expected):
    forward = model("c = Constant <value_floats = [5.0, 6.0]> ()\n d = Mul (x, c)\n" + sum_of("b = Add (a, d)"))
    prepared = prepare_forward(forward, wrt=wrt)
    assert prepared.wrt == expected
    assert list(gradients(oracle, prepared, x=ONES)) == expected
    assert ("c" in prepared.values) == ("c" in expected)


@pytest.mark.parametrize(
    ("name", "batch_norms"),
    [
        ("shufflenet", 49),
        pytest.param("densenet121", 121, marks=pytest.mark.long),
        pytest.param("inception_v2", 69, marks=pytest.mark.long),
        pytest.param("resnet50", 53, marks=pytest.mark.long),
    ],
)
def test_real_topologies(oracle, name, batch_norms):
    light = pytest.importorskip("models.light")
    prepared = prepare_forward(light.prepare(name))
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    operators = [node.op_type for node in training.graph]
    assert operators.count("BatchNormalizationGrad") == operators.count("BatchNormInternal") == batch_norms
    data = {"labels": np.array([1, 2])}
    data[training.graph.inputs[0].name] = (
        np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype(np.float32)
    )
    results = oracle.run(training, {**prepared.values, **data})
    assert set(results) >= {prepared.loss, *(f"{weight}_grad" for weight in prepared.wrt)}
    assert all(np.isfinite(value).all() for value in results.values())
