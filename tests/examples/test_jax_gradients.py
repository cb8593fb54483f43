"""Functions that change gradients in JAX: taken over, or refused by docs/examples/jax/known_gradients.py."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import bngrad
from digits_training import EXAMPLES

jax = pytest.importorskip("jax", reason="needs JAX and jax2onnx")
pytest.importorskip("jax2onnx", reason="needs JAX and jax2onnx")
sys.path.insert(0, str(EXAMPLES / "jax"))

import jax.numpy as jnp  # noqa: E402
from known_gradients import to_onnx  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:'.value' access is now deprecated:DeprecationWarning")

stop = jax.lax.stop_gradient
CELU, RELU, RELU6, SOFTPLUS = jax.nn.celu, jax.nn.relu, jax.nn.relu6, jax.nn.softplus
"""By reference, as a module holds it: jax2onnx replaces the function of the module `jax.nn` alone."""


@jax.custom_vjp
def reverse(h):
    return h


reverse.defvjp(lambda h: (h, None), lambda _, d: (-d,))


@jax.custom_jvp
def doubled_slope(h):
    return jnp.sin(h)


doubled_slope.defjvp(lambda primals, tangents: (doubled_slope(*primals), 2 * tangents[0]))


@jax.custom_gradient
def clipped(h):
    return h, lambda d: jnp.clip(d, -0.1, 0.1)


def bends_at(h):
    """0, 6 and h in the three columns, with h's gradient."""
    return h - stop(h) + jnp.float32([0, 6, 0]) + jnp.float32([0, 0, 1]) * stop(h)


def jitted_slice(h):
    """Builds the jitted function anew: jax2onnx replaces functions of JAX while it traces."""
    return jax.jit(lambda v: jax.lax.dynamic_slice_in_dim(v, jnp.sum(v > -9), 4) ** 2)(h)


def prelu(h):
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    return nnx.PReLU()(bends_at(h))


EQUALS = jnp.float32([0, 6, 1])
"""Equal to `bends_at` in the first two columns."""

TAKEN_OVER = {
    "stop-gradient": lambda h: h * h + stop(h),
    "straight-through": lambda h: h + stop(jnp.round(h) - h),
    "stop-in-jit": lambda h: h * jax.jit(lambda v: stop(jnp.exp(v)))(h),
    "stop-in-checkpoint": jax.checkpoint(lambda h: stop(jnp.exp(h)) * h),
    "stop-of-a-tree": lambda h: h * stop({"a": h, "b": h * 3})["b"],
    "stop-in-vmap": jax.vmap(lambda row: row * stop(row.sum())),
    "checkpoint": jax.checkpoint(lambda h: jnp.tanh(h) * h),
    "optimization-barrier": lambda h: jax.lax.optimization_barrier(h) * h,
    "round-and-sign": lambda h: h + jnp.round(h) + jnp.sign(h) + (h > 0) * h,
    "cast-to-integers": lambda h: h + h.astype(jnp.int32).astype(jnp.float32),
    "cast-to-bfloat16": lambda h: h * h.astype(jnp.bfloat16).astype(jnp.float32),
    "whole-precision": lambda h: h * jax.lax.reduce_precision(h, 8, 23),
    "relu": lambda h: jax.nn.relu(bends_at(h)),
    "relu-by-reference": lambda h: RELU(bends_at(h)),
    "relu6": lambda h: jax.nn.relu6(bends_at(h)),
    "softplus": lambda h: jax.nn.softplus(bends_at(h)),
    "softplus-by-reference": lambda h: SOFTPLUS(bends_at(h)),
    "leaky-relu": lambda h: jax.nn.leaky_relu(bends_at(h), 0.3),
    "prelu": prelu,
    "logaddexp": lambda h: jnp.logaddexp(bends_at(h), EQUALS),
    "logaddexp-of-the-other": jax.jit(lambda h: jnp.logaddexp(EQUALS, bends_at(h))),
    "logaddexp-by-hand": lambda h: (
        jnp.maximum(bends_at(h), EQUALS) + jnp.log1p(jnp.exp(-jnp.abs(bends_at(h) - EQUALS)))
    ),
    "hard-sigmoid": lambda h: jax.nn.hard_sigmoid(bends_at(h) - 3),
    "hard-swish": lambda h: jax.nn.hard_swish(bends_at(h) - 3),
    "hard-tanh": lambda h: jax.nn.hard_tanh(bends_at(h) / 3 - 1),
    "celu": lambda h: jax.nn.celu(bends_at(h), 0.5),
    "celu-by-reference": lambda h: CELU(bends_at(h), 0.5),
    "relu6-by-reference": lambda h: RELU6(bends_at(h)),
    "elu": lambda h: jax.nn.elu(bends_at(h), 2.0),
    "clamp": jax.vmap(lambda h: jax.lax.clamp(jnp.float32([0, -9, 0]), bends_at(h), jnp.float32([9, 6, 9]))),
    "maximum-of-0": lambda h: jnp.maximum(bends_at(h), 0.0) * h,
    "minimum-of-maximum": lambda h: jnp.minimum(jnp.maximum(bends_at(h), 0.0), 6.0) * h,
    "sum-of-sizes": lambda h: h * jnp.linalg.norm(bends_at(h), 1, axis=1, keepdims=True),
    "maximum": lambda h: jnp.maximum(bends_at(h), EQUALS),
    "clip": lambda h: jnp.clip(bends_at(h), 0, 6),
    "abs": lambda h: jnp.abs(bends_at(h)),
    "max-of-equals": lambda h: jnp.max(bends_at(jnp.round(h) + h - stop(h)), axis=0) * h,
    "softmax": lambda h: jax.nn.softmax(h) * h,
    "logsumexp": lambda h: h - jax.nn.logsumexp(h, axis=-1, keepdims=True),
    "updates-of-a-row": lambda h: 2 * jnp.zeros((4, 3)).at[jnp.int32([0, 1, 1, 2, 3, 3])].set(h),
    "updates-of-a-column": lambda h: h.at[:, jnp.int32([0, 0])].set(h[:, 1:] * 2),
    "updates-by-data": lambda h: jnp.ones((3, 3)).at[(h[:, 0] > 0).astype(jnp.int32)].set(h),
    "updates-beyond-the-end": lambda h: 2 * jnp.ones((4, 3)).at[jnp.int32([0, 9, 1, -1, 3, 9])].set(h),
    "updates-that-add": lambda h: h.at[jnp.int32([0, 1, 1, 2, 3, 3])].add(h * h),
    "update-of-a-slice": lambda h: jax.lax.dynamic_update_slice(h, h[:2] * 2, (5, 0)),
    "update-before-the-start": lambda h: jax.lax.dynamic_update_slice(h, h[:2] * 2, (-9, 0)),
    "slice-beyond-the-end": lambda h: jax.lax.dynamic_slice(h, (5, 0), (4, 2)) ** 2,
    "slice-before-the-start": lambda h: jax.lax.dynamic_slice(h, (jnp.sum(h > -9) - 99, 0), (4, 2)) ** 2,
    "slice-in-jit": jitted_slice,
    "row-beyond-the-end": lambda h: jax.lax.dynamic_index_in_dim(h, jnp.sum(h > -9)) ** 2,
    "one-hot": lambda h: h * jax.nn.one_hot(jnp.int32([0, 2, -1, 3, -9, 1]), 3),
    "cumulative-maximum": lambda h: jnp.max(
        jnp.where(jnp.tri(3, dtype=bool), jnp.round(h)[:, None] + h[:, None] - stop(h[:, None]), -jnp.inf), axis=-1
    ),
    "gradient-penalty": lambda h: h * jax.grad(lambda v: jnp.sum(jnp.tanh(v) ** 2))(h),
}
REFUSED = {
    "custom-vjp": (
        lambda h: reverse(h) * h,
        "custom_vjp_call of reverse at .*drops gradients that are defined by",
    ),
    "custom-jvp": (lambda h: doubled_slope(h) * h, "custom_jvp_call of doubled_slope at"),
    "custom-gradient": (lambda h: clipped(h) * h, "custom_vjp_call of "),
    "custom-vjp-in-jit": (lambda h: jax.jit(reverse)(h) * h, "custom_vjp_call of reverse"),
    "custom-jvp-of-jax": (jnp.sinc, "custom_jvp_call of _sinc"),
    "reduce-precision": (lambda h: jax.lax.reduce_precision(h, 5, 10), "reduce_precision: .* whose gradient is 0"),
    "fewer-mantissa-bits": (jax.jit(lambda v: jax.lax.reduce_precision(v, 8, 7)), "cast to jnp.bfl"),
    "fewer-exponent-bits": (jax.vmap(lambda v: jax.lax.reduce_precision(v, 5, 23)), "reduce_precision"),
    "stop-beside-a-copy": (
        lambda h: jnp.array(h, copy=True) * stop(h),
        "stop_gradient is lost: .* remove the copy",
    ),
}
X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
SHAPES = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (X, W)]


def export(function):
    def loss(x, w):
        return jnp.mean((function(x @ w) - 1) ** 2)

    return loss, to_onnx(loss, SHAPES, input_names=["x", "w"])


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_taken_over(name):
    loss, model = export(TAKEN_OVER[name])
    want = jax.value_and_grad(loss, argnums=1)(X, W)
    graph = bngrad.differentiate(model, wrt=["w"])
    got = bngrad.session(graph).run([model.graph.output[0].name, "w_grad"], {"x": X, "w": W})
    for actual, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        export(function)


@pytest.mark.parametrize("function", [jax.lax.cummax, jax.lax.cummin])
def test_cumulative_extremes_are_refused(function):
    """JAX splits ties in the order of its scan, and jax2onnx writes a MaxPool."""
    _, model = export(lambda h: function(h, axis=1) * stop(function(h, reverse=True)))
    with pytest.raises(bngrad.UnsupportedNodeError, match=r"it is jax\.lax\.cummax or cummin, .*jnp\.tri"):
        bngrad.differentiate(model, wrt=["w"])
    _, model = export(lambda h: h * stop(function(h)))
    bngrad.differentiate(model, wrt=["w"])


@pytest.mark.parametrize("activation", [reverse, stop])
def test_a_flax_model(activation):
    """The export of a flax model is as exact: a custom gradient is refused, a stop is taken over."""
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    from nnx_onnx import export as export_nnx

    class Net(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(5, 3, use_bias=False, rngs=nnx.Rngs(0))

        def __call__(self, x):
            h = self.linear(x)
            return jnp.mean(activation(h) * h)

    inputs = {"outputs": ["loss"], "x": SHAPES[0]}
    if activation is reverse:
        with pytest.raises(ValueError, match="custom_vjp_call of reverse"):
            export_nnx(Net(), **inputs)
        return
    net = Net()
    (got,) = bngrad.session(bngrad.differentiate(export_nnx(net, **inputs))).run(["linear.kernel_grad"], {"x": X})
    want = nnx.grad(lambda net: net(jnp.asarray(X)))(net)
    np.testing.assert_allclose(got, want["linear"]["kernel"][...], rtol=1e-5, atol=1e-6)


def test_a_stop_that_is_an_output():
    """The name of the output takes the place of the record."""

    def loss(x, w):
        target = stop(x @ w)
        return jnp.mean(target * (x @ w)), target

    with pytest.raises(ValueError, match=r"stop_gradient is lost: .* its result is an output"):
        to_onnx(loss, SHAPES, output_names=["loss", "target"])


def test_plain_export_is_warned_of():
    from jax2onnx import to_onnx as plain

    model = plain(lambda x, w: jnp.mean(reverse(x @ w) ** 2), SHAPES)
    with pytest.warns(bngrad.BngradWarning, match=r"jax2onnx does not record custom gradients \(jax.custom_vjp"):
        bngrad.differentiate(model, wrt=[model.graph.input[1].name])
