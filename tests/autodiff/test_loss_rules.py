"""Softmaxes and losses: old opsets, only padding, and nodes that cannot be lowered."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from autodiff.cases.loss import BEFORE_OPSET_13
from autodiff.gradient_cases import Case, lowered
from autodiff.gradient_checks import CheckedCase, against_oracle, on_stock
from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from bngrad.runtime.session import session


@pytest.mark.parametrize("case", BEFORE_OPSET_13, ids=str)
def test_softmax_of_opset_12(case, oracle):
    checked = CheckedCase(case, oracle)
    for dims in case.dims:
        checked.run(on_stock, dims)
        checked.run(against_oracle, dims)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("ignored", [-100, -1, 0, 7])
def test_padding_alone(op, ignored):
    """The mean over no label at all is 0 / 0; its gradient is 0, as in ORT."""
    case = Case("", "float[N, 5] x, int64[N] t", f"y = {op} <ignore_index = {ignored}> (x, t)")
    feeds = {"x": np.ones([3, 5], np.float32), "t": np.full([3], ignored), "y_weight": np.float32([2]).reshape([])}
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], feeds)
    np.testing.assert_array_equal(got, np.zeros([3, 5]))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "dx = com.microsoft.SoftmaxCrossEntropyLossGrad (dy, x, t, w, x)",
            "it has 5 inputs; expected dY, log_prob, labels and perhaps weights",
        ),
        ("u = Reshape (x, s) v = Identity (u) dx = com.microsoft.SoftmaxGrad (u, v)", "its rank is unknown"),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.LogSoftmaxGrad (u, v)",
            "its rank is unknown",
        ),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.LayerNormalizationGrad (u, v, w, w, w)",
            "the rank of its X is unknown",
        ),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.SimplifiedLayerNormalizationGrad (u, v, w, w)",
            "the rank of its X is unknown",
        ),
    ],
    ids=["addend", "softmax", "log softmax", "layer norm", "simplified layer norm"],
)
def test_what_cannot_be_lowered(body, reason):
    text = f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N, 5] x, int64[N] t, float[5] w, float[N] dy, int64[K] s) => (float[A, B] dx) {{ {body} }}
    """
    with pytest.raises(UnsupportedNodeError, match=reason):
        rewrite(ir.from_proto(onnx.parser.parse_model(text)))
