"""Networks of JAX and flax whose gradients, by `jax.value_and_grad`, spell batch norm in primitives.

    python tests/passes/decomposed/jax_graphs.py FOLDER [NAME ...]

writes NAME.onnx, as jax2onnx made it, and NAME.npz, the inputs and what JAX computes of them, of each network.
Each is a function of weights and data that returns {"loss": ..., "grad": {weight: gradient}}, and those of flax
also "new", the running statistics. Names that end in _n have a symbolic batch size; in those that begin with not_
there is no batch norm.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from flax import linen, nnx

sys.path.insert(0, str(Path(__file__).parents[3] / "docs/examples/jax"))
from gradients_onnx import export

NETWORKS = {}
"""(function of (weights, data), weights, data) by name."""

EPSILON = 1e-5


def rng_arrays(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def network(weights, data):
    """Adds the gradient of the decorated loss(weights, data) to the table, under its name."""
    return lambda loss: add(loss.__name__, loss, weights, data)


def add(name, loss, weights, data):
    def step(weights, data):
        value, grad = jax.value_and_grad(loss)(weights, data)
        return {"loss": value, "grad": grad}

    NETWORKS[name if name.startswith("not_") else f"jax_{name}"] = step, weights, data


# Batch norms in jax.numpy


def axes_of(x):
    return tuple(range(x.ndim - 1))


def centered(x, scale, bias):
    mean = x.mean(axes_of(x))
    variance = jnp.square(x - mean).mean(axes_of(x))
    return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * scale + bias


def fast(x, scale, bias):
    mean = x.mean(axes_of(x))
    variance = (x * x).mean(axes_of(x)) - mean**2
    return (x - mean) / jnp.sqrt(variance + EPSILON) * scale + bias


def with_var(x, scale, bias):
    mean, variance = jnp.mean(x, axes_of(x), keepdims=True), jnp.var(x, axes_of(x), keepdims=True)
    return scale * (x - mean) / jnp.sqrt(variance + EPSILON) + bias


def affine(x, scale, bias):
    """As tf.nn.batch_normalization computes it."""
    mean, variance = jnp.mean(x, axes_of(x)), jnp.var(x, axes_of(x))
    inverse = jax.lax.rsqrt(variance + EPSILON) * scale
    return x * inverse + (bias - mean * inverse)


def standardized(x, scale, bias):
    return jax.nn.standardize(x, axis=axes_of(x), epsilon=EPSILON) * scale + bias


def nchw(x, scale, bias):
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - mean) * (variance + EPSILON) ** -0.5 * scale[:, None, None] + bias[:, None, None]


@jax.custom_vjp
def expanded(x, scale, bias):
    """With the backward pass of XLA's BatchNormExpander."""
    return centered(x, scale, bias)


def expanded_forward(x, scale, bias):
    return centered(x, scale, bias), (x, scale, x.mean(axes_of(x)), x.var(axes_of(x)))


def expanded_backward(residuals, dy):
    x, scale, mean, variance = residuals
    axes, count = axes_of(x), x.size / x.shape[-1]
    inv_std = jax.lax.rsqrt(variance + EPSILON)
    dbias = dy.sum(axes)
    centred = x - mean
    products = (dy * centred).sum(axes)
    dx = (scale * jax.lax.rsqrt(variance + EPSILON) / count) * (
        count * dy - dbias - centred * (products / (variance + EPSILON))
    )
    return dx, products * inv_std, dbias


expanded.defvjp(expanded_forward, expanded_backward)


def conv(x, kernel, strides=(1, 1), groups=1, layout="NHWC"):
    return jax.lax.conv_general_dilated(
        x, kernel, strides, "SAME", dimension_numbers=(layout, "HWIO", layout), feature_group_count=groups
    )


def mse(y, data):
    return jnp.square(y - data["t"]).mean()


DENSE = rng_arrays(0, w1=(5, 4), g1=4, b1=4, w2=(4, 6), g2=6, b2=6, w3=(6, 3))
DENSE_DATA = rng_arrays(1, x=(8, 5), t=(8, 3))
SMALL = {key: DENSE[key] for key in ("w1", "g1", "b1")} | rng_arrays(1, w3=(4, 3))
CONV = rng_arrays(2, k1=(3, 3, 2, 4), g1=4, b1=4, k2=(3, 3, 4, 5), g2=5, b2=5, w=(5, 3))
CONV_DATA = rng_arrays(3, x=(4, 6, 6, 2), t=(4, 3))


def dense_network(norm, activation=jax.nn.relu):
    def loss(p, d):
        h = activation(norm(d["x"] @ p["w1"], p["g1"], p["b1"]))
        h = activation(norm(h @ p["w2"], p["g2"], p["b2"]))
        return mse(h @ p["w3"], d)

    return loss


def conv_network(norm):
    def loss(p, d):
        h = jax.nn.relu(norm(conv(d["x"], p["k1"]), p["g1"], p["b1"]))
        h = jax.nn.relu(norm(conv(h, p["k2"], (2, 2)), p["g2"], p["b2"]))
        return mse(h.mean((1, 2)) @ p["w"], d)

    return loss


def small_network(norm):
    def loss(p, d):
        return mse(jax.nn.relu(norm(d["x"] @ p["w1"], p["g1"], p["b1"])) @ p["w3"], d)

    return loss


NORMS = {
    "centered": centered,
    "fast": fast,
    "with_var": with_var,
    "affine": affine,
    "standardized": standardized,
    "expanded": expanded,
}
for batch in ("", "_n"):
    for key, norm in NORMS.items():
        add(f"{key}{batch}", small_network(norm), SMALL, DENSE_DATA)
        add(f"dense_{key}{batch}", dense_network(norm), DENSE, DENSE_DATA)
        add(f"conv_{key}{batch}", conv_network(norm), CONV, CONV_DATA)
add("dense_silu", dense_network(with_var, jax.nn.silu), DENSE, DENSE_DATA)
add("dense_tanh", dense_network(fast, jnp.tanh), DENSE, DENSE_DATA)
add("dense_gelu", dense_network(with_var, jax.nn.gelu), DENSE, DENSE_DATA)
add("dense_remat", dense_network(jax.checkpoint(with_var)), DENSE, DENSE_DATA)
add("dense_jit", dense_network(jax.jit(with_var)), DENSE, DENSE_DATA)


@network(DENSE, DENSE_DATA)
def unbiased(p, d):
    """Divided by N - 1, which is a batch norm with another epsilon and scale."""

    def norm(x, scale, bias):
        return scale * (x - x.mean(0)) / jnp.sqrt(x.var(0, ddof=1) + EPSILON) + bias

    return dense_network(norm)(p, d)


@network(CONV, {"x": CONV_DATA["x"].transpose(0, 3, 1, 2), "t": CONV_DATA["t"]})
def conv_nchw(p, d):
    h = jax.nn.relu(nchw(conv(d["x"], p["k1"], layout="NCHW"), p["g1"], p["b1"]))
    h = jax.nn.relu(nchw(conv(h, p["k2"], (2, 2), layout="NCHW"), p["g2"], p["b2"]))
    return mse(h.mean((2, 3)) @ p["w"], d)


@network(
    rng_arrays(4, k1=(1, 1, 3, 6), g1=6, b1=6, k2=(3, 3, 1, 6), g2=6, b2=6, k3=(1, 1, 6, 3), g3=3, b3=3, w=(3, 3)),
    rng_arrays(5, x=(4, 5, 5, 3), t=(4, 3)),
)
def mobilenet_block(p, d):
    """An inverted residual: 1x1, depthwise, 1x1 without an activation, and the sum with what came in."""
    relu6 = jax.nn.relu6
    h = relu6(with_var(conv(d["x"], p["k1"]), p["g1"], p["b1"]))
    h = relu6(with_var(conv(h, p["k2"], groups=6), p["g2"], p["b2"]))
    h = d["x"] + with_var(conv(h, p["k3"]), p["g3"], p["b3"])
    return mse(h.mean((1, 2)) @ p["w"], d)


@network(
    rng_arrays(6, k1=(3, 3, 2, 4), g1=4, b1=4, k2=(3, 3, 4, 4), g2=4, b2=4, k3=(3, 3, 4, 4), g3=4, b3=4, w=(4, 3)),
    rng_arrays(7, x=(4, 5, 5, 2), t=(4, 3)),
)
def resnet_block(p, d):
    """A basic block: the second batch norm of it without an activation, before the sum."""
    h = skip = jax.nn.relu(centered(conv(d["x"], p["k1"]), p["g1"], p["b1"]))
    h = jax.nn.relu(centered(conv(h, p["k2"]), p["g2"], p["b2"]))
    h = jax.nn.relu(centered(conv(h, p["k3"]), p["g3"], p["b3"]) + skip)
    return mse(h.mean((1, 2)) @ p["w"], d)


@network(
    rng_arrays(8, w1=(5, 4), g1=4, b1=4, w2=(4, 4), g2=4, b2=4, w3=(4, 3)), rng_arrays(9, x=(4, 7, 5), t=(4, 3))
)
def sequence(p, d):
    """[N, T, C]: products by Einsum."""
    h = jax.nn.relu(with_var(d["x"] @ p["w1"], p["g1"], p["b1"]))
    h = h + jax.nn.relu(with_var(h @ p["w2"], p["g2"], p["b2"]))
    return mse(h.mean(1) @ p["w3"], d)


@network(rng_arrays(8, w1=(3, 4), g1=4, b1=4, w2=(4, 3)), rng_arrays(9, x=(2, 3, 2, 4, 3), t=(2, 3, 2, 4, 3)))
def rank_5(p, d):
    return mse(jax.nn.relu(fast(d["x"] @ p["w1"], p["g1"], p["b1"])) @ p["w2"], d)


@network(rng_arrays(8, g1=5, b1=5, w=(5, 3)), DENSE_DATA)
def of_the_input(p, d):
    """A batch norm of the data, whose gradient is not needed: only those of scale and bias."""
    return mse(jax.nn.relu(with_var(d["x"], p["g1"], p["b1"])) @ p["w"], d)


@network(rng_arrays(8, w1=(5, 4), w2=(4, 3)), DENSE_DATA)
def without_scale_and_bias(p, d):
    return mse(jnp.tanh(jax.nn.standardize(d["x"] @ p["w1"], axis=0, epsilon=EPSILON)) @ p["w2"], d)


@network(rng_arrays(8, w1=(5, 4), g1=4, w2=(4, 3)), DENSE_DATA)
def without_bias(p, d):
    return mse(jnp.tanh(with_var(d["x"] @ p["w1"], p["g1"], 0.0)) @ p["w2"], d)


@network(rng_arrays(8, w1=(5, 4), b1=4, w2=(4, 3)), DENSE_DATA)
def without_scale(p, d):
    return mse(jnp.tanh(with_var(d["x"] @ p["w1"], 1.0, p["b1"])) @ p["w2"], d)


@network(
    rng_arrays(8, w1=(5, 4), g1=4, b1=4, w2=(4, 3)),
    {**DENSE_DATA, "mean": np.zeros(4, np.float32), "variance": np.ones(4, np.float32)},
)
def frozen(p, d):
    """With running statistics."""
    x = d["x"] @ p["w1"]
    h = (x - d["mean"]) * jax.lax.rsqrt(d["variance"] + EPSILON) * p["g1"] + p["b1"]
    return mse(jax.nn.relu(h) @ p["w2"], d)


@network(rng_arrays(8, w1=(5, 4), g1=4, b1=4, w2=(4, 3)), {**DENSE_DATA, "variance": np.ones(4, np.float32)})
def stopped_statistics(p, d):
    """The statistics of the batch, but as constants of the gradient: not the gradient of a batch norm."""
    x = d["x"] @ p["w1"]
    mean, variance = jax.lax.stop_gradient((x.mean(0), x.var(0)))
    h = (x - mean) * jax.lax.rsqrt(variance + EPSILON) * p["g1"] + p["b1"]
    return mse(jax.nn.relu(h) @ p["w2"], d)


@network(DENSE, DENSE_DATA)
def gradient_penalty(p, d):
    """Second order: the gradient of a gradient's norm."""
    inner = dense_network(with_var, jnp.tanh)
    dx = jax.grad(lambda x: inner(p, {**d, "x": x}))(d["x"])
    return inner(p, d) + jnp.square(dx).sum()


# flax


def flax_nnx(name, model, data, *, frozen=False):
    """Adds the gradient of a flax.nnx model, and its running statistics."""
    graph, params, stats, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    weights = {"weights": nnx.to_pure_dict(params), "stats": nnx.to_pure_dict(stats)}

    def step(state, data):
        def loss(weights):
            for part, values in ((params, weights), (stats, state["stats"])):
                nnx.replace_by_pure_dict(part, values)
            copy = nnx.merge(graph, params, stats, rest)
            value = mse(copy(data["x"]), data)
            return value, nnx.to_pure_dict(nnx.state(copy, nnx.BatchStat))

        (value, new), grad = jax.value_and_grad(loss, has_aux=True)(state["weights"])
        return {"loss": value, "grad": grad} | ({} if frozen else {"new": new})

    NETWORKS[name] = step, weights, data


class Dense(nnx.Module):
    def __init__(self, **options):
        rngs = nnx.Rngs(0)
        self.linear1 = nnx.Linear(5, 4, rngs=rngs)
        self.bn1 = nnx.BatchNorm(4, rngs=rngs, **options)
        self.linear2 = nnx.Linear(4, 6, rngs=rngs)
        self.bn2 = nnx.BatchNorm(6, rngs=rngs, **options)
        self.linear3 = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.linear1(x)))
        return self.linear3(nnx.relu(self.bn2(self.linear2(x))))


class Conv(nnx.Module):
    def __init__(self, norm=nnx.BatchNorm, **options):
        rngs = nnx.Rngs(0)
        self.conv1 = nnx.Conv(2, 4, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = norm(4, rngs=rngs, **options)
        self.conv2 = nnx.Conv(4, 4, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.bn2 = norm(4, rngs=rngs, **options)
        self.conv3 = nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=rngs)
        self.bn3 = norm(4, rngs=rngs, **options)
        self.linear = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.conv1(x)))
        x = nnx.relu(self.bn2(self.conv2(x)))
        x = nnx.relu(x + self.bn3(self.conv3(x)))
        return self.linear(x.mean((1, 2)))


class Small(nnx.Module):
    def __init__(self, **options):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(2, 4, (3, 3), use_bias=False, rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs, **options)
        self.linear = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.linear(nnx.relu(self.bn(self.conv(x))).mean((1, 2)))


for kind, fast_variance in (("fast", True), ("centered", False)):
    for suffix in ("", "_n"):
        flax_nnx(f"flax_nnx_{kind}{suffix}", Small(use_fast_variance=fast_variance), CONV_DATA)
        flax_nnx(f"flax_nnx_dense_{kind}{suffix}", Dense(use_fast_variance=fast_variance), DENSE_DATA)
        flax_nnx(f"flax_nnx_conv_{kind}{suffix}", Conv(use_fast_variance=fast_variance), CONV_DATA)
flax_nnx("flax_nnx_frozen", Conv(use_running_average=True), CONV_DATA, frozen=True)
flax_nnx("flax_nnx_half", Dense(dtype=jnp.float16), DENSE_DATA)
flax_nnx("flax_nnx_no_scale", Dense(use_scale=False), DENSE_DATA)


class Linen(linen.Module):
    fast: bool
    features: tuple[int, ...]

    @linen.compact
    def __call__(self, x):
        for features in self.features:
            x = linen.Conv(features, (3, 3), use_bias=False)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=False, use_fast_variance=self.fast)(x))
        return linen.Dense(3)(x.mean((1, 2)))


def flax_linen(name, model, data):
    variables = model.init(jax.random.key(0), data["x"])

    def step(state, data):
        def loss(params):
            y, new = model.apply({**state, "params": params}, data["x"], mutable=["batch_stats"])
            return mse(y, data), new["batch_stats"]

        (value, new), grad = jax.value_and_grad(loss, has_aux=True)(state["params"])
        return {"loss": value, "grad": grad, "new": new}

    NETWORKS[name] = step, variables, data


for kind, fast_variance in (("fast", True), ("centered", False)):
    flax_linen(f"flax_linen_{kind}", Linen(fast=fast_variance, features=(4,)), CONV_DATA)
    flax_linen(f"flax_linen_conv_{kind}", Linen(fast=fast_variance, features=(4, 5)), CONV_DATA)
    flax_linen(f"flax_linen_conv_{kind}_n", Linen(fast=fast_variance, features=(4, 5)), CONV_DATA)


# No batch norms


class Masked(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear1 = nnx.Linear(5, 4, use_bias=False, rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs)
        self.linear2 = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        mask = (jnp.arange(8) < 6)[:, None]
        return self.linear2(nnx.relu(self.bn(self.linear1(x), mask=mask)))


flax_nnx("not_flax_masked", Masked(), DENSE_DATA)
flax_nnx("not_flax_layer_norm", Conv(nnx.LayerNorm), CONV_DATA)
flax_nnx("not_flax_rms_norm", Conv(nnx.RMSNorm), CONV_DATA)
flax_nnx("not_flax_group_norm", Conv(lambda n, rngs: nnx.GroupNorm(n, 2, rngs=rngs)), CONV_DATA)
flax_nnx("not_flax_instance_norm", Conv(nnx.InstanceNorm), CONV_DATA)


@network(SMALL, DENSE_DATA)
def not_jax_ghost(p, d):
    """Ghost batch norm: statistics of parts of the batch."""

    def norm(x, scale, bias):
        return jax.vmap(lambda part: with_var(part, scale, bias))(x.reshape(2, 4, -1)).reshape(8, -1)

    return small_network(norm)(p, d)


@network(SMALL, DENSE_DATA)
def not_jax_epsilon_outside(p, d):
    def norm(x, scale, bias):
        return scale * (x - x.mean(0)) / (jnp.sqrt(x.var(0)) + EPSILON) + bias

    return small_network(norm)(p, d)


def write(name, folder):
    """Writes NAME.onnx and NAME.npz."""
    function, weights, data = NETWORKS[name]
    example = data
    if name.endswith("_n"):
        (n,) = jax.export.symbolic_shape("N")
        example = {k: jax.ShapeDtypeStruct((n, *v.shape[1:]), v.dtype) for k, v in data.items()}
    model = export(function, weights, example)
    del model.graph.value_info[:]  # for shorter files
    feeds = flat(weights) | flat(data)
    onnx.save(model, folder / f"{name}.onnx")
    used = {value.name for value in model.graph.input}
    np.savez_compressed(
        folder / f"{name}.npz",
        **{k: v for k, v in feeds.items() if k in used},
        **flat(jax.jit(function)(weights, data)),
    )


def flat(tree):
    """The arrays of nested dicts by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETWORKS:
        write(name, folder)
