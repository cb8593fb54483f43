"""Tests the replacement of sequences of a split, by running the model before and after it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bngrad.graph.fresh_names import Names
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.split_sequences import split_sequences

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
INDICES = "int64 zero = {0}, int64 one = {1}, int64 last = {-1}, int64[1] k = {2}"
ROWS = "shape = Shape <start = 0, end = 1> (x) rows = Squeeze (shape)"
BOTH = "a = SequenceAt (s, zero) b = SequenceAt (s, one)"


def parse(
    body,
    x="float[N, 4] x",
    constants="int64[2] sizes = {1, 3}, int64 two = {2}, int64 three = {3}",
    more="",
    unknown=False,
):
    text = f"{HEADER}g ({x}{more}) => (float a, float b) <{INDICES}, {constants}> {{ {body} }}"
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in (*model.graph.outputs, *(model.graph.inputs if unknown else ())):
        value.shape = None
    InferTypesPass()(model)
    return model


REPLACED = {
    "sizes": (parse(f"s = SplitToSequence <axis = 1> (x, sizes) {BOTH}"), "Split"),
    "sizes, of a Constant": (
        parse(f"c = Constant <value_ints = [3, 1]> () s = SplitToSequence <axis = -1> (x, c) {BOTH}"),
        "Split",
    ),
    "sizes, the last": (
        parse("s = SplitToSequence <axis = 1> (x, sizes) a = SequenceAt (s, last) b = SequenceAt (s, last)"),
        "Split",
    ),
    "a size": (parse(f"s = SplitToSequence <axis = 1> (x, two) {BOTH}"), "Split"),
    "a size that leaves a rest": (parse(f"s = SplitToSequence <axis = 1> (x, three) {BOTH}"), "Split"),
    "a size, unknown dimension": (parse(f"s = SplitToSequence (x, two) {BOTH}"), "Slice"),
    "a size that leaves a rest, unknown dimension": (parse(f"s = SplitToSequence (x, three) {BOTH}"), "Slice"),
    "a computed size": (parse(f"{ROWS} n = Div (rows, two) s = SplitToSequence (x, n) {BOTH}"), "Slice"),
    "a computed size that leaves a rest": (
        parse(f"{ROWS} n = Sub (rows, one) s = SplitToSequence (x, n) {BOTH}"),
        "Slice",
    ),
    "no sizes": (parse(f"s = SplitToSequence <axis = 1> (x) {BOTH}"), "Split"),
    "no sizes, unknown dimension": (parse(f"s = SplitToSequence (x) {BOTH}"), "Slice"),
    "unbind": (parse(f"s = SplitToSequence <axis = 1, keepdims = 0> (x) {BOTH}"), "Gather"),
    "unbind, unknown dimension": (parse(f"s = SplitToSequence <keepdims = 0> (x) {BOTH}"), "Gather"),
}


def run(model):
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, {"x": np.arange(20, dtype=np.float32).reshape(5, 4)})


@pytest.mark.parametrize("name", REPLACED)
def test_replaced(name):
    model, op = REPLACED[name]
    want = run(model)
    model = model.clone()
    assert split_sequences(model.graph, Names(model))
    ops = {node.op_type for node in model.graph}
    assert op in ops
    assert not ops & {"SplitToSequence", "SequenceAt"}
    for got, expected in zip(run(model), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not split_sequences(model.graph, Names(model))


LEFT = {
    "a computed index": parse(
        "s = SplitToSequence <axis = 1> (x, sizes) a = SequenceAt (s, i) b = SequenceAt (s, one)",
        more=", int64 i",
    ),
    "computed sizes": parse(f"s = SplitToSequence (x, n) {BOTH}", more=", int64[2] n"),
    "another reader": parse(
        f"s = SplitToSequence <axis = 1> (x, sizes) {BOTH} l = SequenceLength (s) q = Add (l, one)"
    ),
    "an index from the end of an unknown number": parse(
        "s = SplitToSequence (x, two) a = SequenceAt (s, last) b = SequenceAt (s, zero)"
    ),
    "an index that is too large": parse(
        "s = SplitToSequence <axis = 1> (x, two) a = SequenceAt (s, zero) b = SequenceAt (s, two)"
    ),
    "unknown rank": parse(f"s = SplitToSequence (x, two) {BOTH}", unknown=True),
    "no sequence": parse("a = Relu (x) b = Relu (a)"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name):
    model = LEFT[name].clone()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not split_sequences(model.graph, Names(model))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
