"""Hard cases: the recognition neither fails, nor changes a number that the primitives define."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from spelled import (
    BACKWARD,
    CONSTANTS,
    FORWARD,
    HEADER,
    graph,
    kinds,
    random_feeds,
    recognized,
    require_same_numbers,
)

import bngrad
from bngrad.io.files import to_proto
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.prepare.infer_types import InferTypesPass

FORM = FORWARD["centered"]
DATA, VECTOR = "double[4,3,5,5] ", "double[1,3,1,1] "
WITHOUT_EPSILON = FORM.replace("ve = Add (v, eps)", "ve = Identity (v)")
ONE = "one = Constant <value = double {1.0}> ()"

DEAD_CHANNELS = {
    "inv_std that is 0 where the variance is": (
        FORM + "q = Equal (v, zero) z = Where (q, zero, r)",
        f"{DATA}y, {VECTOR}z",
        1,
    ),
    "inv_std where the variance is positive": (
        FORM + "q = Greater (v, zero) z = Where (q, r, zero)",
        f"{DATA}y, {VECTOR}z",
        1,
    ),
    "a root that is never 0": (
        FORM.replace("Reciprocal (root)", "Reciprocal (safe)").replace(
            "r = ", "q = Equal (v, zero) safe = Where (q, ve, root) r = "
        ),
        f"{DATA}y, {VECTOR}r",
        1,
    ),
    "no epsilon, and a root that is never 0": (
        WITHOUT_EPSILON.replace("Reciprocal (root)", "Reciprocal (safe)").replace(
            "r = ", f"{ONE} q = Equal (v, zero) safe = Where (q, one, root) r = "
        ),
        f"{DATA}y",
        0,
    ),
    "no epsilon, and a product that is 0": (
        WITHOUT_EPSILON.replace(
            "xhat = Mul (c, r)", "cr = Mul (c, r) q = Equal (c, zero) xhat = Where (q, zero, cr)"
        ),
        f"{DATA}y",
        1,
    ),
    "a mask of the variance behind Y": (FORM + "q = Equal (v, zero) z = Where (q, zero, y)", f"{DATA}z", 1),
}


@pytest.mark.parametrize("case", DEAD_CHANNELS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_channels_of_equal_elements(case):
    """Where the variance is 0, what the graph writes for that is kept."""
    body, outputs, forward = DEAD_CHANNELS[case]
    proto, model, candidates = recognized(graph(body, outputs=outputs))
    assert kinds(candidates) == ({"forward": forward} if forward else {})
    EmbedFunctionsPass(functions=True)(model)
    feeds = random_feeds(proto)
    feeds["x"][:, 1] = 2.0
    want = ReferenceEvaluator(proto).run(None, feeds)
    got = ReferenceEvaluator(to_proto(model)).run(None, feeds)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-7, atol=1e-9)


def test_statistics_are_proven():
    """In the form of the mean, 1 is rounding next to 1000001; the proof detects it."""
    body = (
        FORM
        + """
        large = Constant <value = double {1000001.0}> () less = Constant <value = double {1000000.0}> ()
        up = Add (m, large) z = Sub (up, less)"""
    )
    proto, model, candidates = recognized(graph(body, outputs=f"{DATA}y, {VECTOR}z"))
    assert kinds(candidates) == {"forward": 1}
    require_same_numbers(proto, model)


CONSTANT_POWERS = {
    "an exponent that is NaN": "nan = Div (zero, zero) z = Pow (y, nan)",
    "a variance to the power of infinity": "inf = Reciprocal (zero) p = Pow (v, inf) z = Div (y, p)",
    "a power beyond float64": "p = Pow (large, three) z = Mul (y, p)",
    "a reciprocal beyond float64": "p = Reciprocal (tiny) z = Mul (y, p)",
    "a product below float64": "p = Mul (small, small) s = Add (v, p) z = Div (y, s)",
}


@pytest.mark.parametrize("case", CONSTANT_POWERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_constants_that_are_no_numbers(case):
    body = CONSTANT_POWERS[case]
    constants = """
        large = Constant <value = double {1e200}> () small = Constant <value = double {1e-200}> ()
        tiny = Constant <value = double {1e-320}> () three = Constant <value = double {3.0}> ()"""
    proto, model, candidates = recognized(graph(FORM + constants + body, outputs=f"{DATA}y, {DATA}z"))
    assert kinds(candidates) == {"forward": 1}
    require_same_numbers(proto, model)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_exponents_in_initializers(value):
    proto = onnx.parser.parse_model(
        graph(FORM + "z = Pow (y, power)", outputs=f"{DATA}z", inputs=", double[1] power")
    )
    del proto.graph.input[-1]
    proto.graph.initializer.append(onnx.helper.make_tensor("power", onnx.TensorProto.DOUBLE, [1], [float(value)]))
    model = ir.from_proto(proto)
    InferTypesPass()(model)
    ImportDecomposedPass()(model)
    assert kinds(candidates_of(model)) == {"forward": 1}


@pytest.mark.parametrize("shape", ["0,3,5,5", "4,0,5,5", "4,3,0,5"])
@pytest.mark.parametrize("form", FORWARD)
def test_data_without_elements_stays(form, shape):
    parameter = f"1,{shape.split(',')[1]},1,1"
    text = graph(FORWARD[form] + BACKWARD["torch"], shape=shape, parameter=parameter, count=1)
    assert kinds(recognized(text)[2]) == {}


def test_more_channels_than_a_model_can_hold():
    """Without scale and bias, the op needs a vector of ones: it is left to the graph, whatever a file declares."""
    text = graph(FORM.split("sx =")[0], shape=f"4,{2**40},5,5", outputs="double[4,C,5,5] xhat")
    _, _, candidates = recognized(text)
    (candidate,) = candidates
    assert not candidate.taken
    assert f"would have {2**40} elements" in str(candidate)


def test_more_data_than_a_proof_can_draw():
    (candidate,) = recognized(graph(FORM, shape=f"{2**40},3,5,5"))[2]
    assert not candidate.taken
    assert f"has {2**40 * 25} elements" in candidate.reason


MALFORMED = {
    "a product of one factor": "z = Mul (y)",
    "a product of three": "z = Mul (y, y, y)",
    "a sum of one term": "z = Add (y)",
    "a power without exponent": "z = Pow (y)",
    "a matrix product of one": "z = MatMul (y)",
    "an axis that is added twice": "twice = Constant <value_ints = [0, 0]> () z = Unsqueeze (y, twice)",
    "an axis that a scalar lacks": "first = Constant <value_ints = [0]> () z = Squeeze (eps, first)",
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.usefixtures("expected_failures")
def test_malformed_nodes_are_left(case):
    model = ir.from_proto(onnx.parser.parse_model(graph(FORM + MALFORMED[case], outputs=f"{DATA}y, double z")))
    InferTypesPass()(model)
    ImportDecomposedPass()(model)
    assert "z" in {value.name for node in model.graph for value in node.outputs if node.domain == ""}


SECOND = """
    m2 = ReduceMean <keepdims = 1> (w, axes) c2 = Sub (w, m2) cc2 = Mul (c2, c2)
    v2 = ReduceMean <keepdims = 1> (cc2, axes) ve2 = Add (v2, eps) root2 = Sqrt (ve2) r2 = Reciprocal (root2)
    xhat2 = Mul (c2, r2)"""

CYCLES = {
    "the means": "scale = Exp (m2) scale2 = Exp (m)",
    "the variances": "scale = Exp (v2) scale2 = Exp (v)",
    "what is computed of them": """
        n = Neg (r2) scale = Exp (n) e = Exp (xhat) scale2 = ReduceMean <keepdims = 1> (e, axes)""",
    "a branch": f"""scale = If (flag) <then_branch = t () => ({VECTOR}a) {{ a = Mul (bias, m) }},
        else_branch = f () => ({VECTOR}b) {{ b = Identity (bias) }}> scale2 = Exp (bias)""",
}


@pytest.mark.parametrize("case", CYCLES)
def test_scales_of_the_statistics_of_each_other(case):
    """In primitives nothing depends on itself; the mean that an op gives depends on the op's scale."""
    head, tail = FORM.split("sx = ")
    text = f"""{HEADER}g ({DATA}x, {DATA}w, {VECTOR}bias, bool flag) => ({DATA}y, {DATA}z) {{
        axes = Constant <value_ints = [0, 2, 3]> () {CONSTANTS} {head} {SECOND} {CYCLES[case]}
        sx = {tail} sx2 = Mul (xhat2, scale2) z = Add (sx2, bias) }}"""
    proto, model, candidates = recognized(text)
    assert kinds(candidates)["forward"] >= 2
    require_same_numbers(proto, model)


def test_outputs_keep_what_is_said_of_them():
    proto = onnx.parser.parse_model(graph(FORM + BACKWARD["torch"]))
    for value in proto.graph.output:
        value.doc_string = f"about {value.name}"
        value.metadata_props.add(key="key", value=value.name)
    model = ir.from_proto(proto)
    InferTypesPass()(model)
    ImportDecomposedPass()(model)
    for value in to_proto(model).graph.output:
        assert value.doc_string == f"about {value.name}"
        assert [(entry.key, entry.value) for entry in value.metadata_props] == [("key", value.name)]


@pytest.mark.parametrize(("case", "taken"), [("a root that is never 0", 0), ("none", 1)])
def test_gradients_of_channels_of_equal_elements(case, taken):
    """A choice by the variance whose results are equal where it is 0 may have another gradient there."""
    body = DEAD_CHANNELS[case][0] if case in DEAD_CHANNELS else FORM
    proto = onnx.parser.parse_model(
        graph(f"{body} l = Mul (y, dy) loss = ReduceSum <keepdims = 0> (l)", outputs="double loss")
    )
    result = bngrad.differentiate(proto, loss="loss", wrt=["x"], functions=True)
    assert sum(node.op_type == "BatchNormalizationGrad" for node in result.graph.node) == taken
    feeds = random_feeds(proto)
    feeds["x"][:, 1] = 2.0
    (_, got) = ReferenceEvaluator(result).run(["loss", "x_grad"], feeds)
    root = np.where(case == "none", np.sqrt(0.001), 0.001)  # ve, which the graph divides by there
    centered = feeds["dy"][:, 1] - feeds["dy"][:, 1].mean()
    np.testing.assert_allclose(got[:, 1], centered / root * feeds["scale"][0, 1, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("statistic", ["m", "v", "ve", "r", "xhat"])
def test_losses_may_read_statistics(statistic):
    body = f"""{FORM} l = Mul (y, dy) first = ReduceSum <keepdims = 0> (l)
        e = Exp ({statistic}) second = ReduceSum <keepdims = 0> (e) loss = Add (first, second)"""
    proto = onnx.parser.parse_model(graph(body, outputs="double loss"))
    result = bngrad.differentiate(proto, loss="loss", wrt=["x"], functions=True)
    assert "BatchNormalizationGrad" in {node.op_type for node in result.graph.node}
    feeds = random_feeds(proto)
    step = np.zeros_like(feeds["x"])
    step[1, 2, 3, 4] = 1e-5
    loss, gradient = ReferenceEvaluator(result).run(["loss", "x_grad"], feeds)
    ends = (ReferenceEvaluator(proto).run(None, feeds | {"x": feeds["x"] + offset})[0] for offset in (step, -step))
    np.testing.assert_allclose(gradient[1, 2, 3, 4], np.subtract(*ends) / 2e-5, rtol=1e-4, atol=1e-6)
    assert np.isfinite(loss)
