"""Data with channels last: the same results, few Transposes, and what stays as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError
from bngrad.passes.optimize.channels_last import ChannelsLastPass
from pass_models import close, feeds_for, header, model, ops

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="ONNX Runtime below 1.27 has no overloads",
)
DIGITS = Path(__file__).parents[2] / "models" / "digits_resnet20.onnx"
X, W3, W1 = "float[N,3,6,5] x", "float[4,3,3,3] w", "float[4,3,1,1] w"
BATCH_NORM = "bngrad.BatchNormalizationTraining <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 0>"
FORMS = {
    "convolution": (
        3,
        f"""({X}, {W3}) => (float[N,4,4,3] y)
        {{ y = Conv (x, w) }}""",
    ),
    "convolution with everything": (
        3,
        f"""({X}, {W3}, float[4] b) => (float[N,4,3,2] y)
        {{ y = Conv <pads = [1, 0, 1, 2], strides = [2, 3], dilations = [1, 2]> (x, w, b) }}""",
    ),
    "kernel of 1": (
        3,
        f"""({X}, {W1}, float[4] b) => (float[N,4,6,5] y)
        {{ y = Conv (x, w, b) }}""",
    ),
    "kernel of 1, strides": (
        3,
        f"""({X}, {W1}) => (float[N,4,3,3] y)
        {{ y = Conv <strides = [2, 2]> (x, w) }}""",
    ),
    "valid": (
        3,
        f"""({X}, {W3}) => (float[N,4,4,3] y)
        {{ y = Conv <auto_pad = "VALID"> (x, w) }}""",
    ),
    "one dimension": (
        3,
        """(float[N,3,6] x, float[4,3,2] w) => (float[N,4,5] y)
        { y = Conv (x, w) }""",
    ),
    "three dimensions": (
        3,
        """(float[N,2,4,3,5] x, float[4,2,2,1,3] w) => (float[N,4,3,3,3] y)
        { y = Conv (x, w) }""",
    ),
    "between convolutions": (
        4,
        f"""({X}, {W3}, float[2,4,1,1] v, float s) => (float[N,2,4,3] y)
        {{ h = Conv (x, w) r = Relu (h) a = Mul (r, s) m = Sigmoid (a) p = Mul (a, m) y = Conv (p, v) }}""",
    ),
    "residual": (
        4,
        f"""({X}, float[3,3,3,3] w) => (float[N,3,6,5] y, float[N,3,6,5] h)
        {{ h = Conv <pads = [1, 1, 1, 1]> (x, w) y = Add (h, x) }}""",
    ),
    "a factor of each channel": (
        4,
        f"""({X}, {W3}, float[N,4,1,1] f) => (float[N,4,4,3] y)
        {{ h = Conv (x, w) y = Mul (h, f) }}""",
    ),
    "concatenation": (
        3,
        f"""({X}, float[2,3,3,3] w) => (float[N,7,6,5] y)
        {{ a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a) y = Concat <axis = 1> (a, x, b) }}""",
    ),
    "split": (
        3,
        f"""({X}, {W3}) => (float[N,2,4,3] y)
        {{ h = Conv (x, w) a, b = Split <axis = -3> (h) y = Sub (a, b) }}""",
    ),
    "batch norm": (
        2,
        f"""({X}, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[N,3,6,5] y, float[3] nm, float[3] nv)
        {{ axes = Constant <value_ints = [0, 2, 3]> () y, nm, nv = {BATCH_NORM} (x, s, b, m, v, axes) }}""",
    ),
    "ReLU's gradient": (
        4,
        f"""({X}, {W3}, float[N,4,4,3] dz) => (float[N,4,4,3] dx)
        {{ z = Constant <value_float = 0.0> () h = Conv (x, w) c = Greater (h, z) dx = Where (c, dz, z) }}""",
    ),
    "a reader in a branch": (
        3,
        f"""({X}, {W3}, float s) => (float[N,4,4,3] y) {{
        h = Conv (x, w) zero = Constant <value_float = 0.0> () c = Greater (s, zero)
        y = If (c) <then_branch = t () => (float[N,4,4,3] a) {{ a = Neg (h) }},
                    else_branch = e () => (float[N,4,4,3] b) {{ b = Identity (h) }}> }}""",
    ),
}
"""The number of Transposes, of the data, of weights and of results; and the model."""
STAYS = {
    "groups": f"({X}, float[6,1,3,3] w) => (float[N,6,4,3] y) {{ y = Conv <group = 3> (x, w) }}",
    "padding by size": f'({X}, {W3}) => (float[N,4,6,5] y) {{ y = Conv <auto_pad = "SAME_UPPER"> (x, w) }}',
    "unknown weights": f"({X}, float[M,3,K,L] w) => (float[N,M,P,Q] y) {{ y = Conv (x, w) }}",
    "batch norm of rank 2": (
        "(float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) "
        f"{{ axes = Constant <value_ints = [0]> () y, nm, nv = {BATCH_NORM} (x, s, b, m, v, axes) }}"
    ),
    "batch norm over other axes": (
        "(float[N,6,5,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,6,5,3] y) "
        f"{{ axes = Constant <value_ints = [0, 1, 2]> () y, nm, nv = {BATCH_NORM} (x, s, b, m, v, axes) }}"
    ),
    "elementwise": "(float[N,3,6,5] x) => (float[N,3,6,5] y) { y = Relu (x) }",
}


def read(text):
    return model(header(17, "bngrad", ir_version=10) + f"g {text}")


def run(graph, feeds):
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto)
    names = [value.name for value in graph.graph.outputs]
    return dict(zip(names, bngrad.session(proto).run(names, feeds), strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_results_and_transposes(name, rng):
    transposes, text = FORMS[name]
    original, changed = read(text), read(text)
    assert ChannelsLastPass()(changed).modified
    assert Counter(ops(changed))["Transpose"] == transposes
    feeds = feeds_for(ir.to_proto(original), rng)
    close(run(changed, feeds), run(original, feeds), 1e-5)


NAMES_TAKEN = f"""({X}, {W3}) => (float[N,4,4,3] h_channels_last, float[N,3,6,5] x_channels_last) {{
    x_channels_last = Neg (x) h = Conv (x_channels_last, w) h_channels_last = Relu (h) }}"""


def test_outputs_keep_names_that_end_like_those_of_the_pass(rng):
    original, changed = read(NAMES_TAKEN), read(NAMES_TAKEN)
    assert ChannelsLastPass()(changed).modified
    assert [value.name for value in changed.graph.outputs] == ["h_channels_last", "x_channels_last"]
    feeds = feeds_for(ir.to_proto(original), rng)
    close(run(changed, feeds), run(original, feeds), 1e-5)


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    graph = read(STAYS[name])
    before = ops(graph)
    assert not ChannelsLastPass()(graph).modified
    assert ops(graph) == before


def test_an_operand_of_a_smaller_rank_has_channels_first(rng):
    """Its dimensions cannot be moved, so the op reads a Transpose."""
    text = f"({X}, {W3}, float[4,1,1] b) => (float[N,4,4,3] y) {{ h = Conv (x, w) y = Add (h, b) }}"
    original, changed = read(text), read(text)
    ChannelsLastPass()(changed)
    assert ops(changed)[-2:] == ["Transpose", "Add"]
    feeds = feeds_for(ir.to_proto(original), rng)
    close(run(changed, feeds), run(original, feeds), 1e-5)


@pytest.mark.parametrize("outputs", ["dx, dw, db", "dx", ", dw", ", , db"])
@pytest.mark.parametrize(
    ("w", "dy", "attributes"),
    [
        ("4,3,3,2", "4,2,2", "strides = [2, 3], pads = [0, 0, 0, 2]"),
        ("4,3,1,1", "4,6,5", "dilations = [1, 1]"),
        ("6,1,3,3", "6,4,3", "group = 3"),
    ],
    ids=["any kernel", "kernel of 1", "groups"],
)
def test_gradients_of_a_convolution(w, dy, attributes, outputs, rng):
    types = {"dx": "float[N,3,6,5]", "dw": f"float[{w}]", "db": f"float[{w[0]}]"}
    names = outputs.replace(",", " ").split()
    text = (
        f"(float[N,{dy}] dy, {X}, float[{w}] w) => ({', '.join(f'{types[name]} {name}' for name in names)}) "
        f"{{ {outputs} = com.microsoft.ConvGrad <{attributes}> (dy, x, w) }}"
    )
    graph = onnx.parser.parse_model(header(17, "com.microsoft") + f"g {text}")
    plain, last = (bngrad.rewrite(graph, **options) for options in ({}, {"channels_last": True}))
    kinds = {node.op_type for node in last.graph.node}
    assert ("Transpose" in kinds) == ("group" not in attributes)
    assert ("ConvGrad" in kinds) == (w != "4,3,1,1")
    feeds = feeds_for(graph, rng)
    for size in (feeds["x"].shape[0], 0):
        batch = {name: array if name == "w" else array[:size] for name, array in feeds.items()}
        expected, actual = (bngrad.session(proto).run(names, batch) for proto in (plain, last))
        for name, a, b in zip(names, actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_a_training_step(layout):
    options = {"optimizer": bngrad.SGD(momentum=0.9), "layout": layout}
    losses = []
    for more in ({}, {"channels_last": True}):
        step = bngrad.training_step(DIGITS, **options, **more)
        trainer = bngrad.Trainer(step, learning_rate=0.01)
        rng = np.random.default_rng(0)
        data = {"images": rng.standard_normal((8, 1, 8, 8)).astype(np.float32), "labels": rng.integers(0, 10, 8)}
        losses.append([trainer.step(**data) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    kinds = Counter(node.op_type for node in step.model.graph.node)
    weights = kinds["ConvChannelsLast"]
    assert kinds["Conv"] == 0
    assert kinds["Transpose"] <= 2 * weights + 4  # of weights and their gradients, the images, and the pooling


def test_it_needs_functions():
    with pytest.raises(InputError, match=r"^--channels-last \(channels_last=\) needs the functions of the ops"):
        bngrad.differentiate(DIGITS, channels_last=True, functions=False)
