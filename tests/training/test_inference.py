"""A finalized model is one of inference: the same outputs for the same inputs, by the running statistics."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, ModelError

X = np.random.default_rng(3).standard_normal((4, 2)).astype(np.float32)
PARAMETERS = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {1, -1}, float[2] v = {2, 0.5}"
TRAINING = "BatchNormalization <training_mode = 1>"
NORMALIZED = (X - [1, -1]) / np.sqrt(np.array([2, 0.5]) + 1e-5) * [1, 2] + [0, 1]
ON = "r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> ()"


def parse(body, *, opset=17, inputs="", outputs="float[N,2] y", functions="", initializers=PARAMETERS, ir=8):
    domains = f'"" : {opset}, "com.microsoft" : 1, "local" : 1'
    return onnx.parser.parse_model(
        f"""<ir_version: {ir}, opset_import: [{domains}]>
        g (float[N,2] x {inputs}) => ({outputs}) <{initializers}> {{ {body} }}{functions}"""
    )


def run(model, **feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == {"x", *feeds}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": X, **feeds}), strict=True))


def in_if(body, value="float[N,2] p", result="y", condition="c"):
    """Both branches have the same body; the condition is true."""
    branches = ", ".join(f"{name}_branch = {name} () => ({value}) {{ {body} }}" for name in ("then", "else"))
    return f"{condition} = Constant <value = bool {{1}}> () {result} = If({condition}) <{branches}>"


def in_loop(body):
    return f"""n = Constant <value = int64 {{1}}> () c = Constant <value = bool {{1}}> ()
        y = Loop(n, c, x) <body = l (int64 i, bool d, float[N,2] a) => (bool e, float[N,2] p)
            {{ e = Identity(d) {body} }}>"""


FUNCTION = """
<domain: "local", opset_import: ["" : 17]> F (a) => (p) { r = Constant <value = float {0.5}> ()
    t = Constant <value = bool {1}> () p, k = Dropout (a, r, t) }"""
MASKED = "z, k = Dropout(x, r, t) y = Where(k, z, x)"
DROPOUT = {
    "opset-6": ("y, k = Dropout <ratio = 0.5, is_test = 0> (x)", {"opset": 6}),
    "opset-7": ("y = Dropout <ratio = 0.5> (x)", {"opset": 7}),
    "opset-7-mask": ("y, k = Dropout <ratio = 0.5> (x)", {"opset": 7}),
    "opset-9-mask-that-is-read": ("z, k = Dropout <ratio = 0.5> (x) y = Mul(z, k)", {"opset": 9}),
    "opset-10-mask-that-is-read": ("z, k = Dropout <ratio = 0.5> (x) y = Where(k, z, x)", {"opset": 10}),
    "opset-12": (f"{ON} y, k = Dropout(x, r, t)", {"opset": 12}),
    "opset-13-mask-that-is-read": (f"{ON} {MASKED}", {"opset": 13}),
    "opset-22": (f"{ON} y, k = Dropout(x, r, t)", {"opset": 22, "ir": 10}),
    "without-a-ratio": (f"{ON} y = Dropout(x, , t)", {}),
    "in-inference-mode": ("y = Dropout(x)", {}),
    "mask-alone": (f"{ON} , k = Dropout(x, r, t) o = CastLike(k, x) y = Mul(x, o)", {}),
    "mode-that-is-an-input": ("y, k = Dropout(x, , t)", {"inputs": ", bool t"}),
    "mode-that-is-computed": ("i = ReduceMax <keepdims = 0> (x) t = Cast <to = 9> (i) y, k = Dropout(x, , t)", {}),
    "if": (f"{ON} {in_if('p, k = Dropout(x, r, t)')}", {}),
    "if-mask": (f"{ON} {in_if(MASKED.replace('y =', 'p ='))}", {}),
    "loop": (f"{ON} {in_loop('p, k = Dropout(a, r, t)')}", {}),
    "if-in-a-loop": (
        f"{ON} {in_loop(in_if('q = Dropout(x, r, t)', 'float[N,2] q', 'p', 'f'))}",
        {},
    ),
    "function": ("y = local.F(x)", {"functions": FUNCTION}),
    "function-in-an-if": (in_if("p = local.F(x)"), {"functions": FUNCTION}),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_passes_its_data_on(name):
    body, options = DROPOUT[name]
    model = bngrad.finalize(parse(body, **options), {})
    assert "Dropout" not in str(model)
    opset = max(options.get("opset", 17), 7)  # ONNX Runtime runs no older one
    assert [entry.version for entry in model.opset_import if not entry.domain] == [opset]
    np.testing.assert_array_equal(run(model)["y"], X)


def test_a_mask_that_is_kept():
    outputs = run(bngrad.finalize(parse(f"{ON} y, k = Dropout(x, r, t)", outputs="float[N,2] y, bool[N,2] k"), {}))
    assert outputs["k"].shape == X.shape
    assert outputs["k"].all()


def test_a_mask_of_opset_7_that_is_read():
    model = parse("z, k = Dropout <ratio = 0.5> (x) y = Mul(z, k)", opset=7)
    with pytest.raises(
        ModelError, match=r"Dropout node .* its mask 'k' is read, which opset 7 defines only for training"
    ):
        bngrad.finalize(model, {})


OLD = "BatchNormalization <momentum = 0.5>"
BN_FUNCTION = f"""
<domain: "local", opset_import: ["" : 17]> F (a, s, b, m, v) => (p, n) {{ p, n, w = {TRAINING} (a, s, b, m, v) }}
"""
REFERENCE_FUNCTION = """
<domain: "local", opset_import: ["" : 17]> F <mode> (a, s, b, m, v) => (p)
    { p, n, w = BatchNormalization <training_mode: int = @mode> (a, s, b, m, v) }"""
BATCH_NORM = {
    "opset-6": ("y = BatchNormalization <is_test = 0> (x, s, b, m, v)", {"opset": 6}),
    "opset-9-all-outputs": (f"y, n, w, sm, sv = {OLD} (x, s, b, m, v)", {"opset": 9}),
    "opset-13-running-outputs": (f"y, n, w, , = {OLD} (x, s, b, m, v)", {"opset": 13}),
    "opset-14": (f"y, n, w = {TRAINING} (x, s, b, m, v)", {"opset": 14}),
    "opset-22": (f"y, n, w = {TRAINING} (x, s, b, m, v)", {"opset": 22, "ir": 10}),
    "of-ort": ("y, n, w, sm, sv = com.microsoft.BatchNormInternal (x, s, b, m, v)", {}),
    "if": (in_if(f"p, n, w = {TRAINING} (x, s, b, m, v)"), {}),
    "if-statistics": (
        f"""c = Constant <value = bool {{1}}> ()
        y, n = If(c) <then_branch = t () => (float[N,2] p, float[2] q) {{ p, q, w = {TRAINING} (x, s, b, m, v) }},
            else_branch = e () => (float[N,2] p, float[2] q) {{ p, q, w = {TRAINING} (x, s, b, m, v) }}>""",
        {},
    ),
    "loop": (in_loop(f"p, n, w = {TRAINING} (a, s, b, m, v)"), {}),
    "function": ("y, n = local.F(x, s, b, m, v)", {"functions": BN_FUNCTION}),
    "function-in-an-if": (in_if("p, n = local.F(x, s, b, m, v)"), {"functions": BN_FUNCTION}),
    "function-that-is-told-the-mode": (
        "y = local.F <mode = 1> (x, s, b, m, v)",
        {"functions": REFERENCE_FUNCTION},
    ),
}


@pytest.mark.parametrize("name", BATCH_NORM)
def test_batch_norms_use_their_running_statistics(name):
    body, options = BATCH_NORM[name]
    model = bngrad.finalize(parse(body, **options), {})
    np.testing.assert_allclose(run(model)["y"], NORMALIZED, rtol=1e-5, atol=1e-6)


def test_new_statistics_that_are_read_are_the_old_ones():
    model = parse(f"z, n, w = {TRAINING} (x, s, b, m, v) a = Add(z, n) y = Mul(a, w)")
    trained = np.array([3, 4], np.float32)
    want = ((X - trained) / np.sqrt(np.array([2, 0.5]) + 1e-5) * [1, 2] + [0, 1] + trained) * [2, 0.5]
    np.testing.assert_allclose(run(bngrad.finalize(model, {"n": trained}))["y"], want, rtol=1e-5, atol=1e-6)
    outputs = run(bngrad.finalize(parse_kept(), {"n": trained}, outputs=["y", "n"]))
    np.testing.assert_array_equal(outputs["n"], trained)


def parse_kept():
    return parse(f"y, n, w = {TRAINING} (x, s, b, m, v)", outputs="float[N,2] y, float[2] n")


RANDOM = {
    "RandomNormalLike": "e = RandomNormalLike(x)",
    "RandomUniformLike": "e = RandomUniformLike <seed = 1.0> (x)",
    "RandomNormal": "e = RandomNormal <shape = [1, 2]> ()",
    "RandomUniform": "e = RandomUniform <shape = [1, 2]> ()",
    "Bernoulli": "p = Sigmoid(x) e = Bernoulli(p)",
    "Multinomial": "q = Multinomial(x) r = Cast <to = 1> (q) e = Expand(r, two)",
}
TWO = ", int64[1] two = {2}"


@pytest.mark.parametrize("op_type", RANDOM)
def test_random_nodes(op_type):
    body = f"{RANDOM[op_type]} y = Add(x, e) z = Relu(x)"
    model = parse(body, outputs="float[N,2] y, float[N,2] z", initializers=PARAMETERS + TWO)
    message = rf"^{op_type} node .* makes the inference model random; .* keep others with --keep \(outputs=\)"
    for outputs in (None, ["y"]):
        with pytest.raises(ModelError, match=message):
            bngrad.finalize(model, {}, outputs=outputs)
    np.testing.assert_array_equal(run(bngrad.finalize(model, {}, outputs=["z"]))["z"], np.maximum(X, 0))


@pytest.mark.parametrize("place", [in_if, in_loop])
def test_random_nodes_in_bodies(place):
    with pytest.raises(ModelError, match=r"RandomNormalLike node .* random"):
        bngrad.finalize(parse(place("p = RandomNormalLike(x)")), {})


LABELS = ", int64[N] l"
SCE = "SoftmaxCrossEntropyLoss"
TENSORS = "float[N,2] y"
LOSSES = {
    "scalar": ("q = Mul(y, y) loss = ReduceMean <keepdims = 0> (q)", f"float loss, {TENSORS}", [], ["y"]),
    "one-element": ("q = Mul(y, y) loss = ReduceMean(q)", f"float[1,1] loss, {TENSORS}", [], ["y"]),
    "one-element-beside-a-scalar": (
        "q = ReduceMean <keepdims = 0> (y) loss = ReduceSum <keepdims = 0> (y) o = ReduceMax(y)",
        f"float loss, float[1,1] o, {TENSORS}",
        [],
        ["o", "y"],
    ),
    "op": (f"loss = {SCE} (y, l)", f"float loss, {TENSORS}", [], ["y"]),
    "op-without-reduction": (f'loss = {SCE} <reduction = "none"> (y, l)', f"float[N] loss, {TENSORS}", [], ["y"]),
    "behind-an-op": (
        f'e = {SCE} <reduction = "none"> (y, l) loss = Mul(e, e)',
        f"float[N] loss, {TENSORS}",
        [],
        ["y"],
    ),
    "decomposed": (
        "p = LogSoftmax(y) loss = NegativeLogLikelihoodLoss(p, l)",
        f"float loss, {TENSORS}, float[N,2] p",
        [],
        ["y", "p"],
    ),
    "log-prob": (f"loss, p = {SCE} (y, l)", "float loss, float[N,2] p", [], ["p"]),
    "statistic-in-the-loss": (
        "a = ReduceMean <keepdims = 0> (y) k = ReduceMean <keepdims = 0> (n) loss = Add(a, k)",
        f"float loss, {TENSORS}",
        [],
        ["y"],
    ),
    "random-in-the-loss": (
        "e = RandomNormalLike(y) d = Sub(y, e) q = Mul(d, d) loss = ReduceMean <keepdims = 0> (q)",
        f"float loss, {TENSORS}",
        [],
        ["y"],
    ),
    "count": (
        "q = Mul(y, y) loss = ReduceMean <keepdims = 0> (q) c = Size(y)",
        f"float loss, int64 c, {TENSORS}",
        [],
        ["c", "y"],
    ),
    "loss-that-is-asked-for": (
        "q = Mul(y, y) loss = ReduceMean <keepdims = 0> (q)",
        f"float loss, {TENSORS}",
        ["loss"],
        ["loss"],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_left_out(name):
    body, outputs, asked, kept = LOSSES[name]
    model = parse(f"y, n, w = {TRAINING} (x, s, b, m, v) {body}", inputs=LABELS, outputs=outputs)
    result = bngrad.finalize(model, {}, outputs=asked or None)
    assert [value.name for value in result.graph.output] == kept
    values = run(result)
    if "y" in kept:
        np.testing.assert_allclose(values["y"], NORMALIZED, rtol=1e-5, atol=1e-6)
    if "p" in kept:
        want = NORMALIZED - np.log(np.exp(NORMALIZED).sum(1, keepdims=True))
        np.testing.assert_allclose(values["p"], want, rtol=1e-5, atol=1e-5)


OTHERS = {
    "our-own-op": (
        """a = Constant <value = int64[1] {0}> ()
        y, n, w, sm, si = bngrad.BatchNormalizationTraining (x, s, b, m, v, a)""",
        "BatchNormalizationTraining node",
    ),
    "tensorflow": (
        "y, n, w, p, q, r = local.FusedBatchNormV3 <is_training = 1> (x, s, b, m, v)",
        "local.FusedBatchNormV3 node (outputs y, n, w, p, q, r) cannot be put into inference mode",
    ),
    "saved-statistics": (
        "z, n, w, sm, sv = com.microsoft.BatchNormInternal (x, s, b, m, v) y = Add(z, sm)",
        "its output 'sm', which only training has, is read; keep outputs that do not depend on it",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_put_into_inference_mode(name):
    body, message = OTHERS[name]
    model = parse(body)
    model.opset_import.add(domain="bngrad", version=1)
    with pytest.raises(ModelError, match=re.escape(message)):
        bngrad.finalize(model, {})


def test_outputs_by_name():
    with pytest.raises(InputError, match="'k' is not an output of this model"):
        bngrad.finalize(parse(f"{ON} y, k = Dropout(x, r, t)"), {}, outputs=["k"])
