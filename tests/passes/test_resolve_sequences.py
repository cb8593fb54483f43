"""Tests the replacement of sequences and optionals, by running the model before and after it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.resolve_sequences import resolve_sequences

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
INDICES = "int64 zero = {0}, int64 one = {1}, int64 last = {-1}, int64[1] k = {2}"
ROWS = "shape = Shape <start = 0, end = 1> (x) rows = Squeeze (shape)"
THREE = "y = Relu (x) z = Neg (x) s = SequenceConstruct (x, y, z)"
STEP = "w = Mul (p, q) u = Neg (w) r = Add (u, z) t = Identity (p)"
MAPPED = f"f (float[R, C] p, float[R, C] q) => (float[R, C] r, float[R, C] t) {{ {STEP} }}"
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
    "no sizes, unknown dimension": (parse(f"s = SplitToSequence (x) {BOTH}"), "Gather"),
    "unbind": (parse(f"s = SplitToSequence <axis = 1, keepdims = 0> (x) {BOTH}"), "Gather"),
    "unbind, unknown dimension": (parse(f"s = SplitToSequence <keepdims = 0> (x) {BOTH}"), "Gather"),
    "constructed": (parse(f"y = Relu (x) s = SequenceConstruct (x, y) {BOTH}"), "Relu"),
    "inserted": (
        parse(
            f"{THREE} t = SequenceInsert (s, y, last) u = SequenceInsert (t, x) "
            "a = SequenceAt (u, two) b = SequenceAt (u, last)"
        ),
        "Relu",
    ),
    "erased": (
        parse(
            f"{THREE} t = SequenceErase (s, zero) u = SequenceErase (t) a = SequenceAt (u, zero) "
            "b = SequenceAt (t, last)"
        ),
        "Relu",
    ),
    "into an empty sequence": (
        parse(f"e = SequenceEmpty () t = SequenceInsert (e, x) y = Relu (x) s = SequenceInsert (t, y) {BOTH}"),
        "Relu",
    ),
    "concatenated": (parse(f"{THREE} a = ConcatFromSequence <axis = -1> (s) b = Relu (a)"), "Concat"),
    "stacked": (
        parse(f"{THREE} a = ConcatFromSequence <axis = -1, new_axis = 1> (s) b = Relu (a)"),
        "Unsqueeze",
    ),
    "the last, by the length": (
        parse(f"{THREE} n = SequenceLength (s) i = Sub (n, one) a = SequenceAt (s, i) b = SequenceAt (s, i)"),
        "Neg",
    ),
    "the length alone": (
        parse(f"s = SplitToSequence <axis = 1> (x, sizes) {BOTH} l = SequenceLength (s) q = Add (l, one)"),
        "Split",
    ),
    "mapped": (
        parse(
            f"{THREE} y2 = Exp (x) m, k2 = SequenceMap <body = {MAPPED}> (s, y2) a = SequenceAt (m, zero) "
            "b = ConcatFromSequence <axis = 0> (k2)"
        ),
        "Mul",
    ),
    "an optional": (
        parse("o = Optional (x) p = Identity (o) a = OptionalGetElement (p) b = OptionalGetElement (x)"),
        "Identity",
    ),
    "an optional sequence": (
        parse(
            f"{THREE} o = Optional (s) t = OptionalGetElement (o) a = SequenceAt (t, one) "
            "c = OptionalHasElement (o) b = Cast <to = 1> (c)"
        ),
        "Cast",
    ),
    "an empty optional": (
        parse(
            "o = Optional <type = float[N]> () c = OptionalHasElement (o) d = OptionalHasElement ()"
            " a = Cast <to = 1> (c) b = Cast <to = 1> (d)"
        ),
        "Cast",
    ),
    "unbind, joined": (
        parse(
            "s = SplitToSequence <axis = 1, keepdims = 0> (x) a = ConcatFromSequence <axis = 0> (s) "
            "b = ConcatFromSequence <axis = -1, new_axis = 1> (s)"
        ),
        "Identity",
    ),
    "unbind along an unknown dimension, joined": (
        parse(
            "s = SplitToSequence <keepdims = 0> (x) a = ConcatFromSequence <axis = 0> (s) "
            "b = ConcatFromSequence <axis = -1, new_axis = 1> (s)"
        ),
        "Transpose",
    ),
    "pairs of an unknown dimension, joined": (
        parse("s = SplitToSequence (x, two) a = ConcatFromSequence <axis = 0> (s) b = Relu (a)"),
        "Relu",
    ),
    "computed positions": (
        parse(
            f"{ROWS} i = Sub (rows, two) s = SplitToSequence <keepdims = 0> (x) a = SequenceAt (s, i) "
            f"t = SplitToSequence (x) b = SequenceAt (t, last) "
        ),
        "Gather",
    ),
    "a computed position of tensors of one shape": (
        parse(f"{ROWS} i = Sub (two, rows) {THREE} a = SequenceAt (s, i) b = SequenceAt (s, zero)"),
        "Gather",
    ),
    "computed positions of shape [1]": (
        parse(
            "shape = Shape <start = 0, end = 1> (x) four = Constant <value_ints = [4]> () i = Sub (shape, four) "
            f"s = SplitToSequence <keepdims = 0> (x) a = SequenceAt (s, i) {THREE.replace(' s ', ' t ')} "
            "b = SequenceAt (t, i)"
        ),
        "Gather",
    ),
    "in a branch, beyond the end where that is not taken": (
        parse(
            "s = SplitToSequence <keepdims = 0> (x) l = SequenceLength (s) nine = Constant <value = int64 {9}> () "
            "d = Less (nine, l) a, b = If (d) <then_branch = f () => (float at, float bt) "
            "{ at = SequenceAt (s, nine) bt = SequenceAt (s, nine) }, else_branch = g () => (float ae, float be) "
            "{ ae = SequenceAt (s, zero) be = SequenceAt (s, last) }>"
        ),
        "If",
    ),
    "the length of an unknown dimension": (
        parse(
            "s = SplitToSequence (x) l = SequenceLength (s) i = Sub (l, one) a = SequenceAt (s, i) b = Relu (a)"
        ),
        "Shape",
    ),
    "in a branch": (
        parse(
            "c = Constant <value_ints = [1]> () d = Cast <to = 9> (c) "
            f"a, b = If (d) <then_branch = f () => (float at, float bt) {{ {THREE} at = SequenceAt (s, one) "
            "bt = SequenceAt (s, zero) }, else_branch = g () => (float ae, float be) "
            "{ ae = Identity (x) be = Identity (x) }>"
        ),
        "If",
    ),
}


def run(model):
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, {"x": np.arange(20, dtype=np.float32).reshape(5, 4)})


@pytest.mark.parametrize("name", REPLACED)
def test_replaced(name):
    model, op = REPLACED[name]
    want = run(model)
    model = model.clone()
    assert resolve_sequences(model.graph, Names(model))
    ops = {node.op_type for node in all_nodes(model)}
    assert op in ops
    assert not [name for name in ops if "Sequence" in name or "Optional" in name]
    for got, expected in zip(run(model), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not resolve_sequences(model.graph, Names(model))


LEFT = {
    "a computed index": parse(
        "s = SplitToSequence <axis = 1> (x, sizes) a = SequenceAt (s, i) b = SequenceAt (s, i)",
        more=", int64 i",
    ),
    "a computed index of pairs": parse(
        "s = SplitToSequence (x, two) a = SequenceAt (s, i) b = SequenceAt (s, i)", more=", int64 i"
    ),
    "a computed index of tensors of different shapes": parse(
        "y = Transpose (x) s = SequenceConstruct (x, y) a = SequenceAt (s, i) b = SequenceAt (s, i)",
        more=", int64 i",
    ),
    "computed sizes": parse(f"s = SplitToSequence (x, n) {BOTH}", more=", int64[2] n"),
    "an index from the end of an unknown number": parse(
        "s = SplitToSequence (x, two) a = SequenceAt (s, last) b = SequenceAt (s, last)"
    ),
    "an index that is too large": parse(
        "s = SplitToSequence <axis = 1> (x, two) a = SequenceAt (s, two) b = SequenceAt (s, two)"
    ),
    "a position that is computed": parse(
        f"{THREE} t = SequenceInsert (s, x, i) a = SequenceAt (t, zero) b = ConcatFromSequence <axis = 0> (t)",
        more=", int64 i",
    ),
    "a position that is too large": parse(f"{THREE} t = SequenceErase (s, three) {BOTH.replace('(s', '(t')}"),
    "an input": parse(f"l = SequenceLength (s) {BOTH}", more=", seq(float) s"),
    "an optional input": parse(
        "a = OptionalGetElement (o) c = OptionalHasElement (o) b = Cast <to = 1> (c)", more=", optional(float) o"
    ),
    "a map of an input": parse(
        f"{THREE} m, t = SequenceMap <body = {MAPPED}> (q, x) a = SequenceAt (m, zero) b = SequenceAt (t, zero)",
        more=", seq(float) q",
    ),
    "unknown rank": parse(f"s = SplitToSequence (x, two) {BOTH}", unknown=True),
    "no sequence": parse("a = Relu (x) b = Relu (a)"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name):
    model = LEFT[name].clone()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not resolve_sequences(model.graph, Names(model))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
