"""The training step: its inputs and outputs, its state, its evaluation graph and its files."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.training.step_info import KEY, read_step_info

FORWARD = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2,3] x, int64[N,3] labels) => (float loss, float[N,2,3] logits, float[2] mean_new, float[2] var_new)
<float[2] scale = {1, 2}, float[2] bias = {0, 1}, float[2] mean = {0.5, -0.5}, float[2] var = {1, 2}> {
    [bn] logits, mean_new, var_new = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""


def parse(text=FORWARD):
    return onnx.parser.parse_model(text)


def data(n=4, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, 2, 3)).astype(np.float32), "labels": rng.integers(0, 2, (n, 3))}


def sizes(values):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def constants(model):
    return {tensor.name for tensor in model.graph.initializer}


def run(model, feeds):
    session = bngrad.session(model)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def call(step, state, feeds, rate=0.1):
    """One call of a step; returns all its outputs, and the next state."""
    info = step.info
    state = {info.flat.input: info.flatten(state)} if info.flat else state
    results = run(step.model, {**feeds, info.learning_rate: np.array(rate, info.learning_rate_dtype), **state})
    if info.flat:
        return results, info.unflatten(results[info.flat.output])
    return results, {name: results[entry.new] for name, entry in info.state.items()}


def test_no_node_has_more_outputs_than_a_shader_of_webgpu_has_buffers():
    weights = ", ".join(f"float[2] w{i} = {{1, 2}}" for i in range(12))
    sums = "\n".join(f"s{i} = Add (s{i - 1}, w{i})" for i in range(1, 12))
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,2] x) => (float loss) <{weights}> {{
        s0 = Mul (x, w0)
        {sums}
        loss = ReduceMean <keepdims = 0> (s11)
    }}"""
    step = bngrad.training_step(parse(text), layout="flat")
    assert len(step.info.state) > 10
    assert max(len(node.output) for node in step.model.graph.node) < 10


def test_inputs_and_outputs_of_the_named_layout():
    step = bngrad.training_step(parse(), optimizer=bngrad.SGD(momentum=0.9))
    vector = {name: [2] for name in ("scale", "bias", "mean", "var")}
    buffers = {f"{name}/momentum_buffer": [2] for name in ("scale", "bias")}
    inputs = {"x": ["N", 2, 3], "labels": ["N", 3], "learning_rate": [], **vector, "step": [], **buffers}
    assert list(sizes(step.model.graph.input)) == list(inputs)
    assert sizes(step.model.graph.input) == inputs
    assert constants(step.model) == {"loss_grad"}
    new = {step.info.state[name].new: size for name, size in inputs.items() if name in step.info.state}
    assert sizes(step.model.graph.output) == {"loss": [], **new}
    assert step.info.state["mean"].new == "mean_new"


def test_inputs_and_outputs_of_the_flat_layout():
    step = bngrad.training_step(parse(), optimizer="adamw", layout="flat", outputs=["logits"])
    assert sizes(step.model.graph.input) == {
        "x": ["N", 2, 3],
        "labels": ["N", 3],
        "learning_rate": [],
        "state": [17],
    }
    assert sizes(step.model.graph.output) == {"loss": [], "logits": ["N", 2, 3], "state_new": [17]}
    assert constants(step.model) == {"loss_grad"}
    ends = [entry.offset + int(np.prod(entry.shape)) for entry in step.info.state.values()]
    assert [entry.offset for entry in step.info.state.values()] == [0, *ends[:-1]]
    assert ends[-1] == step.info.flat.size


EMPTY = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x) => (float loss) <float[2,0] w = {}, float[1] s = {2}, float c = {3}> {
    y = MatMul (x, w)
    a = ReduceSum <keepdims = 0> (y)
    b = ReduceMean <keepdims = 0> (x)
    d = Mul (b, s)
    e = ReduceSum <keepdims = 0> (d)
    f = Mul (e, c)
    loss = Add (a, f)
}"""


def test_empty_weights_and_scalars_are_state():
    states = []
    for layout in ("named", "flat"):
        step = bngrad.training_step(parse(EMPTY), wrt=["w", "s", "c"], layout=layout)
        states.append(call(step, step.state, {"x": np.ones((3, 2), np.float32)})[1])
    for state in states:
        np.testing.assert_allclose([state["s"].item(), state["c"].item()], [2 - 0.1 * 3, 3 - 0.1 * 2], rtol=1e-6)
        assert (state["w"].shape, state["c"].shape) == ((2, 0), ())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_layouts_give_the_same_bits(optimizer):
    states = {}
    for layout in ("named", "flat"):
        step = bngrad.training_step(parse(), optimizer=optimizer, layout=layout, clip_norm=0.1, accumulate=2)
        state = step.state
        for index in range(5):
            _, state = call(step, state, data(seed=index))
        states[layout] = state
    assert states["named"].keys() == states["flat"].keys()
    for name, array in states["named"].items():
        np.testing.assert_array_equal(array, states["flat"][name], err_msg=name)


def test_step_is_the_gradient_graph_and_an_update():
    graph = bngrad.read_training_graph(bngrad.differentiate(parse()))
    step = bngrad.training_step(parse(), outputs=["logits", "scale_grad"])
    results, state = call(step, step.state, data(), rate=0.5)
    expected = run(graph.model, data())
    for name in ("loss", "logits", "scale_grad"):
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-6)
    for weight, gradient in graph.gradients.items():
        new = step.state[weight] - np.float32(0.5) * expected[gradient]
        np.testing.assert_allclose(state[weight], new, rtol=1e-6, err_msg=weight)
    for name, output in graph.running_statistics.items():
        np.testing.assert_array_equal(state[name], expected[output])
    assert state["step"] == 1


def test_all_values_have_types(caplog):
    bngrad.training_step(parse(), clip_norm=0.1, accumulate=3)
    assert not caplog.records


def test_accumulation_updates_statistics_in_every_call_and_weights_in_the_last():
    step = bngrad.training_step(parse(), accumulate=3)
    state, seen = step.state, []
    for index in range(6):
        _, state = call(step, state, data(seed=index))
        seen.append(state)
    steps = [int(state["step"]) for state in seen]
    assert steps == [0, 0, 1, 1, 1, 2]
    assert [int(state["micro_step"]) for state in seen] == [1, 2, 0, 1, 2, 0]
    moved = [not np.array_equal(a["scale"], b["scale"]) for a, b in itertools.pairwise(seen)]
    assert moved == [False, True, False, False, True]
    assert all(not np.array_equal(a["mean"], b["mean"]) for a, b in itertools.pairwise(seen))


def test_gradient_norm_is_an_output_of_a_clipped_step():
    plain = bngrad.training_step(parse(), outputs=["scale_grad", "bias_grad"])
    gradients, _ = call(plain, plain.state, data())
    norm = np.sqrt(sum(np.sum(np.square(gradients[f"{n}_grad"], dtype=np.float64)) for n in ("scale", "bias")))
    step = bngrad.training_step(parse(), clip_norm=norm / 2)
    results, state = call(step, step.state, data(), rate=1)
    assert step.info.outputs == ("gradient_norm",)
    np.testing.assert_allclose(results["gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(step.state["scale"] - state["scale"], gradients["scale_grad"] / 2, rtol=1e-4)


def test_names_of_the_model_stay_its_own():
    text = FORWARD.replace("x,", "learning_rate,").replace("(x", "(learning_rate").replace("scale", "step")
    step = bngrad.training_step(parse(text), layout="flat")
    assert step.info.learning_rate == "learning_rate_1"
    assert {name: entry.role for name, entry in step.info.state.items() if "step" in name} == {
        "step": "weight",
        "step_1": "step",
    }
    feeds = {"learning_rate": data()["x"], "labels": data()["labels"]}
    _, state = call(step, step.state, feeds)
    assert state["step_1"] == 1


def test_frozen_weights_are_constants():
    step = bngrad.training_step(parse(), wrt=["scale"])
    assert set(step.info.names("weight")) == {"scale"}
    assert constants(step.model) == {"loss_grad", "bias"}
    model = parse()
    for name in ("scale", "bias", "mean", "var"):  # a model whose initializers are inputs, too
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]))
    step = bngrad.training_step(model, wrt=["scale"])
    assert "bias" not in sizes(step.model.graph.input)
    assert list(step.info.data) == ["x", "labels"]


def test_frozen_batch_norms_keep_their_statistics():
    step = bngrad.training_step(parse(), frozen=["bn"])
    assert step.info.names("running_statistic") == []
    assert constants(step.model) == {"loss_grad", "mean", "var"}


SHARED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x, float[N,2] t) => (float loss, float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    h = MatMul (x, w)
    y = MatMul (h, w)
    d = Sub (y, t)
    s = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (s)
}"""


def test_shared_weight_has_the_sum_of_its_gradients():
    step = bngrad.training_step(parse(SHARED))
    x, t = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32)
    _, state = call(step, step.state, {"x": x, "t": t})
    w = step.state["w"].astype(np.float64)
    dy = 2 * (x @ w @ w - t) / 4
    gradient = (x @ w).T @ dy + x.T @ dy @ w.T
    np.testing.assert_allclose(state["w"], w - 0.1 * gradient, rtol=1e-5)


def test_constants_can_be_trained():
    text = SHARED.replace("<float[2,2] w = {1, 2, 3, 4}> {", "{ w = Constant <value = float[2,2] {1, 2, 3, 4}> ()")
    step, other = bngrad.training_step(parse(text), wrt=["w"]), bngrad.training_step(parse(SHARED))
    feeds = {"x": np.eye(2, dtype=np.float32), "t": np.zeros((2, 2), np.float32)}
    assert np.array_equal(call(step, step.state, feeds)[1]["w"], call(other, other.state, feeds)[1]["w"])
    trained = {"w": np.ones((2, 2), np.float32), "step": np.array(3)}
    assert constants(step.finalize(trained)) == {"w"}


TWICE = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x) => (float loss, float[N,2] z)
<float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0}, float[2] v = {1, 1}> {
    [one] y, m1, v1 = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    [two] z, m2, v2 = BatchNormalization <training_mode = 1> (y, s, b, m, v)
    q = Mul (z, z)
    c = Mul (q, z)
    loss = ReduceMean <keepdims = 0> (c)
}"""


@pytest.mark.parametrize(
    ("shared", "statistics"),
    [
        ("separate", {"one/running_mean", "one/running_var", "two/running_mean", "two/running_var"}),
        ("chain", {"m", "v"}),
    ],
)
def test_shared_statistics(shared, statistics):
    step = bngrad.training_step(parse(TWICE), shared_statistics=shared)
    assert set(step.info.names("running_statistic")) == statistics
    x = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    _, state = call(step, step.state, {"x": x})
    inputs = {value.name for value in step.evaluation.graph.input}
    evaluated = run(step.evaluation, {"x": x, **{name: value for name, value in state.items() if name in inputs}})
    np.testing.assert_array_equal(run(step.finalize(state), {"x": x})["z"], evaluated["z"])
    assert statistics <= inputs


def test_loss_function_is_part_of_the_step_and_of_its_evaluation():
    text = FORWARD.replace("float loss, ", "").replace(", int64[N,3] labels", "")
    text = text.replace("    loss = SoftmaxCrossEntropyLoss (logits, labels)\n", "")
    step, other = bngrad.training_step(parse(text), loss_fn="cross_entropy"), bngrad.training_step(parse())
    assert list(step.info.data) == ["x", "labels"]
    results, state = call(step, step.state, data())
    expected, expected_state = call(other, other.state, data())
    np.testing.assert_allclose(results["loss"], expected["loss"], rtol=1e-6)
    for name, array in expected_state.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-5, atol=1e-7)
    feeds = {**data(), **{name: array for name, array in expected_state.items() if name != "step"}}
    actual, desired = run(step.evaluation, feeds), run(other.evaluation, feeds)
    np.testing.assert_allclose(actual["loss"], desired["loss"], rtol=1e-6)
    assert list(sizes(step.finalize(state).graph.output)) == ["logits"]


def test_values_replace_those_of_the_model():
    text = FORWARD.replace("float[2] scale = {1, 2}, ", "").replace("labels) =>", "labels, float[2] scale) =>")
    with pytest.raises(InputError, match="'scale' is an input of the model without a value"):
        bngrad.training_step(parse(text))
    scale = np.array([3, 4], np.float32)
    step = bngrad.training_step(parse(text), values={"scale": scale})
    np.testing.assert_array_equal(step.state["scale"], scale)
    _, state = call(step, step.state, data())
    overridden = bngrad.training_step(parse(), values={"scale": scale})
    np.testing.assert_array_equal(state["scale"], call(overridden, overridden.state, data())[1]["scale"])


def test_evaluation_uses_the_state_and_running_statistics():
    for layout in ("named", "flat"):
        step = bngrad.training_step(parse(), layout=layout)
        _, state = call(step, step.state, data())
        assert sizes(step.evaluation.graph.output) == {"loss": [], "logits": ["N", 2, 3]}
        assert not step.evaluation.graph.initializer
        feeds = (
            {"state": step.info.flatten(state)}
            if layout == "flat"
            else {n: state[n] for n in state if n != "step"}
        )
        actual = run(step.evaluation, {**data(), **feeds})
        column = {name: state[name].reshape(1, 2, 1).astype(np.float64) for name in state if name != "step"}
        deviation = np.sqrt(column["var"] + 1e-5)
        logits = (data()["x"] - column["mean"]) / deviation * column["scale"] + column["bias"]
        np.testing.assert_allclose(actual["logits"], logits, rtol=1e-5, atol=1e-6)
        inference = step.finalize(state)
        assert list(sizes(inference.graph.input)) == ["x"]
        assert list(sizes(inference.graph.output)) == ["logits"]
        session = onnxruntime.InferenceSession(inference.SerializeToString())
        np.testing.assert_array_equal(session.run(None, {"x": data()["x"]})[0], actual["logits"])


def test_defaults():
    for layout in ("named", "flat"):
        step = bngrad.training_step(parse(), defaults=True, layout=layout)
        results = run(step.model, {**data(), "learning_rate": np.array(0.1, np.float32)})
        plain = bngrad.training_step(parse(), layout=layout)
        expected, _ = call(plain, plain.state, data())
        assert results.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(results[name], value)


def test_files(tmp_path):
    step = bngrad.training_step(parse(), optimizer="adam", layout="flat")
    written = step.save(tmp_path / "step.onnx")
    assert sorted(p.name for p in written) == ["step.eval.onnx", "step.onnx", "step.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in written)
    again = bngrad.read_training_step(tmp_path / "step.onnx")
    assert again.info == step.info
    for name, array in step.state.items():
        np.testing.assert_array_equal(again.state[name], array)
        assert again.state[name].dtype == array.dtype
    for model in (again.model, again.evaluation):
        assert json.loads({p.key: p.value for p in model.metadata_props}[KEY])["layout"] == "flat"


def _without(state, name):
    return {key: value for key, value in state.items() if key != name}


STATES = [
    (lambda s: _without(s, "scale"), "the state lacks 'scale'; expected all 5 tensors of the step"),
    (lambda s: {**s, "scal": s["scale"]}, "'scal' is not in the state of this model; did you mean 'scale'"),
    (lambda s: {**s, "scale": s["scale"].astype(np.float64)}, "state 'scale' is float64; expected float32"),
    (lambda s: {**s, "scale": s["scale"][:1]}, "state 'scale' has shape [1]; expected [2]"),
    (lambda s: {**s, "step": np.array(1.0)}, "state 'step' is float64; expected int64"),
]


@pytest.mark.parametrize(("change", "message"), STATES, ids=[message for _, message in STATES])
def test_states_that_do_not_fit_are_refused(change, message):
    for layout in ("named", "flat"):
        step = bngrad.training_step(parse(), layout=layout)
        with pytest.raises(InputError) as error:
            step.finalize(change(step.state))
        assert message in str(error.value)


def test_vectors_that_do_not_fit_are_refused():
    step = bngrad.training_step(parse(), layout="flat")
    for vector in (np.zeros(8, np.float32), np.zeros(9)):
        with pytest.raises(InputError, match=r"expected float32\[9\]"):
            step.info.unflatten(vector)
    with pytest.raises(InputError, match="the step has the named layout"):
        bngrad.training_step(parse()).info.flatten(step.state)


OPTIONS = [
    (
        {"outputs": ["logit"]},
        "'logit' is not an output of the training graph of this model; did you mean 'logits'",
    ),
    ({"outputs": "logits"}, "outputs is the string 'logits'"),
    ({"layout": "vector"}, "layout is 'vector'; expected one of named, flat"),
    ({"values": {"w": np.zeros(2)}}, "'w' is not a trainable weight or a running statistic"),
    ({"values": {"scale": np.zeros(2)}}, "the initial value of 'scale' is float64; expected float32"),
    ({"values": {"scale": np.zeros(3, np.float32)}}, "the initial value of 'scale' has shape [3]; expected [2]"),
    ({"loss": "loss", "loss_fn": "mse"}, "expected either --loss (loss=) or --loss-fn (loss_fn=)"),
    ({"prediction": "logits"}, "prediction 'logits' is named without a loss function"),
    ({"loss_fn": "hinge"}, "hinge"),
    ({"accumulate": 2.5}, "accumulate is 2.5; expected a number of calls (int), at least 1"),
    ({"accumulate": "2"}, "accumulate is '2'; expected"),
    (
        {"wrt": ["x"]},
        (
            "'x' is an input of the model without a value; expected an initializer: store its value in the model, "
            "or give it with values= in Python; or leave it out with --wrt (wrt=)"
        ),
    ),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[message for _, message in OPTIONS])
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError) as error:
        bngrad.training_step(parse(), **options)
    assert message in str(error.value)


METADATA = [
    (None, "the model has no metadata 'bngrad.step'; expected a training step that bngrad step made"),
    ("{", "cannot be read"),
    ("[]", "cannot be read"),
    ('{"version": 2}', "has format 2, of another bngrad; expected 1"),
    ('{"version": 1, "layout": "named"}', "cannot be read (ValueError: it has no 'loss')"),
]


CHANGES = [
    ({"accumulate": 0}, "accumulate is 0"),
    ({"layout": "flat"}, "its layout is 'flat'"),
    ({"loss_scale": "scale"}, "the output 'scale' of its loss scale is none of its outputs"),
    ({"model": "0"}, "its fingerprint is not that of its state"),
    ({"optimizer": {}}, "its optimizer has no name"),
    ({"optimizer": "sgd"}, "it.optimizer is 'sgd'; expected an object"),
    ({"data": {"x": {"dtype": False, "shape": ["N", 2]}}}, "it.data['x'].dtype is False; expected a string"),
    ({"data": {"x": {"dtype": "float33", "shape": ["N", 2]}}}, "data type 'float33' not understood"),
    (
        {"data": {"x": {"dtype": "float32", "shape": ["N", 2.5]}}},
        "it.data['x'].shape[1] is 2.5; expected an integer or",
    ),
    ({"data": []}, "it.data is []; expected an object"),
    ({"clip_norm": "1"}, "it.clip_norm is '1'; expected a number"),
    ({"synchronized": 0}, "it.synchronized is 0; expected true or false"),
    ({"accumulate": True}, "it.accumulate is True; expected an integer"),
    ({"outputs": "loss"}, "it.outputs is 'loss'; expected an array"),
    ({"layout": "other"}, "it.layout is 'other'; expected one of named, flat"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_inconsistent_metadata_is_refused(change, message):
    model = bngrad.training_step(parse()).model
    document = json.loads({entry.key: entry.value for entry in model.metadata_props}[KEY]) | change
    with pytest.raises(ModelError) as error:
        read_step_info({KEY: json.dumps(document)})
    assert message in str(error.value)


@pytest.mark.parametrize(("text", "message"), METADATA)
def test_wrong_metadata_is_refused(text, message):
    with pytest.raises(ModelError) as error:
        read_step_info({} if text is None else {KEY: text})
    assert message in str(error.value)


@pytest.mark.parametrize("suffix", [".eval.onnx", ".safetensors"])
def test_files_of_steps_with_the_same_state_are_told_apart(suffix, tmp_path):
    for name, optimizer in (("a", bngrad.SGD(momentum=0.9)), ("b", bngrad.SGD(momentum=0.9, nesterov=True))):
        bngrad.training_step(parse(), optimizer=optimizer).save(tmp_path / f"{name}.onnx")
    (tmp_path / f"b{suffix}").replace(tmp_path / f"a{suffix}")
    with pytest.raises(ModelError, match=rf"a{suffix} belongs to another step than .*a.onnx; make both again"):
        bngrad.read_training_step(tmp_path / "a.onnx")


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    bngrad.training_step(parse(), optimizer="adam").save(tmp_path / "a.onnx")
    bngrad.training_step(parse(), optimizer="sgd").save(tmp_path / "b.onnx")
    (tmp_path / "a.safetensors").rename(tmp_path / "a.old")
    with pytest.raises(InputError, match=r"a.safetensors does not exist"):
        bngrad.read_training_step(tmp_path / "a.onnx")
    (tmp_path / "b.safetensors").rename(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="is the state of another model or optimizer"):
        bngrad.read_training_step(tmp_path / "a.onnx")
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"is not a \.safetensors file"):
        bngrad.read_training_step(tmp_path / "a.onnx")
    (tmp_path / "b.eval.onnx").replace(tmp_path / "a.eval.onnx")
    with pytest.raises(ModelError, match="belongs to another step"):
        bngrad.read_training_step(tmp_path / "a.onnx")
    for name in ("b.onnx", "b.eval.onnx"):
        onnx.save(parse(), tmp_path / name)
    with pytest.raises(ModelError, match=r"no metadata 'bngrad\.step'"):
        bngrad.read_training_step(tmp_path / "b.onnx")
