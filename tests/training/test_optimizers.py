"""The optimizers of a training step against those of PyTorch, and their refusals."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import InputError
from bngrad.training.optimizers import OPTIMIZERS
from bngrad.training.step_info import read_step_info
from pairwise import pairwise
from training.torch_optimizers import CASES, FILE, UPDATES, batch, initial_weights

TRAINED = json.loads(FILE.read_text(encoding="utf-8"))
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def network(dtype):
    onnx_type = {"float32": "float", "float64": "double", "float16": "float16"}[dtype]
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
    g ({onnx_type}[N,3] x, {onnx_type}[N,2] target) => ({onnx_type} loss, {onnx_type}[N,2] y) {{
        product = MatMul (x, w1)
        sum = Add (product, b1)
        hidden = Tanh (sum)
        made = MatMul (hidden, w2)
        y = Add (made, b2)
        difference = Sub (y, target)
        square = Mul (difference, difference)
        loss = ReduceMean <keepdims = 0> (square)
    }}""")
    for name, array in initial_weights(dtype).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def step_of(case, dtype, **options):
    kind = OPTIMIZERS[case["optimizer"]]
    hyperparameters = {field.name: case[field.name] for field in fields(kind) if field.name in case}
    groups = [bngrad.ParameterGroup(names=[n], learning_rate_scale=x) for n, x in case.get("scales", {}).items()]
    if case.get("no_decay_1d"):
        groups.append(bngrad.ParameterGroup(max_rank=1, weight_decay=0))
    return bngrad.training_step(
        network(dtype),
        optimizer=kind(**hyperparameters),
        groups=groups,
        clip_norm=case.get("clip_norm"),
        accumulate=case.get("accumulate", 1),
        **options,
    )


def train(step, calls, dtype, implementation="native"):
    """Runs a step; returns the last state."""
    info = step.info
    session = bngrad.session(step.model, implementation)
    names = [value.name for value in session.get_outputs()]
    state = info.flatten(step.state) if info.layout == "flat" else dict(step.state)
    for call in range(calls):
        x, target, rate = batch(call, dtype)
        feeds = {"x": x, "target": target, info.learning_rate: np.array(rate, info.learning_rate_dtype)}
        feeds |= {info.flat.input: state} if info.layout == "flat" else state
        results = dict(zip(names, session.run(names, feeds), strict=True))
        new = {name: results[entry.new] for name, entry in info.state.items() if entry.new}
        state = results[info.flat.output] if info.layout == "flat" else new
    return info.unflatten(state) if info.layout == "flat" else state


@pairwise(name=list(CASES), dtype=["float32", "float64"], layout=["named", "flat"])
def test_hundred_updates_equal_those_of_torch(name, dtype, layout):
    case = CASES[name]
    state = train(step_of(case, dtype, layout=layout), UPDATES * case.get("accumulate", 1), dtype)
    assert state["step"] == UPDATES
    for weight, expected in TRAINED[name][dtype].items():
        assert state[weight].dtype == dtype
        np.testing.assert_allclose(state[weight], np.array(expected), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["function", "python"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["optimizer"].startswith("adam")])
def test_every_implementation_makes_the_updates_of_torch(name, implementation):
    """The updates of Adam are an op of ours."""
    case = CASES[name]
    step = step_of(case, "float32")
    assert [node.op_type for node in step.model.graph.node if node.domain == "bngrad"] == ["AdamUpdate"] * 4
    state = train(step, UPDATES * case.get("accumulate", 1), "float32", implementation)
    for weight, expected in TRAINED[name]["float32"].items():
        np.testing.assert_allclose(state[weight], np.array(expected), rtol=0, atol=TOLERANCE["float32"])


@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize("kind", [bngrad.Adam, bngrad.AdamW])
def test_weights_that_an_optimizer_got_later(kind, layout):
    """Their moments are corrected by their own updates: a first update has the size of the learning rate."""
    groups = [
        bngrad.ParameterGroup(names=["w1"], updates_behind=3),
        bngrad.ParameterGroup(names=["w1", "b1"], updates_behind=5, learning_rate_scale=2.0),
    ]
    options = {"optimizer": kind(weight_decay=0), "layout": layout}
    step = bngrad.training_step(network("float64"), groups=groups, **options)
    assert step.state["step"] == 5
    behind = {name: entry.updates_behind for name, entry in step.info.state.items()}
    assert {name for name in behind if behind[name] is not None} == {"w1", "b1"}
    assert (behind["w1"], behind["b1"]) == (3, 5)
    assert read_step_info({entry.key: entry.value for entry in step.model.metadata_props}) == step.info
    state = train(step, 1, "float64")
    rate = batch(0, "float64")[2]
    old = step.state
    updates = {name: np.abs(state[name] - old[name]).max() for name in ("w1", "b1", "w2")}
    counts = {"w1": 3, "b1": 1, "w2": 6}
    for name, count in counts.items():
        size = rate * (2 if name in ("w1", "b1") else 1) * 0.1 / (1 - 0.9**count)
        np.testing.assert_allclose(updates[name], size / np.sqrt(0.001 / (1 - 0.999**count)), rtol=1e-5)
    with pytest.raises(InputError, match="state 'step' counts 4 updates; expected 5 or more"):
        step.info.require_state({**old, "step": np.array(4)})


@pytest.mark.parametrize("name", CASES)
def test_no_update_has_a_scalar_and_an_array(name):
    """ONNX Runtime takes 50 times as long for those if the last dimension of the array is 1."""
    model = onnx.shape_inference.infer_shapes(step_of(CASES[name], "float32").model, data_prop=True)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    ranks |= {node.output[0]: node.attribute[0].t.dims for node in model.graph.node if node.op_type == "Constant"}
    ranks = {name: rank if isinstance(rank, int) else len(rank) for name, rank in ranks.items()}
    updates = [
        node
        for node in model.graph.node
        if node.name.startswith("bngrad_step") and node.op_type in ("Add", "Sub", "Mul", "Div", "Where")
    ]
    assert updates
    for node in updates:
        assert len({ranks[value] for value in node.input}) == 1, node


def test_every_optimizer_has_cases():
    assert {case["optimizer"] for case in CASES.values()} == set(OPTIMIZERS)


def test_every_case_moves_the_weights_of_its_own():
    ends = {name: np.concatenate([np.ravel(w) for w in TRAINED[name]["float64"].values()]) for name in CASES}
    for name, end in ends.items():
        others = [np.abs(end - other).max() for key, other in ends.items() if key != name]
        assert min(others) > 1e-4, name


REFUSALS = [
    (lambda: bngrad.SGD(momentum="0.9"), "SGD: momentum is '0.9'; expected a number"),
    (lambda: bngrad.Adam(eps=True), "Adam: eps is True; expected a number"),
    (lambda: step_of({"optimizer": "sgd", "clip_norm": "1"}, "float32"), "clip_norm is '1'; expected a number"),
    (lambda: bngrad.training_step(network("float32"), groups={"w1": 0}), "expected a sequence of ParameterGroup"),
    (lambda: bngrad.SGD(momentum=-0.1), "SGD: momentum is -0.1; expected a finite number, at least 0"),
    (
        lambda: bngrad.SGD(weight_decay=float("nan")),
        "SGD: weight_decay is nan; expected a finite number, at least 0",
    ),
    (lambda: bngrad.SGD(nesterov=True), "nesterov is true and momentum is 0"),
    (lambda: bngrad.Adam(beta1=1.0), "Adam: beta1 is 1.0; expected a number below 1, at least 0"),
    (lambda: bngrad.AdamW(eps=float("inf")), "AdamW: eps is inf"),
    (lambda: bngrad.RMSprop(alpha=1), "RMSprop: alpha is 1.0; expected a number below 1, at least 0"),
    (lambda: bngrad.RMSprop(momentum=-1), "RMSprop: momentum is -1.0; expected a finite number, at least 0"),
    (lambda: bngrad.Lion(beta2=1), "Lion: beta2 is 1.0; expected a number below 1, at least 0"),
    (lambda: bngrad.ParameterGroup(weight_decay=0), "selects no weights"),
    (lambda: bngrad.ParameterGroup(names="w1"), "names is the string 'w1'"),
    (lambda: bngrad.ParameterGroup(max_rank=1, learning_rate_scale=-1), "learning_rate_scale is -1"),
    (lambda: bngrad.ParameterGroup(max_rank=1, updates_behind=-1), "updates_behind is -1; expected an int, at"),
    (lambda: bngrad.ParameterGroup(max_rank=1, updates_behind=1.5), "updates_behind is 1.5"),
    (lambda: step_of({"optimizer": "sgd", "scales": {"w3*": 1.0}}, "float32"), "'w3*' is not a trainable weight"),
    (
        lambda: step_of({"optimizer": "sgd", "clip_norm": 0}, "float32"),
        "clip_norm is 0; expected a finite number above",
    ),
    (lambda: step_of({"optimizer": "sgd", "accumulate": 0}, "float32"), "accumulate is 0"),
    (
        lambda: bngrad.training_step(network("float32"), optimizer="lamb"),
        "optimizer is 'lamb'; expected one of sgd",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_wrong_options_are_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)


def trained(step, updates=3):
    """A trainer after some updates."""
    trainer = bngrad.Trainer(step, learning_rate=0.01)
    for call in range(updates):
        x, target, _ = batch(call, step.info.data["x"].dtype)
        trainer.step(x=x, target=target)
    return trainer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_goes_on_with_its_own_optimizer_alone(name, tmp_path):
    step = bngrad.training_step(network("float32"), optimizer=name, clip_norm=0.5, accumulate=2)
    trainer, path = trained(step), tmp_path / "state.safetensors"
    trainer.save(path)
    other = trained(step, 1)
    other.load(path)
    for key, value in trainer.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[key], value)
    decayed = OPTIMIZERS[name](weight_decay=0.3)
    step = bngrad.training_step(network("float32"), optimizer=decayed, clip_norm=0.5, accumulate=2)
    with pytest.raises(InputError, match=rf"it was made with {name} \(weight_decay 0.*\), the step has {name}"):
        trained(step, 0).load(path)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_synchronized_step_of_one_rank_is_the_same(name):
    states = [
        trained(bngrad.training_step(network("float32"), optimizer=name, sync=sync)).state_dict()
        for sync in (False, True)
    ]
    for key, value in states[0].items():
        np.testing.assert_allclose(states[1][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_half_precision_weights_is_float(name):
    step = bngrad.training_step(network("float16"), optimizer=name)
    assert {entry.dtype for key, entry in step.info.state.items() if key != "step"} == {"float32"}
    trainer = trained(step)
    inference = step.finalize(trainer.state_dict())
    assert {tensor.data_type for tensor in inference.graph.initializer} == {onnx.TensorProto.FLOAT16}
    for key in ("w1", "b2"):
        assert np.isfinite(trainer.state_dict()[key]).all()
        assert (trainer.state_dict()[key] != step.state[key]).any()


def test_a_negative_centered_moment_is_zero():
    """PyTorch's RMSprop makes NaN of it, and of the weight."""
    step = bngrad.training_step(network("float32"), optimizer=bngrad.RMSprop(centered=True, eps=1.0))
    trainer = trained(step, 1)
    state = trainer.state_dict()
    state |= {key: np.ones_like(value) for key, value in state.items() if key.endswith("/grad_avg")}
    state |= {key: np.zeros_like(value) for key, value in state.items() if key.endswith("/square_avg")}
    before = dict(state)
    trainer.load_state_dict(state)
    x, target, _ = batch(1, "float32")
    trainer.step(x=x, target=target)
    moved = {key: np.abs(trainer.state_dict()[key] - before[key]).max() for key in ("w1", "b1", "w2", "b2")}
    assert all(0 < size < 0.1 for size in moved.values())


def test_numbers_of_numpy_are_numbers():
    optimizer = bngrad.AdamW(beta1=np.float32(0.5), weight_decay=np.float64(0.25))
    step = bngrad.training_step(network("float32"), optimizer=optimizer, clip_norm=np.float32(2))
    assert (step.info.optimizer["beta1"], step.info.optimizer["weight_decay"], step.info.clip_norm) == (
        0.5,
        0.25,
        2,
    )


def test_half_precision_weights_are_updated_in_float():
    # One of these updates is less than half a unit in the last place of float16.
    step = step_of({"optimizer": "sgd"}, "float16")
    assert all(entry.dtype == "float32" for name, entry in step.info.state.items() if name != "step")
    session = bngrad.session(step.model)
    state = dict(step.state)
    x, target = np.ones((1, 3), np.float16), np.zeros((1, 2), np.float16)
    names = [value.name for value in session.get_outputs()]
    for _ in range(20):
        feeds = {"x": x, "target": target, "learning_rate": np.array(1e-5, np.float32), **state}
        results = dict(zip(names, session.run(names, feeds), strict=True))
        state = {name: results[entry.new] for name, entry in step.info.state.items()}
    moved = np.abs(state["b2"] - step.state["b2"])
    assert (moved > 0).all()
    assert (moved / 20 < np.spacing(np.abs(step.state["b2"]).astype(np.float16)) / 2).all()
    inference = step.finalize(state)
    types = {tensor.name: tensor.data_type for tensor in inference.graph.initializer}
    assert types["b2"] == onnx.TensorProto.FLOAT16
