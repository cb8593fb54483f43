"""The metadata of a forward model: its loss, its weights, and its buffers."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.autodiff.forward_info import KEY, ForwardInfo, read_forward_info, write_forward_info

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[3] x, float[3] a, float[3] b, int64 n) => (float first, float second, int64 n_next)
    <float[3] a = {1, 2, 3}, float[3] b = {1, 1, 1}, int64 n = {5}, int64 one = {1}> {
    p = Mul (a, x) q = Mul (p, b) first = ReduceSum <keepdims = 0> (q) second = ReduceMean <keepdims = 0> (p)
    n_next = Add (n, one) }"""
INFO = ForwardInfo("second", ["a"], {"n": "n_next"})


def model(info=INFO):
    result = ir.from_proto(onnx.parser.parse_model(TEXT))
    if info is not None:
        write_forward_info(result, info)
    return ir.to_proto(result)


def test_differentiate_takes_its_defaults_from_it():
    graph = bngrad.differentiate(model())
    roles = bngrad.read_training_graph(graph)
    assert roles.loss == "second"
    assert roles.gradients == {"a": "a_grad"}
    assert roles.running_statistics == {"n": "n_next"}
    assert KEY not in {entry.key for entry in graph.metadata_props}


def test_arguments_win():
    roles = bngrad.read_training_graph(bngrad.differentiate(model(), loss="first", wrt=["b"]))
    assert (roles.loss, roles.gradients) == ("first", {"b": "b_grad"})


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_buffers_are_state(layout):
    trainer = bngrad.Trainer(bngrad.training_step(model(), layout=layout), learning_rate=0.1)
    for count in (6, 7, 8):
        trainer.step(x=np.ones(3, np.float32))
        state = trainer.state_dict()["n"]
        assert (int(state), state.dtype) == (count, np.int64)


def test_without_it():
    assert read_forward_info(ir.from_proto(model(None))) is None
    with pytest.raises(bngrad.ModelError, match="loss"):
        bngrad.differentiate(model(None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (json.dumps({"version": 1, "loss": "second"}), "cannot be read"),
        (json.dumps({"version": 2, **INFO._asdict()}), "has version 2; expected 1"),
        (json.dumps({"version": 1, **INFO._replace(loss="third")._asdict()}), "the model lacks 'third'"),
        (json.dumps({"version": 1, **INFO._replace(weights=["c"])._asdict()}), "the model lacks 'c'"),
        (json.dumps({"version": 1, **INFO._replace(buffers={"n": "m"})._asdict()}), "the model lacks 'm'"),
        (json.dumps({"version": 1, **INFO._replace(buffers={"m": "n_next"})._asdict()}), "the model lacks 'm'"),
    ],
    ids=["json", "list", "no-weights", "version", "loss", "weight", "output", "input"],
)
def test_refusals(text, message):
    forward = model(None)
    forward.metadata_props.add(key=KEY, value=text)
    with pytest.raises(bngrad.ModelError, match=message):
        bngrad.differentiate(forward)
