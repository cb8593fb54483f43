"""The NumPy ops against ORT-training's kernels and against stock ONNX Runtime, and what they are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bngrad.errors import OracleError, UnsupportedNodeError
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.validation.float64 import evaluate
from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS
from bngrad.validation.training_ops._windows import slide
from training_op_cases import CASES, DOMAIN, Case, values

ORT_IS_WRONG = {
    "ConvGrad-same-upper": "ignores auto_pad",
    "ConvGrad-same-lower": "ignores auto_pad",
    "AveragePoolGrad-same-upper": "ignores auto_pad",
    "AveragePoolGrad-same-lower": "ignores auto_pad",
    "AveragePoolGrad-3d": "is wrong in three dimensions where windows overlap or are padded",
    "AveragePoolGrad-3d-include-pad": "is wrong in three dimensions where windows overlap or are padded",
    "AveragePool-ceil-pads-include-pad": "counts what ceil_mode added; corrected in later releases",
    "AveragePoolGrad-ceil-pads-include-pad": "counts what ceil_mode added",
    "DropoutGrad-inference": "ignores training_mode",
    "DropoutGrad-no-mode": "takes training_mode, which its schema makes false, for true",
}
"""Errors of ORT-training 1.19.2, by case; test_training_op_gradients.py compares with finite differences."""

ORT_REFUSES = {
    "SliceGrad-backwards": "narrowing_error",
    **{case.id: "Could not find an implementation" for case in CASES if case.op in ("DeformConv", "ResizeGrad")},
}
"""Its messages about negative steps of the last axis, and about missing kernels."""

STOCK = {"Gelu", "BiasGelu", "FastGelu", "QuickGelu", "FusedMatMul"}


def expected(op, output_sets):
    """The order of BroadcastGradientArgs' axes means nothing."""
    return [np.sort(x) for x in output_sets] if op == "BroadcastGradientArgs" else output_sets


def assert_close(case, got, want):
    assert got.keys() == want.keys()
    for name in want:
        a, b = expected(case.op, [np.asarray(got[name]), np.asarray(want[name])])
        assert a.shape == b.shape
        # A few roundings of float32, relative to the largest element; integers are exact.
        limit = 0 if b.dtype.kind == "i" else 3e-6 * max(1, np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=name)


def test_every_op_has_a_case_and_no_case_is_there_twice():
    assert {case.op for case in CASES} == set(DOMAIN)
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.id for case in CASES}.issuperset([*ORT_IS_WRONG, *ORT_REFUSES])


@pytest.mark.parametrize("case", [case for case in CASES if case.id not in {*ORT_IS_WRONG, *ORT_REFUSES}], ids=str)
def test_agrees_with_ort_training(case, oracle):
    assert_close(case, evaluate(case.model(), case.feeds), oracle.run(case.model(), case.feeds))


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ORT_IS_WRONG], ids=str)
def test_differs_where_ort_training_is_wrong(case, oracle):
    with pytest.raises(AssertionError):
        assert_close(case, evaluate(case.model(), case.feeds), oracle.run(case.model(), case.feeds))


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ORT_REFUSES], ids=str)
def test_runs_what_ort_training_refuses(case, oracle):
    with pytest.raises(OracleError, match=ORT_REFUSES[case.id]):
        oracle.run(case.model(), case.feeds)
    shapes = {"DeformConv": case.inputs[0].shape, "ResizeGrad": case.inputs[1].shape}
    shape = shapes.get(case.op) or tuple(case.inputs[1])
    assert evaluate(case.model(), case.feeds)["a"].shape == shape


def is_stock(op):
    return op in STOCK or (DOMAIN[op] == "" and not op.endswith("Grad"))


@pytest.mark.parametrize("case", [case for case in CASES if is_stock(case.op)], ids=str)
def test_agrees_with_stock_onnxruntime(case):
    session = ort.InferenceSession(case.model().SerializeToString())
    names = [value.name for value in session.get_outputs()]
    want = dict(zip(names, session.run(names, case.feeds), strict=True))
    assert_close(case, evaluate(case.model(), case.feeds), want)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_computes_in_float64(case):
    """An input moved by 1e-12 moves the result, and not by more than a well-conditioned op may."""
    results = evaluate(case.model(), case.feeds)
    moved = {
        name: array * (1 + 1e-12 * values(*array.shape, seed=9).astype(np.float64))
        if array.dtype == np.float32
        else array
        for name, array in case.feeds.items()
    }
    again = evaluate(case.model(), moved)
    floats = [name for name in results if results[name].dtype.kind == "f"]
    assert all(results[name].dtype == np.float64 for name in floats)
    for name in floats:
        if results[name].any() and any(array.dtype == np.float32 and array.any() for array in case.feeds.values()):
            change = np.abs(again[name] - results[name]).max()
            assert 0 < change < 1e-9, name


DEFAULTS = [
    ("BatchNormalizationGrad", {"epsilon": 1e-5}),
    ("BatchNormInternal", {"epsilon": 1e-5, "momentum": 0.9}),
    ("BatchNormalization", {"epsilon": 1e-5, "momentum": 0.9}),
    ("LeakyReluGrad", {"alpha": 0.01}),
    ("QuickGelu", {"alpha": 1.702}),
    ("QuickGeluGrad", {"alpha": 1.702}),
    ("FusedMatMul", {"alpha": 1.0}),
    ("GatherGrad", {"axis": 0}),
]


@pytest.mark.parametrize(("op", "attributes"), DEFAULTS, ids=[op for op, _ in DEFAULTS])
def test_default_equals_the_attribute_spelled_out(op, attributes):
    """To the last bit: a rewrite spells defaults out, as float32."""
    case = next(case for case in CASES if case.op == op)
    without = {name: value for name, value in case.attributes.items() if name not in attributes}
    implicit = evaluate(replace(case, attributes=without).model(), case.feeds)
    explicit = evaluate(replace(case, attributes={**without, **attributes}).model(), case.feeds)
    for name, array in implicit.items():
        np.testing.assert_array_equal(array, explicit[name])


@pytest.mark.parametrize(
    ("arguments", "begin", "end", "out"),
    [
        pytest.param({"sizes": [7], "kernel": [3]}, (0,), (0,), (5,), id="defaults"),
        pytest.param(
            {"sizes": [7], "kernel": [3], "auto_pad": "NOTSET", "pads": [1, 2]}, (1,), (2,), (8,), id="pads"
        ),
        pytest.param({"sizes": [7], "kernel": [4], "auto_pad": "SAME_UPPER"}, (1,), (2,), (7,), id="upper"),
        pytest.param({"sizes": [7], "kernel": [4], "auto_pad": "SAME_LOWER"}, (2,), (1,), (7,), id="lower"),
        pytest.param(
            {"sizes": [7], "kernel": [3], "auto_pad": "VALID", "pads": [9, 9]}, (0,), (0,), (5,), id="valid"
        ),
        pytest.param({"sizes": [6], "kernel": [3], "strides": [2], "ceil_mode": 1}, (0,), (0,), (3,), id="ceil"),
        # The third window would start in the padding behind the data, so it does not exist.
        pytest.param(
            {"sizes": [4], "kernel": [2], "strides": [2], "pads": [0, 1], "ceil_mode": 1},
            (0,),
            (1,),
            (2,),
            id="ceil-drops-empty-window",
        ),
        pytest.param({"sizes": [5], "kernel": [1], "strides": [9]}, (0,), (0,), (1,), id="stride-beyond"),
    ],
)
def test_geometry(arguments, begin, end, out):
    windows = slide(**arguments)
    padding = [(axis.begin, axis.end) for axis in windows.axes]
    assert (padding, windows.out) == (list(zip(begin, end, strict=True)), out)


def test_scatter_is_the_transpose_of_view():
    windows = slide([7, 5], [3, 2], strides=[2, 1], pads=[1, 0, 2, 1], dilations=[2, 1])
    x = values(2, 3, 7, 5).astype(np.float64)
    columns = values(2, 3, *windows.out, *windows.kernel).astype(np.float64)
    np.testing.assert_allclose(
        (windows.view(x, 0) * columns).sum(), (x * windows.scatter(columns)).sum(), rtol=1e-12
    )


def test_classes_do_not_take_over_schemas_of_the_same_name():
    assert [(op.op_domain, op.__name__) for op in OP_RUNS] == list(FUNCTIONS)
    assert all(op.op_schema is None for op in OP_RUNS)


OWN_OPS = """<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (float[3,4,5] dy, float[3,4,5] x, float[{parameters}] s) => (y0, y1, y2) {{
    axes = Constant<value_ints = [{axes}]>()
    y1, y2 = bngrad.BatchNormalizationStatistics<epsilon = 0.5>(x, axes)
    y0, ds, db = bngrad.BatchNormalizationGrad<training_mode = {mode}>(dy, x, s, y1, y2, axes)
}}"""


@pytest.mark.parametrize("mode", [0, 1], ids=["frozen", "training"])
@pytest.mark.parametrize(("axes", "parameters"), [("0, 2", (4,)), ("-1", (3, 4))], ids=["channels", "instances"])
def test_our_ops_agree_with_their_functions(axes, parameters, mode):
    text = OWN_OPS.format(axes=axes, parameters=",".join(map(str, parameters)), mode=mode)
    model = ir.from_proto(onnx.parser.parse_model(text))
    feeds = {"dy": values(3, 4, 5), "x": values(3, 4, 5, seed=1), "s": values(*parameters)}
    names = ["y0", "y1", "y2", "ds", "db"]
    got = evaluate(ir.to_proto(model), feeds, names)
    EmbedFunctionsPass(functions=True)(model)
    for name, want in evaluate(ir.to_proto(model), feeds, names).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-12, atol=1e-12, err_msg=name)


OWN_FORWARD = """<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (float[3,4,5] x, float[4] s, float[4] b, float[4] m, float[4] v) => (y, m2, v2, sm, si) {{
    axes = Constant<value_ints = [0, 2]>()
    y, m2, v2, sm, si = bngrad.BatchNormalizationTraining
        <epsilon = 0.5, momentum = 0.75, unbiased_running_var = {unbiased}>(x, s, b, m, v, axes)
}}"""


@pytest.mark.parametrize("unbiased", [0, 1], ids=["biased", "unbiased"])
def test_our_forward_op_agrees_with_its_function(unbiased):
    model = ir.from_proto(onnx.parser.parse_model(OWN_FORWARD.format(unbiased=unbiased)))
    feeds = {"x": values(3, 4, 5), **{name: values(4, seed=i) for i, name in enumerate("sbmv")}}
    got = evaluate(ir.to_proto(model), feeds)
    EmbedFunctionsPass(functions=True)(model)
    for name, want in evaluate(ir.to_proto(model), feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-12, atol=1e-12, err_msg=name)


FROZEN = Case("BatchNormInternal", "frozen", (values(2, 3), *[values(3)] * 4), {"training_mode": 0}, "abcde")
COLUMN_MAJOR = Case(
    "MaxPoolGrad",
    "column-major",
    (values(1, 1, 2, 2), np.zeros([1, 1, 2, 2], np.int64)),
    {"kernel_shape": [2, 2], "storage_order": 1},
    extents=(1, 1, 3, 3),
)


@pytest.mark.parametrize(
    ("case", "message"), [(FROZEN, "training_mode = 0"), (COLUMN_MAJOR, "storage_order = 1")], ids=str
)
def test_what_ort_gets_wrong_or_never_writes_is_refused(case, message):
    with pytest.raises(UnsupportedNodeError, match=message):
        evaluate(case.model(), case.feeds)


def test_conv_of_no_samples():
    assert FUNCTIONS["", "Conv"](np.zeros((0, 2, 5, 6)), np.zeros((4, 2, 3, 3)), np.zeros(4)).shape == (0, 4, 3, 4)
