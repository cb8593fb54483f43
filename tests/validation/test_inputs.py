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
    feeds, same, other = drawn(seed=1), drawn(seed=1), drawn(seed=2)
    assert all(np.array_equal(feeds[name], same[name]) for name in feeds)
    assert not np.array_equal(feeds["x"], other["x"])


@pytest.mark.parametrize(
    ("dims", "arrays", "expected"),
    [({}, {}, DEFAULT_DIM), ({"N": 7}, {}, 7), ({}, {"labels": np.zeros(5, np.int64)}, 5)],
    ids=["default", "named", "from a given array"],
)
def test_symbolic_dimensions_are_bound_everywhere(dims, arrays, expected):
    model = network()
    bind_dimensions(model, dims, arrays)
    assert model.graph.inputs[0].shape == (expected, 3, 8, 8)
    logits = next(value for node in model.graph for value in node.outputs if value.name == "logits")
    assert logits.shape == (expected, 10)


@pytest.mark.parametrize(
    ("first", "dims", "arrays", "expected"),
    [
        ("N", {}, {}, [2, 2]),
        ("batch", {}, {}, [2, 4]),
        ("?", {}, {}, [2, 4]),
        ("3", {}, {}, [3, 4]),
        ("N", {"N": 5}, {}, [5, 5]),
        ("N", {}, {"labels": np.zeros(6, np.int64)}, [6, 6]),
    ],
)
def test_the_batch_size_is_that_of_symbolic_first_dimensions(first, dims, arrays, expected):
    """Of inputs without a default; a fixed size, --dim and given arrays come first."""
    text = NETWORK.replace("[N,3", f"[{first},3").replace("float[16] b,", "float[C] b,")
    model = network(text)
    if first != "N":
        model.graph.inputs[1].shape = ir.Shape([4])
    bind_dimensions(model, dims, arrays, batch_size=2)
    assert [value.shape[0] for value in model.graph.inputs[:2]] == expected
    assert next(value for value in model.graph.inputs if value.name == "b").shape == (DEFAULT_DIM,)


MOVED = {
    "reshaped": "i = Reshape (labels, k)",
    "cast": "i = Cast <to = 7> (labels)",
    "shifted where negative": "t = Constant <value_int = 10> () n = Sub (labels, t) i = Where (flag, n, labels)",
}


@pytest.mark.parametrize("how", MOVED)
def test_labels_that_are_moved_are_labels(how):
    text = NETWORK.replace("loss, log_prob", f"k = Constant <value_ints = [-1]> () {MOVED[how]} loss, log_prob")
    model = network(text.replace("(logits, labels)", "(logits, i)"))
    bind_dimensions(model, {"N": 200}, {})
    assert set(np.unique(draw_inputs(model)["labels"])) == set(range(10))


@pytest.mark.parametrize(("axis", "rows"), [(0, 16), (1, 10)])
def test_indices_are_below_the_number_of_rows(axis, rows):
    text = NETWORK.replace("bool flag", "bool flag, int64[300] ids")
    model = network(text.replace("c = Conv", f"g = Gather <axis = {axis}> (dense, ids) c = Conv"))
    bind_dimensions(model, {}, {})
    assert set(np.unique(draw_inputs(model)["ids"])) == set(range(rows))


REFUSED = {
    "class-count-unknown": (
        NETWORK.replace("loss, log", "logits2 = Neg(logits) loss, log").replace(
            "(logits, labels)", "(logits2, labels)"
        ),
        "the number of classes is unknown",
    ),
    "integers": (
        NETWORK.replace("f = Flatten(p)", "q = Tile(p, labels) f = Flatten(p)").replace(
            "loss, log_prob = SoftmaxCrossEntropyLoss(logits, labels)", "loss = ReduceSum <keepdims = 0> (logits)"
        ),
        "input 'labels' has integers that are not labels of a loss or indices",
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
