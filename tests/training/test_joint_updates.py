"""Small weights that the flat layout updates together: the same bits, and which weights those are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.training.optim import joint
from models import digits_resnet20

GROUPS = [bngrad.ParameterGroup(max_rank=1, weight_decay=0, learning_rate_scale=2)]
OPTIONS = {
    "sgd": {"optimizer": "sgd"},
    "sgd-groups": {
        "optimizer": bngrad.SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
        "groups": GROUPS,
        "clip_norm": 1.0,
    },
    "adam": {"optimizer": bngrad.Adam(weight_decay=0.01)},
    "adamw-groups": {"optimizer": "adamw", "groups": GROUPS, "clip_norm": 1.0},
    "rmsprop": {"optimizer": bngrad.RMSprop(momentum=0.9, centered=True)},
    "lion": {"optimizer": bngrad.Lion(weight_decay=0.1), "groups": GROUPS},
    "accumulate": {"optimizer": "adamw", "accumulate": 2},
}
DOUBLE = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x) => (float loss) <
    float[2] a = {1, 2}, float[2] b = {3, 4}, double[2] c = {5, 6}, double[2] d = {7, 8}> {
    u = Mul (x, a)
    v = Add (u, b)
    w = Cast <to = 11> (v)
    y = Mul (w, c)
    z = Add (y, d)
    s = ReduceMean <keepdims = 0> (z)
    loss = Cast <to = 1> (s)
}"""


@pytest.fixture(scope="module")
def digits():
    """A network of 29 weights, of which four have more than 1000 elements: one block in each stage, not three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits_resnet20, "BLOCKS", 1)
        return digits_resnet20.build()


def updates(step):
    """The number of AdamUpdates."""
    return sum(node.op_type == "AdamUpdate" for node in step.model.graph.node)


def trained(model, data, **options):
    step = bngrad.training_step(model, **options)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    losses = [trainer.step(**data) for _ in range(4)]
    return step, losses, trainer.state_dict()


@pytest.mark.parametrize(
    ("name", "largest"), [*((name, 1000) for name in OPTIONS), ("adamw-groups", joint.LARGEST)]
)
def test_the_bits_are_those_of_the_named_layout(name, largest, digits, monkeypatch, rng):
    monkeypatch.setattr(joint, "LARGEST", largest)
    options = OPTIONS[name]
    data = {"images": rng.standard_normal((8, 1, 8, 8)).astype(np.float32), "labels": np.arange(8)}
    named, losses, expected = trained(digits, data, **options)
    flat, flat_losses, state = trained(digits, data, layout="flat", **options)
    assert flat_losses == losses
    assert state.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(state[key], array, err_msg=key)
    assert named.info.fingerprint == flat.info.fingerprint


@pytest.mark.parametrize(
    ("options", "largest", "number"),
    [
        ({}, joint.LARGEST, 1),
        ({"groups": GROUPS}, joint.LARGEST, 2),
        ({}, 1000, 5),
        ({"accumulate": 2}, joint.LARGEST, 29),
    ],
    ids=["all", "groups", "some", "accumulate"],
)
def test_updates_of_small_weights_are_one_node(options, largest, number, digits, monkeypatch):
    monkeypatch.setattr(joint, "LARGEST", largest)
    step = bngrad.training_step(digits, optimizer="adamw", layout="flat", **options)
    assert updates(step) == number
    assert updates(bngrad.training_step(digits, optimizer="adamw", **options)) == 29


def test_weights_of_another_type_than_the_vector_are_updated_by_themselves():
    model = onnx.parser.parse_model(DOUBLE)
    data = {"x": np.array([[1, 2], [3, 5]], np.float32)}
    _, losses, expected = trained(model, data, optimizer="adam")
    step, flat_losses, state = trained(model, data, optimizer="adam", layout="flat")
    assert updates(step) == 3
    assert flat_losses == losses
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
