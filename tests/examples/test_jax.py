"""docs/examples/jax: training a flax.nnx model in ONNX Runtime is training it in JAX.

The recorded networks need no JAX; the other tests export with jax2onnx.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import json_format

import bngrad
import page_examples
from digits_training import EXAMPLES
from examples.jax_batches import MOMENTUM, RATE, batches

RECORDED = json.loads(Path(__file__).with_name("jax_networks.json").read_text(encoding="utf-8"))
ROLES = ("weight", "running_statistic")

pytestmark = pytest.mark.filterwarnings("ignore:'.value' access is now deprecated:DeprecationWarning")
"""jax2onnx 0.17 uses it."""


@cache
def networks():
    """The module that makes the networks, where JAX is installed."""
    pytest.importorskip("jax2onnx", reason="needs flax and jax2onnx")
    from examples import jax_networks

    return jax_networks


def train(model):
    """Trains a model, and returns the losses, the trained state, and the logits in inference mode."""
    with_loss = any(value.name == "loss" for value in model.graph.output)
    step = bngrad.training_step(
        model,
        loss_fn=None if with_loss else "cross_entropy",
        optimizer=bngrad.SGD(momentum=MOMENTUM),
        shared_statistics="chain",
    )
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    dtype = step.info.data["labels"].dtype
    *training, (images, labels) = batches()
    losses = [trainer.step(images=x, labels=y.astype(dtype)) for x, y in training]
    state = {name: array for name, array in trainer.state_dict().items() if step.info.state[name].role in ROLES}
    return losses, state, trainer.evaluate(images=images, labels=labels.astype(dtype))["logits"]


def require_same(losses, state, logits, want):
    np.testing.assert_allclose(losses, want["losses"], rtol=1e-6)
    np.testing.assert_allclose(logits, want["logits"], rtol=0, atol=1e-6)
    for name, array in want["state"].items():
        np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_network(name):
    want = RECORDED[name]
    model = json_format.ParseDict(want["model"], onnx.ModelProto())
    losses, state, logits = train(model)
    frozen = {name: want["state"][name] for name in ("frozen.mean", "frozen.var") if name in want["state"]}
    assert state.keys() == want["state"].keys() - frozen.keys()
    require_same(losses, state | frozen, logits, want)


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDED)
def test_network_in_jax(name):
    jax = networks()
    from flax import nnx
    from nnx_onnx import load_into, variables

    network = jax.NETWORKS[name](nnx.Rngs(1))
    before = {name: np.asarray(variable[...]) for name, variable in variables(network).items()}
    losses, state, _ = train(jax.model_of(network))
    for key, variable in variables(network).items():
        np.testing.assert_array_equal(variable[...], before[key], err_msg="export changed the model")
    want = jax.train(nnx.clone(network))
    load_into(network, state)
    network.eval()
    images, labels = batches()[-1]
    logits = network(images, labels)[1] if name == "loss" else network(images)
    require_same(losses, {key: v[...] for key, v in variables(network).items()}, logits, want)


def batch_norm(rngs, **options):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(8, rngs=rngs, **options)

        def __call__(self, x):
            return self.norm(x)

    return Net()


def other_statistic(rngs):
    from flax import nnx

    return nnx.SpectralNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs)


def writing(rngs, change, layer=None, around=None):
    """A model whose call changes one of its variables."""
    import jax.numpy as jnp
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            self.layer = layer(rngs) if layer else nnx.Linear(1, 10, rngs=rngs)
            self.calls = nnx.Variable(jnp.ones(()))
            self.dropout = nnx.identity if around else nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            change(self)
            return self.dropout(self.layer(x)) / self.calls[...]

    class Around(nnx.Module):
        def __init__(self):
            self.net = Net()

        def __call__(self, x):
            return getattr(nnx, around)(lambda net, x: net(x))(self.net, x)

    return Around() if around else Net()


def count(net):
    net.calls[...] += 1


def limit(net):
    net.layer.kernel[...] = net.layer.kernel[...].clip(-1, 1)


def weight_norm(rngs):
    from flax import nnx

    return nnx.WeightNorm(nnx.Linear(1, 10, rngs=rngs), rngs=rngs)


@pytest.mark.parametrize("around", [None, "jit", "remat"])
def test_variables_that_stay(around):
    """nnx.jit and nnx.remat write all variables, most of them with the values that they had."""
    jax = networks()
    from flax import nnx

    model = jax.model_of(writing(nnx.Rngs(0), lambda _: None, around=around))
    assert {value.name.rpartition(".")[2] for value in model.graph.initializer} == {"bias", "kernel"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rngs: batch_norm(rngs, axis=1), "norm: BatchNorm has axis=1 and axis_name=None; expected -1"),
        (lambda rngs: batch_norm(rngs, axis_name="batch"), "norm: BatchNorm has axis=-1 and axis_name=batch"),
        (other_statistic, "is a BatchStat, but not of a BatchNorm"),
        (
            lambda rngs: writing(rngs, lambda _: None, weight_norm),
            "layer.layer_instance.kernel: the call writes this variable",
        ),
        (lambda rngs: writing(rngs, count), "calls: the call writes this variable, .* without storing it"),
        (lambda rngs: writing(rngs, limit, around="jit"), "net.layer.kernel: the call writes this variable"),
    ],
    ids=["axis", "several-devices", "spectral-norm", "weight-norm", "counter", "written-in-jit"],
)
def test_refuses(make, message):
    jax = networks()
    from flax import nnx

    with pytest.raises(ValueError, match=message):
        jax.model_of(make(nnx.Rngs(0)))


@pytest.mark.long
def test_guide(tmp_path):
    networks()
    page = EXAMPLES.parent / "guides" / "jax.md"
    paths = os.pathsep.join([str(EXAMPLES.parents[1]), str(EXAMPLES / "jax")])
    done = subprocess.run(
        [sys.executable, page_examples.__file__, page, tmp_path], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def three_steps(script):
    """The results of three steps that an example prints, in ONNX Runtime and in JAX."""
    networks()
    command = [sys.executable, EXAMPLES / "jax" / script, "--steps", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_example():
    got = three_steps("train.py")
    want = {"losses": got["losses_in_jax"], "state": got["state_in_jax"], "logits": got["logits_in_onnxruntime"]}
    require_same(got["losses"], got["state"], got["logits"], want)


@pytest.mark.long
def test_step_of_jax():
    """A training step of JAX and optax, whose batch norms are recognized."""
    got = three_steps("gradients.py")
    np.testing.assert_allclose(got["losses"], got["losses_in_jax"], rtol=1e-6)
    assert Counter(got["ops"]) == {"BatchNormalizationTraining": 2, "BatchNormalizationReluGrad": 2}
