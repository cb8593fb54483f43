"""`validate` takes what `differentiate` takes, and needs the oracle for nothing but ``ort``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.errors import InputError, ModelError, OracleError
from pairwise import every_value

pytestmark = pytest.mark.usefixtures("shared_oracle")

BATCH_NORM = """<float[3] s = {1.0, 2.0, 0.5}, float[3] b = {0.1, -0.2, 0.3}, float[3] m = {0.5, -0.5, 0.1},
                 float[3] v = {1.5, 0.5, 2.0}>"""
LOSS = "q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p)"


def parse(text, opset=17, ir_version=8, more=""):
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{more}]>\n{text}')
    onnx.checker.check_model(model)
    return model


def with_initializers(model, **arrays):
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def copy(model):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def aliased():
    """One initializer is scale and running variance, another one bias and running mean."""
    batch_norm = "y, r0, r1 = BatchNormalization<training_mode = 1>(x, one, zero, zero, one)"
    text = f"g (float[2,4,3] x) => (float loss) {{ {batch_norm}  {LOSS} }}"
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    return with_initializers(model, one=np.ones(4, np.float32), zero=np.zeros(4, np.float32))


def half(text):
    """A model in float16, with float parameters."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    rng = np.random.default_rng(0)
    return with_initializers(model, w=rng.standard_normal((3, 3)).astype(np.float16))


TRAINING = f"y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)  {LOSS}"
FROZEN = f"y = BatchNormalization(x, s, b, m, v)  {LOSS}"
TAKEN = {
    "training": parse(f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {TRAINING} }}"),
    "frozen": parse(f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}"),
    "frozen-opset-9": parse(f"g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}", 9, 6),
    "frozen-opset-11": parse(f"g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}", 11, 6),
    "opset-7-pad-and-clip": parse(
        """g (float[2,3,4] x, float[2,3,4] w) => (float loss) {
             a = Mul(x, w)  c = Pad<pads = [0, 0, 1, 0, 0, 2], value = 0.5>(a)  y = Clip<min = -0.7, max = 0.9>(c)
             q = Mul(y, y)  loss = ReduceSum<keepdims = 0>(q) }""",
        7,
        4,
    ),
    "a-softmax-over-several-axes": parse(
        """g (float[1,2,3] x) => (float loss) <float[3] w = {1, 2, 3}> {
             h = Mul(x, w)  p = Softmax<axis = 0>(h)  l = LogSoftmax(h)  q = Mul(p, l)
             loss = ReduceSum<keepdims = 0>(q) }""",
        11,
        6,
    ),
    "no-rule-in-ort": parse(
        f"g (float[2,3,5] x) => (float loss) {BATCH_NORM} {{ y = InstanceNormalization(x, s, b)  {LOSS} }}"
    ),
    "no-batch-norm": parse(
        """g (float[N,3] x) => (float loss) <float[3] w = {1, 2, 3}> {
             h = Mul(x, w)  loss = ReduceMean<keepdims = 0>(h) }"""
    ),
    "a-loss-that-is-zero": parse(
        f"""g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{
             y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
             z, r2, r3 = BatchNormalization<training_mode = 1>(y, s, b, m, v)
             loss = ReduceMean<keepdims = 0>(z) }}"""
    ),
    "aliased": aliased(),
    "half": half(
        "g (float16[4,3] x) => (float loss) { h = MatMul(x, w)  r = Tanh(h)  f = Cast<to = 1>(r)  y = Mul(f, f)"
        "  loss = ReduceSum<keepdims = 0>(y) }"
    ),
    "half-data-float-parameters": parse(
        f"""g (float16[6,3] x) => (float loss) {BATCH_NORM} {{
             h, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)  y = Cast<to = 1>(h)  {LOSS} }}"""
    ),
    "half-inside": parse(
        f"""g (float16[6,3] x, float[6,3] target) => (float loss) {BATCH_NORM} {{
             h, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)  y = Cast<to = 1>(h)
             q = Mul(y, target)  loss = ReduceSum<keepdims = 0>(q) }}"""
    ),
    "double": parse(
        """g (double[6,3] x, double[3] s, double[3] b, double[3] m, double[3] v) => (double loss) {
             y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
             q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p) }"""
    ),
    "bfloat16": parse(
        "g (bfloat16[4,3] x, bfloat16[3] w) => (bfloat16 loss) { h = Mul(x, w)  r = Tanh(h)"
        "  y = Mul(r, r)  loss = ReduceSum<keepdims = 0>(y) }"
    ),
    "function": parse(
        f"""g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ y = f.Block(x, s, b, m, v)  {LOSS} }}
        <domain: "f", opset_import: ["" : 17]>
        Block (x, s, b, m, v) => (y) {{ y, q, p = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}""",
        more=', "f" : 1',
    ),
    "constant-weight": parse(
        """g (float[2,3] x) => (float loss) { w = Constant<value = float[3] {1.0, -2.0, 3.0}>()  h = Mul(x, w)
             y = Mul(h, h)  loss = ReduceSum<keepdims = 0>(y) }"""
    ),
    "dropout": parse(
        """g (float[20,30] x) => (float loss) <float ratio = {0.5}, bool on = {1}, float[30] w> {
             h = Mul(x, w)  y, mask = Dropout(h, ratio, on)  q = Mul(y, y)  loss = ReduceSum<keepdims = 0>(q) }"""
        .replace("float[30] w>", f"float[30] w = {{{', '.join(['1.5'] * 30)}}}>")
    ),
    "domain-by-its-other-name": onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx" : 17]>\n'
        f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {TRAINING} }}"
    ),
    "kinks-at-the-inputs": parse(
        """g (float[4,3] x) => (float loss) <float[3] w = {1.0, -2.0, 3.0}, float[3] zero = {0, 0, 0}> {
             h = Mul(x, w)  z = Mul(h, zero)  r = Relu(z)  a = Abs(z)  t = Add(r, a)  u = Add(t, h)  y = Mul(u, u)
             loss = ReduceSum<keepdims = 0>(y) }"""
    ),
}  # fmt: skip
FREEZE = {"frozen": ["*"]}
OPTIONS = {
    **{name: {"wrt": ["x", "w"]} for name in ("constant-weight", "bfloat16", "opset-7-pad-and-clip")},
    **dict.fromkeys(("frozen", "frozen-opset-9", "frozen-opset-11"), FREEZE),
}
"""The options of differentiation; they name frozen batch norms, which would cause a warning."""


@pytest.fixture
def no_oracle(monkeypatch, shared_oracle):  # noqa: ARG001 - which it replaces
    def refuse(*_arguments, **_options):
        raise OracleError("no oracle here")

    monkeypatch.setattr("bngrad.oracle.Oracle", refuse)


@every_value(case=["half", "half-data-float-parameters", "half-inside", "training", "double"], seed=range(1, 6))
def test_right_answers_pass_with_other_inputs(case, seed):
    report = bngrad.validate(copy(TAKEN[case]), against="numeric", seed=seed, implementation="function")
    assert report.passed, report.reason


@pytest.mark.usefixtures("no_oracle")
@every_value(case=list(TAKEN), against=["numeric", "reference"])
def test_taken_without_an_oracle(case, against):
    training = bngrad.differentiate(copy(TAKEN[case]), **OPTIONS.get(case, {}))
    report = bngrad.validate(copy(TAKEN[case]), against=against, **OPTIONS.get(case, {}))
    assert report.passed, report.reason
    checks = {check.name: check for check in report.checks}
    expected = {output.name for output in training.graph.output if output.name.endswith("_grad")}
    compared = {row.subject for row in checks["central differences"].rows}
    data = {"x_grad", "target_grad"} if case == "half-inside" else {"x_grad"}
    assert expected | data == compared
    assert {row.kind for row in checks["forward in float64"].rows} >= {"loss"}


BY_ORT = [
    "training",
    "frozen",
    "frozen-opset-9",
    "function",
    "no-batch-norm",
    "constant-weight",
    "a-loss-that-is-zero",
]
NOT_BY_ORT = {
    "no-rule-in-ort": "The gradient builder has not been registered: InstanceNormalization",
    "half": "is float16[3, 3]; the oracle differentiates float only",
    "half-data-float-parameters": "the oracle differentiates float only",
    "double": "loss 'loss' is double[]; ONNX Runtime's gradient builder expects a float scalar",
}


@pytest.mark.parametrize("case", BY_ORT)
def test_ort_is_asked_where_its_builder_is_right(case):
    report = bngrad.validate(copy(TAKEN[case]), **OPTIONS.get(case, {}), implementation="function")
    assert report.passed, report.reason
    assert report.against == "ort"
    assert [check.name for check in report.checks] == ["lock-step", "whole graph", "float64"]
    assert {"ort"} <= {row.against for check in report.checks for row in check.rows}


@pytest.mark.parametrize("case", NOT_BY_ORT)
def test_what_ort_does_not_take_is_compared_otherwise_and_says_so(case):
    report = bngrad.validate(copy(TAKEN[case]), **OPTIONS.get(case, {}), implementation="function")
    assert report.passed, report.reason
    assert report.against == "reference"
    (note,) = (note for note in report.notes if "gradient builder" in note)
    assert note.startswith(
        "compared with NumPy and central differences, because ONNX Runtime's gradient builder does not"
    )
    assert NOT_BY_ORT[case] in note
    checks = {check.name: check for check in report.checks}
    assert checks["central differences"].rows
    assert "ort" not in {row.against for check in report.checks for row in check.rows}


def test_ort_builder_has_no_substitute():
    with pytest.raises(OracleError, match="has not been registered: InstanceNormalization"):
        bngrad.validate(copy(TAKEN["no-rule-in-ort"]), builder="ort")


@pytest.mark.usefixtures("no_oracle")
def test_a_missing_oracle_names_what_needs_none():
    with pytest.raises(OracleError, match="no oracle here; --against numeric and reference need no oracle"):
        bngrad.validate(copy(TAKEN["training"]))


# ---- what is differentiated, and with respect to what ----

MODES = {
    "as-the-model-says": ({}, {"BatchNormInternal": 1, "BatchNormalizationGrad": 2}),
    "frozen": ({"frozen": ["*"]}, {"BatchNormalizationGrad": 2}),
    "training": ({"training": ["*"]}, {"BatchNormInternal": 2, "BatchNormalizationGrad": 2}),
    "by-name": ({"frozen": ["one"], "training": ["two"]}, {"BatchNormInternal": 1, "BatchNormalizationGrad": 2}),
}
OTHERS = "float[3] m2 = {0.1, 0.2, 0.3}, float[3] v2 = {1.0, 2.0, 0.5}>"
TWO_MODES = f"""g (float[N,3,4] x) => (float loss) {BATCH_NORM.replace(">", f", {OTHERS}")} {{
    [one] h, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    [two] y = BatchNormalization(h, s, b, m2, v2)  {LOSS} }}"""


@every_value(case=list(MODES), against=["numeric", "reference", "ort"])
def test_batch_norms_are_in_the_mode_asked_for(case, against):
    options, counts = MODES[case]
    report = bngrad.validate(parse(TWO_MODES), against=against, implementation="function", **options)
    assert report.passed, report.reason
    if against != "ort":  # where frozen ones are spelled out
        assert report.batch_norms == counts


def test_ops_of_other_layers_are_no_batch_norms():
    layers = "float[N,2,3,3] x, float[3,2,2,2] w) => (float loss) " + BATCH_NORM
    norm = "y, r0, r1 = BatchNormalization<training_mode = 1>(h, s, b, m, v)"
    model = parse(f"g ({layers} {{ h = Conv(x, w)  {norm}  {LOSS} }}")
    step = bngrad.differentiate(model, wrt=["w"], conv_grad=True)
    assert any(node.op_type == "ConvGrad" for node in step.graph.node)
    report = bngrad.validate(step, against="numeric", implementation="function")
    assert report.passed, report.reason
    assert report.batch_norms == {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1}


def test_a_wrong_mode_is_found(tmp_path):
    """The forward model is the user's: what is in another mode than asked for differs from it."""
    wrong = bngrad.differentiate(parse(TWO_MODES), frozen=["one"])
    onnx.save(wrong, tmp_path / "wrong.onnx")
    report = bngrad.validate(
        parse(TWO_MODES), rewritten=tmp_path / "wrong.onnx", against="numeric", implementation="function"
    )
    assert f"the training graph that was validated is '{tmp_path / 'wrong.onnx'}'" in report.notes
    failed = {check.name for check in report.checks if check.failures}
    assert failed == {"forward in float64", "central differences"}


WITH_DATA = """g (float[4,3] x, float[4,3] target, float[4,3] unused, int64[4] n) => (float loss)
    <float[3] w = {1, 2, 3}> {
    h = Mul(x, w)  d = Sub(h, target)  u = Floor(unused)  e = Mul(d, d)  a = Add(e, u)  k = Cast<to = 1>(n)
    s = ReduceSum<keepdims = 0>(k)  p = Mul(a, s)  loss = ReduceMean<keepdims = 0>(p) }"""
ANY = {"n": np.array([1, 2, 3, 4])}


def gradients_in(report):
    return {row.subject for check in report.checks for row in check.rows if row.kind == "gradient"}


@pytest.mark.parametrize("against", ["numeric", "reference"])
def test_gradients_by_data_are_checked_too(against):
    report = bngrad.validate(parse(WITH_DATA), against=against, inputs=ANY)
    assert report.passed, report.reason
    assert gradients_in(report) == {"w_grad", "x_grad", "target_grad"}
    (note,) = report.notes
    assert note.startswith(
        "the gradient with respect to input 'unused' is not checked: loss 'loss' does not depend"
    )


def test_wrt_says_which_gradients_are_checked():
    report = bngrad.validate(parse(WITH_DATA), against="numeric", inputs=ANY, wrt=["target"])
    assert report.passed, report.reason
    assert gradients_in(report) == {"target_grad"}


def test_what_is_given_for_a_weight_is_taken():
    w = np.array([5, 6, 7], np.float32)
    report = bngrad.validate(parse(WITH_DATA), against="numeric", inputs={**ANY, "w": w})
    assert report.passed, report.reason
    assert report.inputs["w"] == [3]


def test_a_given_training_graph_has_the_gradients_that_it_has():
    training = bngrad.differentiate(parse(WITH_DATA), wrt=["x"])
    report = bngrad.validate(parse(WITH_DATA), rewritten=training, against="reference", inputs=ANY)
    assert report.passed, report.reason
    assert gradients_in(report) == {"x_grad"}


STATISTICS = TWO_MODES.replace("(float loss)", "(float loss, float[3] r1)")


@every_value(running_variance=["biased", "unbiased"], against=["numeric", "reference", "ort"])
def test_the_running_variance_is_the_one_asked_for(running_variance, against):
    options = {"against": against, "implementation": "function"}
    report = bngrad.validate(parse(STATISTICS), running_variance=running_variance, **options)
    assert report.passed, report.reason
    training = bngrad.differentiate(parse(STATISTICS), running_variance=running_variance)
    report = bngrad.validate(parse(STATISTICS), rewritten=training, **options)
    assert report.passed, report.reason
    other = {"biased": "unbiased", "unbiased": "biased"}[running_variance]
    report = bngrad.validate(parse(STATISTICS), rewritten=training, running_variance=other, **options)
    assert {row.tensor for check in report.checks for row in check.failures} == {"r1"}


# ---- training graphs ----

NO_GRADIENT = """g (float[2] dy, float[2] x) => (float loss, float[2] dx) {
    loss = ReduceSum<keepdims = 0>(x)  dx = com.microsoft.ReluGrad(dy, x) }"""
COM_MICROSOFT = ', "com.microsoft" : 1'


def test_a_training_graph_without_gradients_does_not_pass():
    report = bngrad.validate(parse_training(NO_GRADIENT), against="numeric", implementation="function")
    assert not report.passed
    assert report.reason == (
        "central differences: nothing was compared (gradients: the model has no gradient outputs; expected "
        "outputs named <input>_grad)"
    )


def parse_training(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17{COM_MICROSOFT}]>\n{text}')


def test_what_differentiate_made_is_checked_alone():
    model = parse(TWO_MODES)
    training = bngrad.differentiate(model)
    report = bngrad.validate(training, against="numeric", loss="loss")
    assert report.passed, report.reason
    assert gradients_in(report) == {"s_grad", "b_grad"}
    for against in ("ort", "reference"):
        with pytest.raises(
            ModelError, match=r"is rewritten already; pass the original model, .* or validate this one by itself"
        ):
            bngrad.validate(training, against=against)


def test_an_output_called_like_a_gradient_is_none():
    """Its name is that of no input."""
    text = WITH_DATA.replace("(float loss)", "(float loss, float[4,3] aux_grad)").replace(
        "e = Mul", "aux_grad = Neg(d)  e = Mul"
    )
    report = bngrad.validate(parse(text), against="numeric", inputs=ANY)
    assert report.passed, report.reason
    assert "aux_grad" not in gradients_in(report)
    kinds = {row.subject: row.kind for check in report.checks for row in check.rows}
    assert kinds["aux_grad"] == "other output"


# ---- refusals ----

REFUSED = {
    "no-such-batch-norm": ({"frozen": ["bn7"]}, ModelError, "'bn7' is not a batch norm of this model"),
    "no-such-weight": ({"wrt": ["z"]}, ModelError, "'z' is not an input or initializer of this model"),
    "no-such-loss": ({"loss": "z"}, ModelError, "'z' is not a value of this model"),
    "no-such-input": (
        {"inputs": {"q": np.zeros(3)}},
        InputError,
        "there is no input 'q'; the model's inputs are x",
    ),
    "wrong-shape": (
        {"inputs": {"s": np.zeros(4, np.float32)}},
        InputError,
        r"input 's' has shape \[4\]; expected \[3\]",
    ),
    "no-such-dimension": ({"dims": {"Q": 3}}, InputError, "there is no symbolic dimension 'Q'"),
    "no-such-variance": ({"running_variance": "best"}, InputError, "running variance is 'best'; expected"),
    "no-such-reference": ({"against": "jax"}, InputError, "against is 'jax'; expected"),
}


@pytest.mark.usefixtures("no_oracle")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        bngrad.validate(parse(TWO_MODES), **{"against": "numeric", **options})


@pytest.mark.parametrize("option", ["frozen", "training", "wrt"])
def test_options_of_forward_models_are_refused_for_training_graphs(option):
    with pytest.raises(InputError, match=f"is a training graph; --{option} applies to forward models"):
        bngrad.validate(parse_training(NO_GRADIENT), against="numeric", **{option: ["x"]})


def test_the_python_implementation_takes_no_16_bits():
    with pytest.raises(InputError, match="the python implementation does not support float16"):
        bngrad.validate(copy(TAKEN["half"]), against="numeric", implementation="python")


def test_a_loss_that_is_not_finite_is_not_compared():
    text = """g (float[3] x) => (float loss) <float[3] w = {1, 2, 3}> {
        h = Mul(x, w)  y = Log(h)  loss = ReduceSum<keepdims = 0>(y) }"""
    report = bngrad.validate(parse(text), against="numeric", inputs={"x": np.array([1, -1, 1], np.float32)})
    assert not report.passed
    check = next(check for check in report.checks if check.name == "central differences")
    assert (
        check.problem
        == "nothing was compared (gradients: the loss is nan for these inputs; pass others with --inputs)"
    )


@pytest.mark.parametrize("against", ["numeric", "reference"])
def test_a_model_that_stops_gradients_is_incomplete(against):
    """No comparison fails, but differences of the loss do not decide."""
    text = TWO_MODES.replace("q = Mul(y, y)", "stopped = bngrad.autodiff.StopGradient(y)  q = Mul(y, stopped)")
    model = parse(text, more=', "bngrad.autodiff" : 1')
    report = bngrad.validate(model, against=against, implementation="function")
    assert (report.passed, report.verdict) == (False, "incomplete")
    assert report.reason.startswith("central differences: skipped, differences of the loss do not show what ")
    assert report.advice == "No comparison failed. --against torch can decide."


# ---- external data ----


@pytest.mark.parametrize("against", ["numeric", "reference", "ort"])
def test_external_data_beside_a_model_in_another_folder(against, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    model = parse(
        """g (float[4,16] x) => (float loss) <float[16,16] w> {
             h = MatMul(x, w)  y = Mul(h, h)  loss = ReduceMean<keepdims = 0>(y) }"""
        .replace(" <float[16,16] w>", "").replace("float[4,16] x", "float[4,16] x, float[16,16] w")
    )  # fmt: skip
    del model.graph.input[1]
    with_initializers(model, w=rng.standard_normal((16, 16)).astype(np.float32))
    folder, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.chdir(elsewhere)
    report = bngrad.validate(folder / "m.onnx", against=against, implementation="function")
    assert report.passed, report.reason
    assert report.against == against


def test_a_loss_and_a_gradient_of_zero():
    """A measure of zero by zero is zero, and not an error."""
    zeros = {name: np.zeros_like(array) for name, array in ANY.items()}
    report = bngrad.validate(parse(WITH_DATA), against="numeric", inputs=zeros, implementation="function")
    assert report.passed, report.reason


TWICE = f"""g (float[N,3] x) => (float loss, float[3] p, float[3] q) {BATCH_NORM} {{
    y, a, c = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    e = Exp(y)
    z, p, q = BatchNormalization<training_mode = 1, momentum = 0.5>(e, s, b, m, v)
    t = Mul(z, x)  loss = ReduceMean<keepdims = 0>(t) }}"""


@pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")
@pytest.mark.parametrize("against", ["numeric", "reference"])
def test_shared_statistics_are_updated_as_asked_for(against):
    chain = bngrad.differentiate(parse(TWICE), shared_statistics="chain")
    options = {"against": against, "implementation": "function"}
    assert bngrad.validate(parse(TWICE), shared_statistics="chain", rewritten=chain, **options).passed
    assert bngrad.validate(parse(TWICE), shared_statistics="chain", **options).passed
    report = bngrad.validate(parse(TWICE), rewritten=chain, **options)
    failed = {row.tensor for check in report.checks for row in check.failures}
    assert {"p", "q"} <= failed <= {"p", "q", "z"}, "without the option each has its own"
