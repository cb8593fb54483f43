"""Tests the metadata of training graphs: all ways of making, rewriting and reading them keep it."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.autodiff.metadata import KEY
from bngrad.errors import ModelError

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
FORWARD = """g (float[N,2,3] x) => (float loss, float[2] aux_grad) <float[2] s = {1, 2}, float[2] b = {0, 1},
        float[2] m = {0, 0}, float[2] v = {1, 1}> {
    [bn] y, m_new, v_new = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    z = Relu (y)
    loss = ReduceMean <keepdims = 0> (z)
    aux_grad = Neg (s)
}"""
WANT = {
    "loss": "loss",
    "gradients": {"s": "s_grad", "b": "b_grad"},
    "running_statistics": {"m": "m_new", "v": "v_new"},
    "warnings": [],
}


def forward(text=FORWARD):
    return onnx.parser.parse_model(HEADER + text)


def names(graph):
    return {key: getattr(graph, key) for key in WANT}


MADE = {
    "stock": {},
    "training": {"target": "training"},
    "ort": {"target": "ort"},
    "no functions": {"functions": False},
    "ORT's builder": {"builder": "ort"},
    "ORT's builder and dialect": {"builder": "ort", "target": "ort"},
}


@pytest.mark.parametrize("how", MADE)
def test_what_differentiate_writes(how):
    model = bngrad.differentiate(forward(), **MADE[how])
    assert json.loads({p.key: p.value for p in model.metadata_props}[KEY]) == WANT
    graph = bngrad.read_training_graph(model)
    assert names(graph) == WANT
    assert graph.model.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_onnx_runtime_hands_it_out():
    session = bngrad.session(bngrad.differentiate(forward()), "function")
    assert json.loads(session.get_modelmeta().custom_metadata_map[KEY]) == WANT


def test_every_kind_of_model(tmp_path):
    path = tmp_path / "train.onnx"
    training = bngrad.differentiate(ir.from_proto(forward()))
    bngrad.save(training, path)
    for model, kind in ((training, ir.Model), (ir.to_proto(training), onnx.ModelProto), (path, onnx.ModelProto)):
        graph = bngrad.read_training_graph(model)
        assert isinstance(graph.model, kind)
        assert names(graph) == WANT
    assert bngrad.read_training_graph(training).model is training


@pytest.mark.parametrize("target", ["ort", "training"])
def test_rewrite_keeps_it(target):
    rewritten = bngrad.rewrite(bngrad.differentiate(forward(), target=target))
    assert names(bngrad.read_training_graph(rewritten)) == WANT


def test_other_metadata_stays():
    model = forward()
    model.metadata_props.add(key="author", value="me")
    assert {p.key for p in bngrad.differentiate(model).metadata_props} == {"author", KEY}
    assert [(p.key, p.value) for p in model.metadata_props] == [("author", "me")]


def test_a_training_loop_needs_nothing_else(rng):
    """Runs one step of gradient descent with names from the metadata only."""
    graph = bngrad.read_training_graph(bngrad.differentiate(forward()))
    session = bngrad.session(graph.model, "function")
    state = {t.name: onnx.numpy_helper.to_array(t) for t in graph.model.graph.initializer}
    state = {name: state[name] for name in (*graph.gradients, *graph.running_statistics)}
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    outputs = [output.name for output in session.get_outputs()]
    losses = []
    for _ in range(5):
        got = dict(zip(outputs, session.run(outputs, {"x": x, **state}), strict=True))
        losses.append(float(got[graph.loss]))
        state |= {name: state[name] - 0.1 * got[output] for name, output in graph.gradients.items()}
        state |= {name: got[output] for name, output in graph.running_statistics.items()}
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(state["m"], x.mean((0, 2)) * (1 - 0.9**5), rtol=1e-5)


def edited(change):
    model = bngrad.differentiate(forward())
    change(model)
    return model


def written(text):
    def change(model):
        del model.metadata_props[:]
        model.metadata_props.add(key=KEY, value=text)

    return change


def renamed(values, old, new):
    def change(model):
        next(value for value in getattr(model.graph, values) if value.name == old).name = new
        for node in model.graph.node:
            for name in (node.input, node.output):
                name[:] = [new if value == old else value for value in name]
        for tensor in model.graph.initializer:
            tensor.name = new if tensor.name == old else tensor.name

    return change


UNREADABLE = f"the model's metadata {KEY!r} cannot be read ("
REFUSED = {
    "a forward model": (forward(), f"the model has no metadata {KEY!r}; expected a training graph that bngrad "),
    "no JSON": (edited(written("{loss")), f"{UNREADABLE}JSONDecodeError: "),
    "another document": (edited(written("[]")), f"{UNREADABLE}TypeError: "),
    "a number for a name": (
        edited(written(json.dumps(WANT | {"loss": 3}))),
        f"{UNREADABLE}TypeError: loss is not ",
    ),
    "a list for pairs": (
        edited(written(json.dumps(WANT | {"gradients": ["s"]}))),
        f"{UNREADABLE}AttributeError: ",
    ),
    "a number in pairs": (edited(written(json.dumps(WANT | {"gradients": {"s": 1}}))), f"{UNREADABLE}TypeError: "),
    "a field less": (
        edited(written('{"loss": "loss"}')),
        f"{UNREADABLE}KeyError: 'gradients'); make the training ",
    ),
    "an output that was renamed": (
        edited(renamed("output", "b_grad", "db")),
        f"the model's metadata {KEY!r} names the output 'b_grad', which the model lacks; make the training graph ",
    ),
    "an input that was renamed": (
        edited(renamed("input", "s", "scale")),
        "names the input 's', which the model lacks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model, message = REFUSED[name]
    with pytest.raises(ModelError, match=re.escape(message)):
        bngrad.read_training_graph(model)


def test_the_names_cannot_be_changed_by_accident():
    graph = bngrad.read_training_graph(bngrad.differentiate(forward()))
    with pytest.raises(AttributeError):
        graph.loss = "other"
