"""Training steps in mixed precision: the same computation in float64, rounding in 16 bits, models and files."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.training.step_files import read_state_of_step
from bngrad.validation.float64 import Evaluator
from bngrad.validation.widening import to_float64, widened_array
from emulated_ranks import Ranks
from pairwise import every_value
from residual_network import batch, network
from sixteen_bits_on_cpu import rounding_session
from test_distribute import batch as distributed_batch
from test_distribute import network as distributed_network
from test_distribute import shards

ROUNDING = {"mixed": 2.0**-11, "mixed-bfloat16": 2.0**-8}
"""The unit roundoff of each mixed precision."""
OPTIMIZERS = {
    "momentum": {"optimizer": bngrad.SGD(momentum=0.9, weight_decay=1e-3)},
    "adamw": {"optimizer": bngrad.AdamW()},
    "clipped": {"clip_norm": 0.5},
    "accumulated": {"accumulate": 2, "clip_norm": 0.5},
    "flat": {"optimizer": "rmsprop", "layout": "flat"},
    "a gradient": {"outputs": ["w1_grad", "fb_grad", "logits"]},
}


def call(step, runner, state, feeds, rate=0.1):
    """The further outputs, the loss, and the next state of a call."""
    info = step.info
    feeds = feeds | {info.learning_rate: np.array(rate, np.float32)}
    feeds |= state if info.flat is None else {info.flat.input: info.flatten(state)}
    outputs = runner(feeds)
    if info.flat is None:
        return outputs, {name: outputs[entry.new] for name, entry in info.state.items()}
    return outputs, info.unflatten(outputs[info.flat.output].astype(info.flat.dtype))


def runner(session):
    names = [value.name for value in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def types_of(model):
    """The types of the values of a model."""
    result = ir.from_proto(model)
    InferTypesPass()(result)
    return {value.dtype for node in result.graph for value in node.outputs}


@every_value(precision=list(ROUNDING), case=list(OPTIMIZERS))
def test_in_float64_it_is_the_step_of_the_model(precision, case):
    """Without rounding, casts and the scale of the loss change nothing."""
    options = OPTIMIZERS[case]
    plain = bngrad.training_step(network(), **options)
    mixed = bngrad.training_step(network(), precision=precision, **options)
    assert {name: entry.dtype for name, entry in plain.info.state.items()}.items() <= {
        name: entry.dtype for name, entry in mixed.info.state.items()
    }.items()
    evaluators = [Evaluator(step.model) for step in (plain, mixed)]
    states = [plain.state, mixed.state]
    for index in range(2):
        expected, actual = (
            call(step, evaluator, state, batch(4, index))
            for step, evaluator, state in zip((plain, mixed), evaluators, states, strict=True)
        )
        for name in ("loss", *plain.info.outputs):
            np.testing.assert_allclose(actual[0][name], expected[0][name], rtol=1e-9, atol=1e-12, err_msg=name)
        for name, array in expected[1].items():
            np.testing.assert_allclose(actual[1][name], array, rtol=1e-6, atol=1e-9, err_msg=name)
        states = [expected[1], actual[1]]


@pytest.mark.parametrize("precision", ROUNDING)
def test_the_gradients_in_16_bits(precision):
    """They are those in float64 within the rounding of a few ops in a row."""
    names = [f"{name}_grad" for name in ("w1", "w2", "w3", "f", "fb", "s1", "b2")]
    step = bngrad.training_step(network(), precision=precision, outputs=names)
    feeds = batch(32)
    exact, _ = call(step, Evaluator(step.model), step.state, feeds)
    actual, _ = call(step, runner(rounding_session(step.model)), step.state, feeds)
    assert abs(actual["loss"] - exact["loss"]) < 4 * ROUNDING[precision]
    for name in names:
        error = np.linalg.norm(actual[name] - exact[name]) / np.linalg.norm(exact[name])
        # A rounded sign of a ReLU's input is an error of its whole gradient.
        assert ROUNDING[precision] / 64 < error < 4 * np.sqrt(ROUNDING[precision]), (name, error)


@pytest.mark.parametrize("precision", ROUNDING)
def test_the_loss_curve(precision):
    losses = {}
    for kind in ("model", precision):
        step = bngrad.training_step(network(), precision=kind, optimizer=bngrad.SGD(momentum=0.9))
        run_step, state, losses[kind] = runner(rounding_session(step.model)), step.state, []
        for index in range(30):
            outputs, state = call(step, run_step, state, batch(32, index), 0.05)
            losses[kind].append(float(outputs["loss"]))
    plain, mixed = (np.array(losses[kind]) for kind in ("model", precision))
    assert plain[-5:].mean() < 0.6 * plain[0]
    assert np.max(np.abs(mixed - plain)) < 16 * ROUNDING[precision]
    assert not np.array_equal(mixed, plain)


def test_the_types():
    """The state and the evaluation graph have those of the model."""
    step = bngrad.training_step(network(), precision="mixed")
    assert {entry.dtype for entry in step.info.state.values()} == {"float32", "int64"}
    assert ir.DataType.FLOAT16 in types_of(step.model)
    assert ir.DataType.FLOAT16 not in types_of(step.evaluation)


def test_the_inference_model_is_that_of_the_model():
    trainer = bngrad.Trainer(bngrad.training_step(network(), precision="mixed"), learning_rate=0.1)
    trainer.step(**batch())
    model = trainer.finalize()
    assert "Cast" not in {node.op_type for node in model.graph.node}
    (logits,) = bngrad.session(model).run(None, {"x": batch()["x"]})
    np.testing.assert_allclose(logits, trainer.evaluate(**batch())["logits"], rtol=1e-5, atol=1e-6)


def test_ranks_compute_the_step_of_the_whole_batch():
    """In float64, with batch norms over two ranks."""
    plain, mixed = (
        bngrad.training_step(distributed_network(dtype="float"), clip_norm=0.5, **options)
        for options in ({}, {"precision": "mixed", "sync": True})
    )
    feeds = distributed_batch() | {"learning_rate": np.array(0.5)}
    expected = Evaluator(plain.model)(feeds | plain.state)
    state = {name: widened_array(array) for name, array in mixed.state.items()}
    for actual in Ranks(2).run(to_float64(mixed.model), shards(feeds | state, [5, 2])):
        for name, entry in plain.info.state.items():
            new = actual[mixed.info.state[name].new]
            np.testing.assert_allclose(new, expected[entry.new], rtol=1e-12, atol=1e-14, err_msg=name)


REFUSED = {
    "init_scale is 8, but the precision is model": {"init_scale": 8},
    "growth_interval is 5, but the precision is mixed-bfloat16": {
        "growth_interval": 5,
        "precision": "mixed-bfloat16",
    },
    r"init_scale is 0\.0; expected a number from 2\^-24 to 2\^126": {"init_scale": 0.0, "precision": "mixed"},
    "growth_interval is 0; expected a number of calls": {"growth_interval": 0, "precision": "mixed"},
    "precision is 'half'; expected": {"precision": "half"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_options(message):
    with pytest.raises(InputError, match=message):
        bngrad.training_step(network(), **REFUSED[message])


def test_a_model_in_another_type_is_refused():
    message = "no node in float32 that mixed precision computes in float16: Conv, ConvTranspose, Gemm, MatMul; exp"
    with pytest.raises(ModelError, match=message):
        bngrad.training_step(distributed_network(), precision="mixed")


FORMS = {
    "the loss is a product": ("loss = MatMul (x, w)", "float[4] x", "float[4] w = {1, 2, 3, 4}", {}),
    "a loss of one dimension": ("loss = MatMul (x, w)", "float[1,4] x", "float[4] w = {1, 2, 3, 4}", {}),
    "outputs": (
        "y = MatMul (x, w) z = Relu (y) loss = ReduceMean <keepdims = 0> (z)",
        "float[4,4] x",
        "float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        {"outputs": ["y", "z"]},
    ),
    "pools": (
        """y = Conv (x, w) a = AveragePool <kernel_shape = [2, 2]> (y) b = GlobalMaxPool (a) c = Flatten (b)
        q = Mul (c, c) loss = ReduceMean <keepdims = 0> (q)""",
        "float[2,1,5,5] x",
        "float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        {},
    ),
    "a weight of two products": (
        """y = MatMul (x, w) t = Transpose (w) z = MatMul (y, t) q = Mul (z, z)
        loss = ReduceMean <keepdims = 0> (q)""",
        "float[3,4] x",
        "float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        {},
    ),
    "bounds": (
        """y = Gemm (x, w, b) z = Clip (y, low, high) p = Pad (z, pads, low)
        loss = ReduceMean <keepdims = 0> (p)""",
        "float[3,4] x",
        """float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}, float low = {0}, float high = {16.5},
        int64[4] pads = {0, 1, 0, 1}""",
        {},
    ),
}


@every_value(precision=list(ROUNDING), case=list(FORMS))
def test_forms_of_models(precision, case):
    """Names, types and shapes stay; in float64 the results do."""
    body, data, weights, options = FORMS[case]
    shape = {"a loss of one dimension": "[1]"}.get(case, "")
    kept = ", float[4,2] y, float[4,2] z" if options else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g ({data}) => (float{shape} loss{kept}) <{weights}>
        {{ {body} }}"""
    )
    plain = bngrad.training_step(model, **options)
    mixed = bngrad.training_step(model, precision=precision, **options)
    assert mixed.info.loss == plain.info.loss == "loss"
    assert mixed.info.outputs[: len(plain.info.outputs)] == plain.info.outputs
    shapes = [dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(0).random(shapes).astype(np.float32)}
    expected, actual = (call(step, Evaluator(step.model), step.state, feeds)[0] for step in (plain, mixed))
    for name in ("loss", *plain.info.outputs, plain.info.state["w"].new):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-9, err_msg=name)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "model.onnx")
    np.savez("data.npz", **batch(64))
    assert run(["step", "model.onnx", "-o", "step.onnx", "--precision", "mixed", "--init-scale", "1024"]) == 0
    command = [
        "train",
        "step.onnx",
        "--data",
        "data.npz",
        "--learning-rate",
        "0.1",
        "--epochs",
        "2",
        "-o",
        "out.onnx",
    ]
    assert run(command) == 0
    assert bngrad.read_training_step("step.onnx").state["scaler/scale"] == 1024
    capsys.readouterr()
    assert run(["step", "model.onnx", "-o", "other.onnx", "--precision", "mixed-bfloat16"]) == 2
    message = capsys.readouterr().err
    assert message.endswith("; or give --precision mixed, which the CPU runs in float16\n")
    assert "has no CPU kernel of" in message
    assert message.count("\n") == 1


def test_files_of_a_state(tmp_path, monkeypatch):
    """The command finalize reads a state of mixed precision; one of another precision is refused."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "model.onnx")
    trainers = {
        kind: bngrad.Trainer(bngrad.training_step(network(), precision=kind), learning_rate=0.1)
        for kind in ("model", "mixed")
    }
    for kind, trainer in trainers.items():
        trainer.step(**batch())
        trainer.save(f"{kind}.safetensors")
    assert run(["finalize", "model.onnx", "--weights", "mixed.safetensors", "-o", "out.onnx"]) == 0
    (logits,) = bngrad.session("out.onnx").run(None, {"x": batch()["x"]})
    np.testing.assert_allclose(logits, trainers["mixed"].evaluate(**batch())["logits"], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="state of another model or optimizer than the step: the state lacks"):
        trainers["mixed"].load("model.safetensors")
    origin = bngrad.training_step(network(), precision="mixed-bfloat16").info
    with pytest.raises(InputError, match="trained in another way: other parameter groups, another precision"):
        read_state_of_step("model.safetensors", origin)
