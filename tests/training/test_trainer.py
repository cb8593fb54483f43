"""The trainer: the bits of a plain loop, evaluation, results that belong to the caller, and refusals."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, ModelError, TrainingError, VersionError
from trainer_cases import assert_same_bits, batch, network, plain_loop, samples, step_of

STEPS = {
    "sgd": {},
    "momentum": {"optimizer": bngrad.SGD(momentum=0.9, weight_decay=0.01)},
    "adamw": {"optimizer": "adamw"},
    "clipped": {"optimizer": "adam", "clip_norm": 0.1},
    "accumulated": {"optimizer": bngrad.SGD(momentum=0.9), "accumulate": 3},
    "defaults": {"optimizer": bngrad.SGD(momentum=0.9), "defaults": True},
    "frozen": {"frozen": ["bn"]},
    "running-output": {"outputs": ["mean_new", "logits", "kernel_grad"]},
    "one-weight": {"wrt": ["weight"]},
}


@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize("case", STEPS)
def test_the_bits_of_a_plain_loop(case, layout):
    step = step_of(layout=layout, **STEPS[case])
    schedule = bngrad.StepSchedule(0.1, 2, factor=0.5)
    batches = [batch(index, size=8 - index % 2) for index in range(7)]
    trainer = bngrad.Trainer(step, learning_rate=schedule)
    losses = [trainer.step(**data) for data in batches]
    expected, state = plain_loop(step, batches, schedule)
    assert losses == expected
    assert_same_bits(trainer.state_dict(), state)
    assert (trainer.calls, trainer.updates) == (7, 7 // step.info.accumulate)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_numpy_with_the_gradient_graph(layout):
    graph = bngrad.read_training_graph(bngrad.differentiate(network()))
    session, step = bngrad.session(graph.model), step_of(layout=layout, optimizer=bngrad.SGD(momentum=0.9))
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    state = {name: step.state[name].copy() for name in (*graph.gradients, *graph.running_statistics)}
    momentum = {name: np.zeros_like(state[name]) for name in graph.gradients}
    fetches = [graph.loss, *graph.gradients.values(), *graph.running_statistics.values()]
    for index in range(10):
        results = dict(zip(fetches, session.run(fetches, batch(index) | state), strict=True))
        for name, gradient in graph.gradients.items():
            momentum[name] = np.float32(0.9) * momentum[name] + results[gradient]
            state[name] = state[name] - np.float32(0.1) * momentum[name]
        state |= {name: results[new] for name, new in graph.running_statistics.items()}
        assert trainer.step(**batch(index)) == pytest.approx(float(results[graph.loss]), rel=1e-5)
    trained = trainer.state_dict()
    for name, array in state.items():
        np.testing.assert_allclose(trained[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


LOSSES = {
    "scalar": ("float loss", "loss = Identity (mean)", True),
    "one-element": ("float[1] loss", "one = Constant <value_ints = [1]> () loss = Reshape (mean, one)", True),
    "unknown-shape": (
        "float loss",
        "n = Shape <start = 0, end = 0> (x) loss = Reshape <allowzero = 1> (mean, n)",
        None,
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_shapes_of_losses(case):
    output, nodes, bound = LOSSES[case]
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,2] x) => ({output}) <float[2] w = {{1, 2}}> {{
            y = Mul (x, w)
            mean = ReduceMean <keepdims = 0> (y)
            {nodes} }}""")
    step = bngrad.training_step(model, loss="loss")
    (value,) = (output for output in step.model.graph.output if output.name == "loss")
    if bound is None:  # as a model whose rank is unknown has it
        value.type.tensor_type.ClearField("shape")
    trainer = bngrad.Trainer(step, learning_rate=1.0)
    assert ("loss" in trainer._session._outputs) == bool(bound)
    x = np.ones((3, 2), np.float32)
    assert [trainer.step(x=x) for _ in range(3)] == [1.5, 1.0, 0.5]
    assert trainer.outputs == {}


def test_it_learns():
    trainer = bngrad.Trainer(step_of(optimizer="adam"), learning_rate=0.03)
    data, first = samples(60), None
    for _ in range(200):
        loss = trainer.step(**data)
        first = first or loss
    assert loss < first / 4
    outputs = trainer.evaluate(**samples(100, seed=5))
    assert np.mean(outputs["logits"].argmax(axis=1) == samples(100, seed=5)["labels"]) > 0.7  # by chance 0.33


@pytest.mark.parametrize(
    "options", [{}, {"layout": "flat"}, {"defaults": True}], ids=["named", "flat", "defaults"]
)
def test_evaluation_is_the_finalized_model(options, tmp_path):
    trainer = bngrad.Trainer(step_of(optimizer="adamw", **options), learning_rate=0.05)
    for calls in range(3):
        data = batch(50)
        outputs = trainer.evaluate(**data)
        assert set(outputs) == {"loss", "logits"}
        state = trainer.state_dict()
        weights = {name: state[name] for name in trainer.info.names("weight", "running_statistic")}
        by_hand = bngrad.finalize(network(), weights)
        for model in (by_hand, trainer.finalize(), trainer.finalize(tmp_path / "m.onnx"), tmp_path / "m.onnx"):
            session = bngrad.session(model)
            assert [value.name for value in session.get_inputs()] == ["x"]
            np.testing.assert_allclose(session.run(["logits"], {"x": data["x"]})[0], outputs["logits"], rtol=1e-5)
        assert trainer.calls == calls
        trainer.step(**batch(calls))


def test_a_path(tmp_path):
    step_of(optimizer="adam").save(tmp_path / "step.onnx")
    trainer = bngrad.Trainer(str(tmp_path / "step.onnx"), learning_rate=0.1)
    other = bngrad.Trainer(step_of(optimizer="adam"), learning_rate=0.1)
    assert trainer.step(**batch()) == other.step(**batch())


@pytest.mark.parametrize("implementation", ["native", "python", "function"])
def test_implementations(implementation):
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1, implementation=implementation, threads=1)
    other = bngrad.Trainer(step_of(), learning_rate=0.1)
    for index in range(3):
        assert trainer.step(**batch(index)) == pytest.approx(other.step(**batch(index)), rel=1e-5)


TYPES = {"double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", TYPES)
def test_other_types(name):
    dtype = np.dtype(TYPES[name])
    onnx_type = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    # ONNX Runtime computes with 16-bit types in few ops.
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({name}[N,2] x) => (double loss, {name}[N,2] y) {{
            wide_x = Cast <to = 11> (x)
            wide_w = Cast <to = 11> (w)
            wide_y = Mul (wide_x, wide_w)
            y = Cast <to = {onnx_type}> (wide_y)
            q = Mul (wide_y, wide_y)
            loss = ReduceMean <keepdims = 0> (q) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], dtype), "w"))
    step = bngrad.training_step(model, outputs=["y"])
    trainer = bngrad.Trainer(step, learning_rate=0.25)
    x = np.array([[1, 2], [2, 1]], dtype)
    if name == "bfloat16" and not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        with pytest.raises(VersionError, match=r"onnxruntime .* takes no bfloat16 arrays; update onnxruntime"):
            trainer.step(x=x)
        return
    # The mean over two samples and two features: (1 + 16 + 4 + 4) / 4, and dw = w (x1^2 + x2^2) / 2.
    assert trainer.step(x=x) == 6.25
    assert trainer.outputs["y"].dtype == dtype
    assert trainer.outputs["y"].astype(float).tolist() == [[1, 4], [2, 2]]
    state = trainer.state_dict()["w"]
    assert state.dtype == (np.float64 if name == "double" else np.float32)
    np.testing.assert_allclose(state, [1 - 0.25 * 2.5, 2 - 0.25 * 5])
    assert trainer.evaluate(x=x)["y"].dtype == dtype
    inference = trainer.finalize()
    assert [output.type.tensor_type.elem_type for output in inference.graph.output] == [onnx_type]
    assert {tensor.name: tensor.data_type for tensor in inference.graph.initializer}["w"] == onnx_type


NAMES = ["self", "data", "path", "input.1", "a/b"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_data_inputs(name):
    model = network()
    for node in model.graph.node:
        node.input[:] = [name if input_name == "x" else input_name for input_name in node.input]
    model.graph.input[0].name = name
    trainer = bngrad.Trainer(bngrad.training_step(model), learning_rate=0.1)
    data = batch()
    data[name] = data.pop("x")
    assert trainer.step(**data) > 0
    assert set(trainer.evaluate(**data)) == {"loss", "logits"}


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_results_are_the_callers_own(layout):
    trainer = bngrad.Trainer(step_of(outputs=["logits"], layout=layout), learning_rate=0.5)
    trainer.step(**batch(0))
    outputs, state, evaluated = trainer.outputs, trainer.state_dict(), trainer.evaluate(**batch(0))
    copies = [{name: array.copy() for name, array in arrays.items()} for arrays in (outputs, state, evaluated)]
    for index in range(4):
        trainer.step(**batch(index + 1))
        trainer.evaluate(**batch(index + 1))
    for arrays, copy in zip((outputs, state, evaluated), copies, strict=True):
        assert_same_bits(arrays, copy)
    before = trainer.state_dict()
    state["weight"][:] = 7
    assert_same_bits(trainer.state_dict(), before)


def test_a_state_that_was_loaded_is_copied():
    trainer = bngrad.Trainer(step_of(), learning_rate=0.5)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    before = trainer.state_dict()
    state["weight"][:] = 7
    assert_same_bits(trainer.state_dict(), before)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_the_step_stays_as_it_is(layout):
    step = step_of(layout=layout)
    before = {name: array.copy() for name, array in step.state.items()}
    first = bngrad.Trainer(step, learning_rate=0.5)
    losses = [first.step(**batch(index)) for index in range(3)]
    assert_same_bits(step.state, before)
    second = bngrad.Trainer(step, learning_rate=0.5)
    assert [second.step(**batch(index)) for index in range(3)] == losses


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_buffers_are_not_copied_and_not_shared(layout):
    trainer = bngrad.Trainer(step_of(layout=layout), learning_rate=0.1)
    first, second = trainer._session.buffers
    values = [*first.inputs.values(), *second.inputs.values()]
    addresses = [value.data_ptr() for value in values]
    for index in range(3):
        trainer.step(**batch(index))
    assert [value.data_ptr() for value in values] == addresses
    ends = sorted((value.data_ptr(), value.data_ptr() + value.tensor_size_in_bytes()) for value in values)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"layout": "flat"}, {"accumulate": 2}], ids=str)
def test_a_loaded_state_continues(calls, options):
    step = step_of(optimizer="adam", **options)
    schedule = bngrad.CosineSchedule(0.1, 6)
    first, second = (bngrad.Trainer(step, learning_rate=schedule) for _ in range(2))
    for index in range(calls):
        first.step(**batch(index))
    second.step(**batch(40))  # other buffers hold the state now
    second.load_state_dict(first.state_dict())
    assert (second.calls, second.learning_rate) == (first.calls, first.learning_rate)
    for index in range(3):
        assert second.step(**batch(index)) == first.step(**batch(index))
    assert_same_bits(second.state_dict(), first.state_dict())


def test_the_learning_rate_can_be_assigned():
    trainer = bngrad.Trainer(step_of(accumulate=2), learning_rate=0.1)
    assert trainer.learning_rate == 0.1
    trainer.learning_rate = bngrad.StepSchedule(0.2, 1)
    seen = []
    for index in range(4):
        seen.append(trainer.learning_rate)
        trainer.step(**batch(index))
    assert seen == pytest.approx([0.2, 0.2, 0.02, 0.02])
    trainer.learning_rate = 0.0
    before = trainer.state_dict()
    trainer.step(**batch(9))
    trainer.step(**batch(9))
    for name in trainer.info.names("weight"):
        np.testing.assert_array_equal(trainer.state_dict()[name], before[name])


RATES = {
    "negative": (-0.1, "learning_rate is -0.1; expected a finite number, at least 0"),
    "nan": (float("nan"), "learning_rate is nan"),
    "text": ("fast", "learning_rate is 'fast'; expected a number or a schedule"),
    "schedule": (lambda update: -update - 1, "the learning rate of update 0 is -1.0; expected a finite float32"),
    "schedule-nan": (lambda _: float("nan"), "the learning rate of update 0 is nan"),
    "schedule-nothing": (lambda _: None, "the learning rate of update 0 is None; expected a number"),
    "infinite-as-float32": (1e39, "the learning rate of update 0 is 1e+39; expected a finite float32"),
}


@pytest.mark.parametrize("case", RATES)
def test_refused_learning_rates(case):
    rate, message = RATES[case]
    with pytest.raises(InputError, match=re.escape(message)):
        bngrad.Trainer(step_of(), learning_rate=rate).step(**batch())


def changed(**arrays):
    return {name: array for name, array in {**batch(), **arrays}.items() if array is not None}


DATA = {
    "missing": (changed(labels=None), "there is no data for 'labels'; expected an array for 'x' and 'labels'"),
    "extra": (changed(weights=np.ones(8)), "'weights' is not a data input of this model, which has "),
    "misspelled": (changed(x=None, X=batch()["x"]), "'X' is not a data input of this model"),
    "state": (changed(weight=np.ones((3, 4), np.float32)), "'weight' is not a data input of this model"),
    "double": (
        changed(x=batch()["x"].astype(float)),
        "'x' is float64; expected float32: convert it with numpy.asarray(x, 'float32')",
    ),
    "int32": (changed(labels=batch()["labels"].astype(np.int32)), "'labels' is int32; expected int64"),
    "big-endian": (changed(x=batch()["x"].astype(">f4")), "'x' is >f4; expected float32"),
    "objects": (changed(x=np.array([None])), "'x' is object; expected float32"),
    "list": (changed(x=[[1.0]]), "'x' is float64; expected float32"),
    "rank": (changed(x=np.ones((8, 4, 4), np.float32)), "'x' has shape [8, 4, 4]; expected [N, 1, 4, 4]"),
    "size": (changed(x=np.ones((8, 1, 4, 5), np.float32)), "'x' has shape [8, 1, 4, 5]; expected [N, 1, 4, 4]"),
    "rows": (
        changed(labels=batch()["labels"][:5]),
        "'labels' has shape [5] and 'x' has N = 8; expected the same N in [N]",
    ),
    "empty": (
        {"x": np.ones((0, 1, 4, 4), np.float32), "labels": np.ones(0, np.int64)},
        "'x' has shape [0, 1, 4, 4], so it is empty; expected [N, 1, 4, 4]",
    ),
    "label": (changed(labels=batch()["labels"] + 1), "'labels' has the label 3; expected 0 to 2"),
    "masked": (
        changed(x=np.ma.masked_less(batch()["x"], 0)),
        "'x' is a masked array; expected an array without a",
    ),
    "negative-label": (changed(labels=batch()["labels"] - 1), "'labels' has the label -1; expected 0 to 2"),
}


@pytest.mark.parametrize("method", ["step", "evaluate"])
@pytest.mark.parametrize("case", DATA)
def test_refused_data(case, method):
    data, message = DATA[case]
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    trainer.step(**batch(1))
    before = trainer.state_dict()
    with pytest.raises(InputError) as raised:
        getattr(trainer, method)(**data)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert_same_bits(trainer.state_dict(), before)
    assert trainer.calls == 1


ACCEPTED = {
    "strided": {name: array[::2] for name, array in samples(16, seed=100).items()},
    "column-major": changed(x=np.asfortranarray(batch()["x"])),
    "read-only": {
        name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in batch().items()
    },
    "one-sample": batch(size=1),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted_data(case):
    data = ACCEPTED[case]
    plain = {name: np.ascontiguousarray(array).copy() for name, array in data.items()}
    first, second = (bngrad.Trainer(step_of(), learning_rate=0.1) for _ in range(2))
    for _ in range(2):
        assert first.step(**data) == second.step(**plain)
    assert_same_bits(first.evaluate(**data), second.evaluate(**plain))


def replaced(**arrays):
    def change(state):
        return {name: array for name, array in {**state, **arrays}.items() if array is not None}

    return change


STATES = {
    "missing": (replaced(weight=None), "the state lacks 'weight'; expected all "),
    "extra": (replaced(other=np.ones(3)), "'other' is not in the state of this model"),
    "type": (replaced(offset=np.ones(3)), "state 'offset' is float64; expected float32"),
    "shape": (replaced(offset=np.ones(4, np.float32)), "state 'offset' has shape [4]; expected [3]"),
    "scalar": (replaced(step=np.array([1])), "state 'step' has shape [1]; expected []"),
    "counter": (replaced(step=np.array(-1)), "the state counts -1 updates and 0 calls since; expected"),
    "micro-step": (replaced(micro_step=np.array(2)), "the state counts 1 updates and 2 calls since; expected"),
    "nothing": (lambda _: {}, "the state lacks "),
    "masked": (
        replaced(offset=np.ma.zeros(3, np.float32)),
        "'offset' is a masked array; expected an array without",
    ),
}


@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize("case", STATES)
def test_refused_states(case, layout):
    change, message = STATES[case]
    trainer = bngrad.Trainer(step_of(layout=layout, accumulate=2), learning_rate=0.1)
    for index in range(2):
        trainer.step(**batch(index))
    before = trainer.state_dict()
    with pytest.raises(InputError) as raised:
        trainer.load_state_dict(change(before))
    assert str(raised.value).startswith(message)
    assert_same_bits(trainer.state_dict(), before)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_a_loss_that_is_not_finite_changes_nothing(layout):
    step = step_of(layout=layout, optimizer="adam", outputs=["logits"])
    first, second = (bngrad.Trainer(step, learning_rate=0.1) for _ in range(2))
    first.step(**batch(0))
    second.step(**batch(0))
    before, outputs = first.state_dict(), first.outputs
    bad = batch(1)
    bad["x"][3, 0, 1, 1] = np.nan
    for _ in range(2):
        with pytest.raises(TrainingError) as raised:
            first.step(**bad)
        message = "the loss is nan in call 2: the data 'x' are not finite; the state is unchanged"
        assert str(raised.value) == message
    assert_same_bits(first.state_dict(), before)
    assert first.outputs is outputs
    assert first.step(**batch(2)) == second.step(**batch(2))
    assert_same_bits(first.state_dict(), second.state_dict())


def test_an_infinite_loss():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N] x) => (float loss) <float[1] w = {3}> {
            y = Mul (x, w)
            loss = ReduceSum <keepdims = 0> (y) }""")
    trainer = bngrad.Trainer(bngrad.training_step(model, wrt=["w"]), learning_rate=0.1)
    with pytest.raises(TrainingError, match="the loss is inf in call 1, with finite data and weights"):
        trainer.step(x=np.float32([3e38]))
    assert trainer.calls == 0
    assert trainer.state_dict()["w"] == 3


def test_a_loss_that_overflows():
    trainer = bngrad.Trainer(step_of(frozen=["bn"]), learning_rate=0.1)
    with pytest.raises(TrainingError, match=r"with finite data and weights; the state is unchanged: lower"):
        trainer.step(x=np.full((2, 1, 4, 4), 3e38, np.float32), labels=np.array([0, 1]))


def test_a_state_that_is_not_finite():
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    trainer.load_state_dict(trainer.state_dict() | {"offset": np.float32([0, np.inf, 0])})
    with pytest.raises(TrainingError, match=r"the state is not finite since an earlier call \('offset'\)"):
        trainer.step(**batch())


@pytest.mark.parametrize("number", [np.nan, -np.inf])
@pytest.mark.parametrize("name", ["offset", "var"])
@pytest.mark.parametrize("write", ["save", "finalize"])
def test_a_state_that_is_not_finite_is_not_written(write, name, number, tmp_path):
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    getattr(trainer, write)(tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    state = trainer.state_dict()
    trainer.load_state_dict(state | {name: np.full_like(state[name], number)})
    with pytest.raises(TrainingError, match=rf"the state is not finite \('{name}'\), so .*c is not written"):
        getattr(trainer, write)(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before
    with pytest.raises(TrainingError, match=r"the state .* so the inference model is not written; load an"):
        trainer.finalize()
    trainer.load_state_dict(state)
    getattr(trainer, write)(tmp_path / "c")


def test_refused_arguments(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        bngrad.Trainer(tmp_path / "none.onnx", learning_rate=0.1)
    for name in ("m.onnx", "m.eval.onnx"):
        bngrad.save(network(), tmp_path / name)
    with pytest.raises(ModelError, match=r"has no metadata 'bngrad.step'"):
        bngrad.Trainer(tmp_path / "m.onnx", learning_rate=0.1)
    with pytest.raises(InputError, match="implementation is 'gpu'"):
        bngrad.Trainer(step_of(), learning_rate=0.1, implementation="gpu")
    with pytest.raises(InputError, match=r"output folder .* does not exist"):
        bngrad.Trainer(step_of(), learning_rate=0.1).finalize(tmp_path / "none" / "m.onnx")
