"""Inputs that are drawn fit what they are for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from bngrad.errors import InputError
from bngrad.validation.inputs import DEFAULT_DIM, bind_dimensions, draw_inputs

NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] x, int64[N] labels, float[16,3,3,3] w, float[16] s, float[16] b, float[16] m, float[16] v,
   float[16,10] dense, bool flag) => (float loss) <float[16] b = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}> {
    c = Conv(x, w)
    y, m2, v2 = BatchNormalization <training_mode = 1> (c, s, b, m, v)
    p = GlobalAveragePool(y)
    f = Flatten(p)
    logits = MatMul(f, dense)
    loss, log_prob = SoftmaxCrossEntropyLoss(logits, labels)
}"""


def network(text=NETWORK):
    model = ir.from_proto(parser.parse_model(text))
    for node in model.graph:
        for value in node.outputs:
            if value.name == "logits":
                value.shape = ir.Shape(["N", 10])
    return model


def drawn(seed=0, **dims):
    model = network()
    bind_dimensions(model, dims, {})
    return draw_inputs(model, seed=seed)


def test_every_input_is_drawn_for_its_purpose():
    feeds = drawn(N=200)
    assert feeds["x"].shape == (200, 3, 8, 8)
    assert feeds["x"].dtype == np.float32
    assert set(np.unique(feeds["labels"])) == set(range(10))
    assert feeds["v"].min() > 0
    assert feeds["s"].min() > 0
    assert np.isclose(feeds["w"].std(), np.sqrt(2 / 27), rtol=0.2)
    assert feeds["flag"].dtype == np.bool_


def test_an_input_with_a_default_keeps_it():
    assert not drawn()["b"].any()


def test_the_seed_decides():
    one, same, other = drawn(seed=1), drawn(seed=1), drawn(seed=2)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["x"], other["x"])


@pytest.mark.parametrize(
    ("dims", "given", "expected"),
    [({}, {}, DEFAULT_DIM), ({"N": 7}, {}, 7), ({}, {"labels": np.zeros(5, np.int64)}, 5)],
    ids=["default", "named", "from a given array"],
)
def test_symbolic_dimensions_are_bound_everywhere(dims, given, expected):
    model = network()
    bind_dimensions(model, dims, given)
    assert model.graph.inputs[0].shape == (expected, 3, 8, 8)
    logits = next(value for node in model.graph for value in node.outputs if value.name == "logits")
    assert logits.shape == (expected, 10)


REFUSED = {
    "class-count-unknown": (
        NETWORK.replace("loss, log", "logits2 = Neg(logits) loss, log").replace(
            "(logits, labels)", "(logits2, labels)"
        ),
        "the number of classes is unknown",
    ),
    "indices": (
        NETWORK.replace("f = Flatten(p)", "q = Gather(p, labels) f = Flatten(p)").replace(
            "loss, log_prob = SoftmaxCrossEntropyLoss(logits, labels)", "loss = ReduceSum <keepdims = 0> (logits)"
        ),
        "input 'labels' has integers that are not labels of a loss",
    ),
    "sequence": (NETWORK.replace("bool flag", "seq(float[N]) flags"), "input 'flags' is a sequence of tensors"),
    "text": (NETWORK.replace("bool flag", "string flag"), "for which there are no random values; pass it with"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused(case):
    text, message = REFUSED[case]
    model = network(text)
    bind_dimensions(model, {}, {})
    with pytest.raises(InputError, match=message):
        draw_inputs(model)
