"""Ghost batches: each group of samples is normalized by its own statistics, beside NumPy in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from bngrad.io.files import as_ir
from bngrad.oracle.preparation import prepare_forward
from statistics_cases import initializers

MOMENTUM, EPSILON, RATE, SIZE = 0.75, 0.125, 0.2, 4
TEXT = """<ir_version: 9, opset_import: ["" : 17]>
g (double[BATCH,3,LENGTH] x, double[BATCH,2,LENGTH] t) => (double loss, double[BATCH,2,LENGTH] y)
    <double[2] s = {1, 2}, double[2] b = {0.5, 0}, double[2] m = {0, 1}, double[2] v = {1, 2}> {
    h = MatMul (w, x)
    [bn] y = BatchNormalization <epsilon = 0.125, momentum = 0.75> (h, s, b, m, v)
    r = Relu (y)
    d = Sub (r, t)
    q = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (q)
}"""


def network(text=TEXT, *, batch="N", length="L"):
    model = onnx.parser.parse_model(text.replace("BATCH", batch).replace("LENGTH", length))
    weight = np.random.default_rng(1).standard_normal((2, 3))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def ghost(model, size=SIZE):
    return bngrad.edit_batch_norms(model, mode="training", ghost=size)


def batch(samples, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((samples, 3, 5)) + 2, "t": rng.standard_normal((samples, 2, 5))}


def numpy_step(state, data, *, unbiased, size=SIZE):
    """The loss, and the state after a step of SGD."""
    x, t = data["x"], data["t"]
    w, s, b = (state[name] for name in "wsb")
    column = (1, 2, 1)
    dh, ds, db, means, variances, loss = [], 0, 0, [], [], 0
    h = np.einsum("nil,oi->nol", x, w)
    for start in range(0, len(x), size):
        part, target = h[start : start + size], t[start : start + size]
        mean, var = part.mean((0, 2)), part.var((0, 2))
        inv_std = 1 / np.sqrt(var + EPSILON)
        xhat = (part - mean.reshape(column)) * inv_std.reshape(column)
        y = xhat * s.reshape(column) + b.reshape(column)
        difference = np.maximum(y, 0) - target
        loss += (difference**2).sum() / t.size
        dy = 2 * difference * (y > 0) / t.size
        ds, db = ds + (dy * xhat).sum((0, 2)), db + dy.sum((0, 2))
        centered = dy - dy.mean((0, 2), keepdims=True) - xhat * (dy * xhat).mean((0, 2), keepdims=True)
        dh.append(centered * (s * inv_std).reshape(column))
        count = part[:, 0].size
        means.append(mean)
        variances.append(var * count / (count - 1) if unbiased else var)
    dw = np.einsum("nol,nil->oi", np.concatenate(dh), x)
    new = {name: state[name] - RATE * gradient for name, gradient in zip("wsb", (dw, ds, db), strict=True)}
    for name, values in (("m", means), ("v", variances)):
        new[name] = MOMENTUM * state[name] + (1 - MOMENTUM) * np.mean(values, 0)
    return loss, new


@pytest.mark.parametrize("rule", ["biased", "unbiased"])
@pytest.mark.parametrize(("sizes", "length"), [("N", "L"), ("12", "5"), ("N", "5")])
def test_training_beside_numpy(rule, sizes, length):
    model = ghost(network(batch=sizes, length=length))
    step = bngrad.training_step(model, running_variance=rule, wrt=["w", "s", "b"])
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    state = {name: array.astype(np.float64) for name, array in initializers(network()).items()}
    for seed in range(4):
        data = batch(12, seed)
        loss, state = numpy_step(state, data, unbiased=rule == "unbiased")
        assert trainer.step(**data) == pytest.approx(loss, rel=1e-12)
    for name, expected in state.items():
        np.testing.assert_allclose(trainer.state_dict()[name], expected, rtol=1e-12, atol=1e-13)


def test_inference_is_ordinary():
    """It takes batches of any size, by the running statistics."""
    model = network()
    edited = ghost(model)
    trainer = bngrad.Trainer(bngrad.training_step(edited), learning_rate=0.1)
    data = batch(3)
    expected = bngrad.session(model).run(["y"], data)[0]
    np.testing.assert_allclose(trainer.evaluate(**data)["y"], expected, rtol=1e-12)
    np.testing.assert_allclose(
        bngrad.session(trainer.finalize()).run(["y"], {"x": data["x"]})[0], expected, rtol=1e-12
    )


def test_all_gradients_and_statistics():
    report = bngrad.validate(ghost(network()), batch_size=8, dims={"L": 3}, against="numeric")
    assert report.verdict == "passed"


CHAINED = TEXT.replace(
    "r = Relu (y)",
    "[bn2] z = BatchNormalization <epsilon = 0.125, momentum = 0.75> (y, s, b, m, v) r = Relu (z)",
)


def test_a_statistic_that_two_batch_norms_update():
    model = bngrad.edit_batch_norms(network(CHAINED), mode="training", ghost=2, batch_norms=["bn2"])
    trainer = bngrad.Trainer(
        bngrad.training_step(model, training=["bn"], shared_statistics="chain"), learning_rate=0
    )
    data, values = batch(6), initializers(network())
    h = np.einsum("nil,oi->nol", data["x"], values["w"])
    first = MOMENTUM * values["m"] + (1 - MOMENTUM) * h.mean((0, 2))
    trainer.step(**data)
    expected = MOMENTUM * first + (1 - MOMENTUM) * values["b"]  # the first output has mean b
    mean = trainer.info.batch_norms[1].mean
    np.testing.assert_allclose(trainer.state_dict()[mean], expected, rtol=1e-12)


def test_frozen_they_have_no_effect():
    model = bngrad.edit_batch_norms(network(), ghost=4)
    steps = [bngrad.training_step(graph, frozen=["*"]) for graph in (model, network())]
    first, second = (bngrad.Trainer(step, learning_rate=0.1) for step in steps)
    data = batch(3)
    assert first.step(**data) == second.step(**data)


def test_a_batch_that_is_no_multiple():
    trainer = bngrad.Trainer(bngrad.training_step(ghost(network())), learning_rate=0.1)
    with pytest.raises(InputError, match="cannot be reshaped to the requested shape"):
        trainer.step(**batch(6))
    with pytest.raises(
        ModelError, match=r"'bn' .* has ghost batches of 4 samples, which do not divide its batch of 6"
    ):
        bngrad.training_step(ghost(network(batch="6")))


def test_where_they_would_be_ignored(tmp_path):
    model = ghost(network())
    with pytest.raises(
        ModelError, match=r"which --sync \(sync=\) does not support; remove them with bngrad batchn"
    ):
        bngrad.training_step(model, sync=True)
    with pytest.raises(ModelError, match="has ghost batches of 4 samples, which rewrite does not support"):
        bngrad.rewrite(model)
    with pytest.raises(ModelError, match="which ONNX Runtime's gradient builder does not support"):
        prepare_forward(as_ir(model), "loss", ["w"])
    model.graph.node[1].metadata_props[0].value = "-4"
    with pytest.raises(ModelError, match=r"'bn' .* has ghost batches of '-4' samples; expected a number of 1 or"):
        bngrad.training_step(model)
    onnx.save(ghost(network()), tmp_path / "ghost.onnx")
    assert run(["batchnorm", str(tmp_path / "ghost.onnx"), "-o", str(tmp_path / "out.onnx"), "--ghost", "0"]) == 0
    assert not onnx.load(tmp_path / "out.onnx").graph.node[1].metadata_props
