"""Batch norm and its relatives: types, lengths of 0, and models that stock ONNX Runtime cannot run."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from autodiff.cases.normalization import SIZES, STATISTICS, XSB, norm
from autodiff.gradient_cases import Case, feeds_of, lowered, positive
from autodiff.gradient_checks import CheckedCase, against_differences
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import UnsupportedNodeError
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

NOT_ON_STOCK = [
    norm("double", "InstanceNormalization", "N, 3, H, W", element="double"),
    norm("double", "LRN", "N, 6, H, W", attributes="size = 3, alpha = 0.5", inputs="x", element="double"),
    norm("of 4", "LRN", "N, 6, H, W", attributes="size = 4, alpha = 0.5", inputs="x"),
    norm("of 2", "LRN", "N, 6, H, W", attributes="size = 2, alpha = 0.5", inputs="x"),
    *(
        Case(
            f"BatchNormalization {mode}, double, parameters and statistics in float",
            "double[N, 3, W] x, float[3] s, float[3] b",
            f"y = BatchNormalization <training_mode = {mode}> (x, s, b, m, v)",
            XSB,
            initializers=STATISTICS,
            dims=SIZES[:1],
            element="double",
        )
        for mode in (0, 1)
    ),
]
"""Cases whose forward model has no kernel in stock ONNX Runtime."""


@pytest.mark.parametrize("case", NOT_ON_STOCK, ids=str)
def test_central_differences_alone(case):
    CheckedCase(case).run(against_differences, case.dims[0])


@pytest.mark.parametrize("mode", [0, 1], ids=["frozen", "training"])
@pytest.mark.parametrize("parameters", ["float", "float16"])
@pytest.mark.parametrize("statistics", ["float", "float16"])
def test_batch_norm_of_float16(mode, parameters, statistics):
    """Parameters and statistics have the type of X, or float; a gradient has the type of its variable."""
    inputs = "{0}[N, 3, H, W] x, {1}[3] s, {1}[3] b, {2}[3] m, {2}[3] v"
    body = f"y = BatchNormalization <training_mode = {mode}> (x, s, b, m, v)"
    more = {"dims": SIZES[:1], "draw": {"v": positive}}
    case = Case(
        "batch norm", inputs.format("float16", parameters, statistics), body, XSB, element="float16", **more
    )
    single = Case("batch norm", inputs.format(*["float"] * 3), body, XSB, **more)
    feeds = feeds_of(case, case.dims[0])
    names = [f"{name}_grad" for name in XSB]
    exact = evaluate(lowered(single), {name: array.astype(np.float32) for name, array in feeds.items()}, names)
    for name, got in zip(names, session(lowered(case), "function", threads=1).run(names, feeds), strict=True):
        assert got.dtype == feeds[name.removesuffix("_grad")].dtype
        np.testing.assert_allclose(got, exact[name], rtol=0, atol=4e-3 * np.abs(exact[name]).max())


@pytest.mark.parametrize("op", ["LpNormalization <p = 1>", "LpNormalization <p = 2>", "ReduceL2"])
def test_a_length_of_0_has_no_gradient(op):
    """The gradient is 0, and not infinite or NaN."""
    axes = ", axes" if op == "ReduceL2" else ""
    case = Case("", "float[N, 3] x", f"y = {op} (x{axes})", initializers="int64[1] axes = {-1}")
    x = np.array([[0, 0, 0], [3, 0, -4]], np.float32)
    y_weight = np.array([[1, 2, 3], [1, 2, 3]], np.float32)[:, : 1 if axes else 3]
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], {"x": x, "y_weight": y_weight})
    np.testing.assert_array_equal(got[0], 0)
    assert np.isfinite(got).all()
    assert got[1].any()


def test_a_scale_of_groups_is_refused():
    """The GroupNormalization of opset 18, which onnx's checker calls deprecated."""
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[N, 6, 4] x, float[2] s, float[2] b) => (float loss) {
            y = GroupNormalization <num_groups = 2> (x, s, b)
            loss = ReduceSum <keepdims = 0> (y)
        }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(
        UnsupportedNodeError,
        match=r"its op has a new definition in ai.onnx 18, .*; expected version 21: .* a newer opset",
    ):
        training_graph(model, wrt=["x"])
