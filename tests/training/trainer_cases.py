"""A small network with a batch norm, data for it, and a plain loop over its training step."""

from __future__ import annotations

import numpy as np
import onnx

import bngrad

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,1,4,4] x, int64[N] labels) => (float loss, float[N,3] logits, float[4] mean_new, float[4] var_new) {
    h = Conv <pads = [1,1,1,1]> (x, kernel)
    [bn] b, mean_new, var_new = BatchNormalization <training_mode = 1> (h, scale, bias, mean, var)
    r = Relu (b)
    p = GlobalAveragePool (r)
    flat = Flatten (p)
    logits = Gemm <transB = 1> (flat, weight, offset)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""


def network(text=TEXT, seed=0, dtype=np.float32):
    """The network with random weights."""
    rng = np.random.default_rng(seed)
    values = {
        "kernel": rng.standard_normal((4, 1, 3, 3)) / 3,
        "scale": rng.uniform(0.5, 1.5, 4),
        "bias": rng.standard_normal(4) / 10,
        "mean": np.zeros(4),
        "var": np.ones(4),
        "weight": rng.standard_normal((3, 4)) / 2,
        "offset": np.zeros(3),
    }
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(dtype), name) for name, array in values.items()
    )
    return model


def step_of(**options):
    return bngrad.training_step(network(), **options)


def samples(count=24, seed=0):
    """Images with a bright third of the rows, which is their class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.standard_normal((count, 1, 4, 4)).astype(np.float32)
    images[np.arange(count), 0, labels] += 2
    return {"x": images, "labels": labels}


def batch(index=0, size=8):
    return samples(size, seed=index + 100)


def plain_loop(step, batches, rate):
    """The losses and the last state of a loop over arrays; ``rate`` is a function of the update."""
    info, session, losses = step.info, bngrad.session(step.model), []
    state = {info.flat.input: info.flatten(step.state)} if info.flat else dict(step.state)
    pairs = (
        {info.flat.input: info.flat.output} if info.flat else {name: spec.new for name, spec in info.state.items()}
    )
    for call, data in enumerate(batches):
        now = np.array(rate(call // info.accumulate), info.learning_rate_dtype)
        loss, *new = session.run([info.loss, *pairs.values()], {**data, info.learning_rate: now, **state})
        losses.append(float(loss))
        state = dict(zip(pairs, new, strict=True))
    return losses, info.unflatten(state[info.flat.input]) if info.flat else state


def assert_same_bits(first, second):
    assert list(first) == list(second)
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        np.testing.assert_array_equal(array, second[name], err_msg=name)
