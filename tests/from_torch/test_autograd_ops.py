"""The ops that PyTorch runs for ``validate --against torch``: on onnx's cases, and with every gradient rule."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from autodiff.cases import TABLES
from autodiff.gradient_cases import feeds_of, forward, lowered, written
from bngrad.autodiff.rules import RULES
from bngrad.errors import UnsupportedNodeError
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.options import ForwardOptions
from bngrad.torch.autograd import ops
from bngrad.torch.autograd.model import Autograd
from bngrad.torch.autograd.table import OPS
from bngrad.validation.float64 import EvaluationError, evaluate

assert ops, "it fills the table"
IN_NUMPY = {("", name) for name in ("Bernoulli", "Dropout", "EyeLike", "RandomNormalLike", "RandomUniformLike")}
IN_NUMPY |= {("", "DynamicQuantizeLinear")}
BATCH_NORMS = ("Grad", "ReluGrad", "Statistics", "Training")
IN_TRAINING_GRAPHS = {BATCH_NORM_INTERNAL, *((DOMAIN, f"BatchNormalization{name}") for name in BATCH_NORMS)}
IN_TRAINING_GRAPHS |= {(DOMAIN, "MaxPoolInputGrad")}
WITHOUT = {("", "DequantizeLinear"), (MICROSOFT, "MatMulNBits")}
"""The ops of which `validate --against torch` says that it has no function."""
SEQUENCES = {name for _, name in OPS if "Sequence" in name and name != "ReverseSequence"}
"""Their cases have several nodes; `test_sequences` has one."""
WITHOUT_CASE = {*SEQUENCES, "GlobalLpPool", "MaxRoiPool", "Optional"}
"""The ops of which onnx has no test with one node and tensors."""
REFUSED = {
    "MaxPool": {"maxpool_2d_uint8": "it is not of floats"},
    "ReduceMax": {"reduce_max_empty_set_bool": "it has no elements to reduce"},
}
"""The cases of onnx that PyTorch lacks, with the message."""
OF_OLD_OPSET = {"test_scan_sum"}
"""The cases whose opset cannot be raised: a Scan of opset 8 has a batch dimension."""
TYPES = {
    getattr(onnx.TensorProto, name)
    for name in ("BOOL", "DOUBLE", "FLOAT", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8")
}
"""The types of onnx's cases that are compared."""
LIMIT = 2e-6
"""The limit for gradients, whose graphs have constants in float."""


def test_every_gradient_rule_has_a_function():
    assert RULES.keys() - OPS.keys() == IN_NUMPY | IN_TRAINING_GRAPHS | WITHOUT


@cache
def onnx_cases():
    """onnx's tests of single nodes, by op type."""
    from onnx.backend.test.loader import load_model_tests

    tests = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in load_model_tests(kind="node"):
            if test.model is not None and len(test.model.graph.node) == 1 and test.data_sets:
                tests.setdefault(test.model.graph.node[0].op_type, []).append(test)
    return tests


@pytest.mark.parametrize("op_type", sorted(name for domain, name in OPS if domain == ""))
def test_onnx_cases(op_type):
    compared, refused = 0, {}
    for test in onnx_cases().get(op_type, []):
        graph = test.model.graph
        (inputs, outputs), *_ = test.data_sets
        if test.name in OF_OLD_OPSET or not all(_has_type(value) for value in (*graph.input, *graph.output)):
            continue
        names = [value.name for value in graph.output]
        feeds = {value.name: _array(array) for value, array in zip(graph.input, inputs, strict=False)}
        try:
            actual = Autograd(ir.from_proto(test.model), names[0], {}, ForwardOptions())(feeds, names)
        except UnsupportedNodeError as error:
            refused[test.name.removeprefix("test_")] = str(error)
            continue
        for name, want in zip(names, outputs, strict=True):
            np.testing.assert_allclose(actual[name], _array(want), rtol=1e-3, atol=1e-5, err_msg=test.name)
        compared += 1
    assert bool(compared) != (op_type in WITHOUT_CASE)
    expected = REFUSED.get(op_type, {})
    assert refused.keys() == expected.keys()
    for name, message in refused.items():
        assert message.startswith(f"{op_type} node ")
        assert expected[name] in message
        assert message.endswith("use --against reference or numeric")


def _has_type(value):
    return value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type in TYPES


def _array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def test_sequences():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[2,6] x) => (float[6,2] y, float[2,2,2] z, int64 n, float loss)
        <int64[3] sizes = {1, 2, 3}, int64 i = {1}, int64 zero = {0}>
    {
        parts = SplitToSequence<axis = 1>(x, sizes)
        at = SequenceAt(parts, i)
        empty = SequenceEmpty()
        inserted = SequenceInsert(empty, at)
        before = SequenceInsert(inserted, x, zero)
        after = SequenceInsert(before, x)
        first = SequenceErase(after)
        last = SequenceErase(first, zero)
        erased = SequenceAt(last, zero)
        other = SequenceConstruct(at, erased)
        z = ConcatFromSequence<axis = 0, new_axis = 1>(other)
        ones = SplitToSequence<axis = 1, keepdims = 0>(x)
        y = ConcatFromSequence<axis = 0, new_axis = 1>(ones)
        n = SequenceLength(ones)
        loss = ReduceSum<keepdims = 0>(z)
    }""")
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    actual = Autograd(ir.from_proto(model), "loss", {"x": "x_grad"}, ForwardOptions())({"x": x})
    assert actual["n"] == 6
    np.testing.assert_array_equal(actual["y"], x.T)
    np.testing.assert_array_equal(actual["z"], np.stack([x[:, 1:3]] * 2))
    np.testing.assert_array_equal(actual["x_grad"], np.repeat([[0, 2, 2, 0, 0, 0]], 2, axis=0))


def test_sequence_map_and_optionals():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[2,3] x, float[3] w) => (float[2,3] y, bool none, bool some, float loss)
    {
        rows = SplitToSequence<keepdims = 0>(x)
        scaled, sums = SequenceMap<body = f (float[3] row, float[3] by) => (float[3] product, float sum) {
            product = Mul(row, by)
            sum = ReduceSum<keepdims = 0>(product)
        }>(rows, w)
        kept = Optional(scaled)
        some = OptionalHasElement(kept)
        empty = Optional<type: type_proto = seq(float[3])>()
        none = OptionalHasElement(empty)
        back = OptionalGetElement(kept)
        y = ConcatFromSequence<axis = 0, new_axis = 1>(back)
        total = ConcatFromSequence<axis = 0, new_axis = 1>(sums)
        loss = ReduceSumSquare<keepdims = 0>(total)
    }""")
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, -1, 2], np.float32)
    gradients = {"x": "x_grad", "w": "w_grad"}
    actual = Autograd(ir.from_proto(model), "loss", gradients, ForwardOptions())({"x": x, "w": w})
    np.testing.assert_array_equal(actual["y"], x * w)
    assert (actual["some"], actual["none"]) == (True, False)
    np.testing.assert_array_equal(actual["x_grad"], 2 * (x @ w)[:, None] * w)
    np.testing.assert_array_equal(actual["w_grad"], 2 * (x @ w) @ x)


def test_an_optional_without_an_element_is_refused():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] x) => (float loss) {
        empty = Optional<type: type_proto = float[3]>()
        [get] y = OptionalGetElement(empty)
        z = Mul(x, y)
        loss = ReduceSum<keepdims = 0>(z)
    }""")
    x = np.ones(3, np.float32)
    with pytest.raises(UnsupportedNodeError, match=r"^OptionalGetElement node 'get' .* has no element"):
        Autograd(ir.from_proto(model), "loss", {"x": "x_grad"}, ForwardOptions())({"x": x})


def without_function(case):
    return sorted(node.op_type for node in written(case).graph.node if (node.domain, node.op_type) in WITHOUT)


CASES = [case for cases in TABLES.values() for case in cases]
REFUSED_CASES = {op: case for case in CASES for op in without_function(case)}


@pytest.mark.parametrize("op", [op for _, op in sorted(WITHOUT)])
def test_ops_without_a_function_are_refused(op):
    case = REFUSED_CASES[op]
    gradients = dict(zip(case.wrt, case.gradients, strict=True))
    with pytest.raises((UnsupportedNodeError, EvaluationError), match=f"{op} node"):
        Autograd(ir.from_proto(forward(case)), "loss", gradients, ForwardOptions())(
            feeds_of(case, case.dims[0]), ["loss", *case.gradients]
        )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.long] * (place % 3 > 0), id=str(case))
        for place, case in enumerate(case for case in CASES if not without_function(case))
    ],
)
def test_gradient_rules(case):
    """The rules' own cases: the loss and each gradient, of the lowered graph in NumPy and of PyTorch."""
    feeds, names = feeds_of(case, case.dims[0]), ["loss", *case.gradients]
    model = ir.from_proto(forward(case))
    got = Autograd(model, "loss", dict(zip(case.wrt, case.gradients, strict=True)), ForwardOptions())(feeds, names)
    want = evaluate(lowered(case), feeds, names)
    for name in names:
        assert got[name].shape == want[name].shape
        assert np.linalg.norm(got[name] - want[name]) <= LIMIT * max(np.linalg.norm(want[name]), 1e-6), name
