"""Tests the schemas of the ops that ORT's gradient builder writes."""

from __future__ import annotations

import onnx
import pytest

from bngrad.opset import ort_dialect
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL, stock_ops

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
NAMES = {
    ("", "MaxPoolGrad"),
    ("", "AveragePoolGrad"),
    BATCH_NORM_INTERNAL,
    ("com.microsoft", "ConcatTraining"),
}


def inferred(text):
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEADER + text), strict_mode=True)
    types = {}
    for value in model.graph.value_info:
        tensor = value.type.tensor_type
        types[value.name] = (
            tensor.elem_type,
            [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim],
        )
    return types


F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
INFERRED = {
    "batch-norm": (
        """g (float[N,3,H] x, float[3] s) => (float[N,3,H] out) {
            y, m, v, sm, si = com.microsoft.BatchNormInternal(x, s, s, s, s)
            out = Neg(y) }""",
        {"y": (F, ["N", 3, "H"]), **dict.fromkeys(("m", "v", "sm", "si"), (F, [3]))},
    ),
    "concat": (
        """g (float[N,2,4] a, float[N,3,4] b, float[N,5,4] c) => (float[N,10,4] out) {
            y, lengths = com.microsoft.ConcatTraining<axis = 1>(a, b, c)
            out = Neg(y) }""",
        {"y": (F, ["N", 10, 4]), "lengths": (I64, [3])},
    ),
    "concat-negative-axis": (
        """g (float[N,2,4] a, float[N,2,6] b) => (float[N,2,10] out) {
            y, lengths = com.microsoft.ConcatTraining<axis = -1>(a, b)
            out = Neg(y) }""",
        {"y": (F, ["N", 2, 10]), "lengths": (I64, [2])},
    ),
    "concat-without-lengths": (
        """g (float[1,2] a, float[3,2] b) => (float[4,2] out) {
            y = com.microsoft.ConcatTraining<axis = 0>(a, b)
            out = Neg(y) }""",
        {"y": (F, [4, 2])},
    ),
}


@pytest.mark.parametrize("case", INFERRED)
def test_shapes_are_inferred_through_the_forward_part(case):
    text, want = INFERRED[case]
    got = inferred(text)
    assert {name: got[name] for name in want} == want


def test_a_sum_of_symbolic_extents_is_none_of_them():
    got = inferred(
        """g (float[N,2] a, float[M,2] b) => (float[K,2] out) {
            y, lengths = com.microsoft.ConcatTraining<axis = 0>(a, b)
            out = Neg(y) }"""
    )
    element_type, (along, other) = got["y"]
    assert (element_type, other) == (F, 2)
    assert along not in ("N", "M")


@pytest.mark.parametrize("first", ["x, b", "b, x"])
def test_an_unknown_shape_stays_unknown_but_its_type_does_not(first):
    got = inferred(
        f"""g (float[N] flat, int64[K] to, float[1,2] b) => (float[a,b] out) {{
            x = Reshape(flat, to)
            y, lengths = com.microsoft.ConcatTraining<axis = 0>({first})
            out = Neg(y) }}"""
    )
    assert got["y"] == (F, [])
    assert got["lengths"] == (I64, [2])


@pytest.mark.parametrize("opset", [9, 12, 15, 21, 23])
def test_the_checker_takes_the_pooling_gradients_of_the_default_domain(opset):
    model = onnx.parser.parse_model(
        HEADER.replace("17", str(opset))
        + """g (float[N,2,2,2] dy, int64[N,2,2,2] mask) => (float[N,2,4,4] a, float[N,2,4,4] b) {
            a = MaxPoolGrad<kernel_shape = [2, 2], strides = [2, 2]>(dy, mask)
            b = AveragePoolGrad<kernel_shape = [2, 2], strides = [2, 2], count_include_pad = 1>(dy) }"""
    )
    onnx.checker.check_model(model, full_check=True)


def test_registering_again_changes_nothing():
    before = len(onnx.defs.get_all_schemas_with_history())
    ort_dialect.register_schemas()
    assert len(onnx.defs.get_all_schemas_with_history()) == before
    assert all(onnx.defs.has(name, domain=domain) for domain, name in NAMES)


def test_what_stock_ort_has():
    stock = stock_ops()
    assert {("", "Relu"), ("", "BatchNormalization"), ("com.microsoft", "FusedMatMul")} <= stock
    assert not stock & {("com.microsoft", "ConvGrad"), BATCH_NORM_GRAD, *NAMES}


def test_what_stock_ort_has_where_a_training_build_does_not_say(monkeypatch):
    """The installed stock build has all of them, except newer ops of onnx, and no training op."""
    ours = stock_ops()
    monkeypatch.delattr("onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema")
    stock = stock_ops.__wrapped__()
    assert {("", "Relu"), ("", "BatchNormalization"), ("com.microsoft", "FusedMatMul")} <= stock
    assert not stock & {("com.microsoft", "ConvGrad"), BATCH_NORM_GRAD, *NAMES}
    assert {name for name in stock - ours if name[0] == "com.microsoft"} == set()
