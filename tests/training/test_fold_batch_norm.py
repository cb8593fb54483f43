"""Batch norms are folded into layers: the same function in float64, or a reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import bngrad
from bngrad.errors import ModelError
from statistics_cases import initializers

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
BN = "BatchNormalization <epsilon = 0.125>"


def model_of(nodes, weights, *, channels, x="N,4,6,6", rank="N,C,H,W"):
    """A model in double with random weights, and batch norms with parameters s, b, m and v."""
    model = onnx.parser.parse_model(f"{HEADER}g (double[{x}] x) => (double[{rank}] y) {{ {nodes} }}")
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(shape) for name, shape in weights.items()}
    values |= {name: rng.standard_normal(channels) for name in "sbm"} | {"v": rng.random(channels) + 0.5}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    return model


def run(model, shape):
    x = np.random.default_rng(4).standard_normal(shape)
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


NORM = f"[bn] y = {BN} (h, s, b, m, v)"
FIRST = f"[bn] h = {BN} (x, s, b, m, v)"
FLAT = {"x": "N,4", "rank": "N,C"}
CASES = {
    "conv": (f"h = Conv (x, w) {NORM}", {"w": (6, 4, 3, 3)}, 6, {}, "Conv"),
    "conv with a bias, groups and pads": (
        f"h = Conv <group = 2, pads = [1,1,1,1]> (x, w, c) {NORM}",
        {"w": (6, 2, 3, 3), "c": 6},
        6,
        {},
        "Conv",
    ),
    "conv and add": (f"a = Conv (x, w) h = Add (c, a) {NORM}", {"w": (6, 4, 3, 3), "c": (6, 1, 1)}, 6, {}, "Conv"),
    "transpose": (
        f"h = ConvTranspose <strides = [2,2]> (x, w, c) {NORM}",
        {"w": (4, 3, 2, 2), "c": 3},
        3,
        {},
        None,
    ),
    "conv as PyTorch's exporter writes it without a bias": (
        f"k = Shape <end = 1> (w) z = CastLike (zero, x) c = Expand (z, k) h = Conv (x, w, c) {NORM}",
        {"w": (6, 4, 3, 3), "zero": ()},
        6,
        {},
        "Conv",
    ),
    "gemm": (f"h = Gemm <transB = 1> (x, w, c) {NORM}", {"w": (3, 4), "c": 3}, 3, FLAT, "Gemm"),
    "gemm with factors and a matrix": (
        f"h = Gemm <alpha = 0.5, beta = 3.0> (x, w, c) {NORM}",
        {"w": (4, 3), "c": (5, 1)},
        3,
        FLAT,
        "Gemm",
    ),
    "gemm with a scalar and add": (
        f"a = Gemm <beta = 3.0> (x, w, c) h = Add (a, d) {NORM}",
        {"w": (4, 3), "c": (), "d": (1, 3)},
        3,
        FLAT,
        "Gemm",
    ),
    "matmul": (f"h = MatMul (x, w) {NORM}", {"w": (4, 3)}, 3, FLAT, "MatMul"),
    "matmul and add": (f"a = MatMul (x, w) h = Add (a, c) {NORM}", {"w": (4, 3), "c": 3}, 3, FLAT, "MatMul"),
    "before a conv": (f"{FIRST} y = Conv (h, w, c)", {"w": (6, 4, 3, 3), "c": 6}, 4, {}, "Conv"),
    "before a conv with groups": (
        f'{FIRST} y = Conv <group = 2, auto_pad = "VALID"> (h, w)',
        {"w": (6, 2, 3, 3)},
        4,
        {},
        "Conv",
    ),
    "before a gemm": (
        f"{FIRST} y = Gemm <alpha = 2.0, beta = 3.0> (h, w, c)",
        {"w": (4, 3), "c": 3},
        4,
        FLAT,
        "Gemm",
    ),
    "before a transposed gemm": (f"{FIRST} y = Gemm <transB = 1> (h, w)", {"w": (3, 4)}, 4, FLAT, "Gemm"),
    "before a matmul": (f"{FIRST} y = MatMul (h, w)", {"w": (4, 3)}, 4, FLAT, "MatMul"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_function_stays(case):
    nodes, weights, channels, shapes, layer = CASES[case]
    model = model_of(nodes, weights, channels=channels, **shapes)
    folded = bngrad.edit_batch_norms(model, fold=True)
    types = [node.op_type for node in folded.graph.node]
    assert "BatchNormalization" not in types
    assert types.count("Add") == (layer == "MatMul")
    shape = (5, 4) if shapes else (5, 4, 6, 6)
    expected = run(model, shape)
    np.testing.assert_allclose(run(folded, shape), expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    assert not {"s", "b", "m", "v", "w"} & set(initializers(folded))
    assert [output.name for output in folded.graph.output] == ["y"]


PREFIX = "BatchNormalization node 'bn' (outputs"
REFUSED = {
    "training mode": (
        "h = Conv (x, w) [bn] y, rm, rv = BatchNormalization <training_mode = 1> (h, s, b, m, v)",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} y, rm, rv) cannot be folded: it is in training mode, in which",
    ),
    "read elsewhere": (
        f"h = Conv (x, w) [bn] n = {BN} (h, s, b, m, v) y = Mul (n, h)",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} n) cannot be folded: 'h' is read by 2 nodes; expected only one; Mul node",
    ),
    "shared weight": (
        f"a = Conv (x, w) h = Conv (a, w) {NORM}",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} y) cannot be folded: the weight 'w' of Conv node (outputs h) is read by other nodes, too",
    ),
    "padding": (
        f"{FIRST} y = Conv <pads = [1,1,1,1]> (h, w)",
        {"w": (4, 4, 3, 3)},
        f"{PREFIX} h) cannot be folded: no node computes its input; Conv node (outputs y) after it pads",
    ),
    "no layer": (
        f"h = Relu (x) {NORM}",
        {},
        f"{PREFIX} y) cannot be folded: Relu node (outputs h) computes its input, and not a Conv",
    ),
    "a transpose after it": (
        f"{FIRST} y = ConvTranspose (h, w)",
        {"w": (4, 4, 3, 3)},
        f"{PREFIX} h) cannot be folded: no node computes its input; ConvTranspose node (outputs y) reads it",
    ),
    "computed weight": (
        f"k = Mul (w, w) h = Conv (x, k) {NORM}",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} y) cannot be folded: the weight of Conv node (outputs h) is computed; expected",
    ),
    "computed statistics": (
        f"h = Conv (x, w) k = ReduceMean <axes = [0,2,3], keepdims = 0> (h) [bn] y = {BN} (h, s, b, k, v)",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} y) cannot be folded: its input 'k' is no constant of the model",
    ),
    "an addition that is no bias": (
        f"a = Conv (x, w) h = Add (a, c) {NORM}",
        {"w": (4, 4, 1, 1), "c": (6, 6)},
        f"{PREFIX} y) cannot be folded: Add node (outputs h) adds more than a number for each channel",
    ),
    "an output": (
        f"h = Conv (x, w) {NORM}",
        {"w": (4, 4, 1, 1)},
        f"{PREFIX} y) cannot be folded: 'h' is an output of the model",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_by_name(case):
    nodes, weights, message = REFUSED[case]
    model = model_of(nodes, weights, channels=4)
    if case == "an output":
        model.graph.output.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.DOUBLE, None))
    with pytest.raises(ModelError) as error:
        bngrad.edit_batch_norms(model, fold=True, batch_norms=["bn"])
    assert str(error.value).startswith(message)
    with pytest.raises(ModelError, match="none of 1 batch norms can be folded; 'bn': "):
        bngrad.edit_batch_norms(model, fold=True)


def test_a_variance_of_0():
    """Without an epsilon, the factor is infinite."""
    model = model_of(f"h = Conv (x, w) {NORM}".replace("0.125", "0.0"), {"w": (4, 4, 1, 1)}, channels=4)
    next(tensor for tensor in model.graph.initializer if tensor.name == "v").raw_data = bytes(32)
    with pytest.raises(ModelError, match=r"its bias, its mean or scale / sqrt\(var \+ epsilon\) is not finite"):
        bngrad.edit_batch_norms(model, fold=True)


def test_channels_of_a_matmul_are_last():
    model = model_of(f"h = MatMul (x, w) {NORM}", {"w": (6, 6)}, channels=4)
    with pytest.raises(ModelError, match="has channels last, and data of 4 dimensions; expected 2"):
        bngrad.edit_batch_norms(model, fold=True)


def test_initializers_that_are_inputs():
    model = model_of(f"h = Conv (x, w) {NORM}", {"w": (4, 4, 1, 1)}, channels=4)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    )
    folded = bngrad.edit_batch_norms(model, fold=True)
    assert [value.name for value in folded.graph.input] == ["x"]
    assert len(folded.graph.initializer) == 2


def as_type(model, dtype):
    """The model in another type."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model


def test_a_transpose_with_groups():
    """Of which onnx's reference fails."""
    nodes = f"h = ConvTranspose <group = 2, strides = [2,2], pads = [1,1,1,1]> (x, w) {NORM}"
    model = as_type(model_of(nodes, {"w": (4, 3, 3, 3)}, channels=6), np.float32)
    x = np.random.default_rng(4).standard_normal((5, 4, 6, 6)).astype(np.float32)
    expected, actual = (
        bngrad.session(graph).run(None, {"x": x})[0]
        for graph in (model, bngrad.edit_batch_norms(model, fold=True))
    )
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_an_addition_that_adds_a_dimension():
    """The channels of the batch norm are then the samples of the layer."""
    nodes = f"a = Gemm (x, w) h = Add (a, c) {NORM}"
    model = model_of(nodes, {"w": (4, 3), "c": (1, 3, 1)}, channels=3, x="3,4", rank="A,B,C")
    with pytest.raises(ModelError, match="may add dimensions to the data"):
        bngrad.edit_batch_norms(model, fold=True)


def test_weights_beyond_their_type():
    model = model_of(f"h = MatMul (x, w) {NORM}", {"w": (4, 3)}, channels=3, **FLAT)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((4, 3), 6e4), "w"))
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.full(3, 8.0), "s"))
    with pytest.raises(ModelError, match=r"the new values are up to .*, beyond the range of float16"):
        bngrad.edit_batch_norms(as_type(model, np.float16), fold=True)


def test_others_stay_with_a_warning():
    nodes = f"[first] h = Conv (x, w) [bn1] r = {BN} (h, s, b, m, v) q = Relu (r) [bn2] y = {BN} (q, s, b, m, v)"
    model = model_of(nodes, {"w": (4, 4, 1, 1)}, channels=4)
    with pytest.warns(bngrad.BngradWarning, match="batch norm 'bn2' is not folded: Relu node"):
        folded = bngrad.edit_batch_norms(model, fold=True, batch_norms=["bn*"])
    assert [node.name for node in folded.graph.node if node.op_type == "BatchNormalization"] == ["bn2"]
    shape = (5, 4, 6, 6)
    np.testing.assert_allclose(run(folded, shape), run(model, shape), rtol=0, atol=1e-12)
