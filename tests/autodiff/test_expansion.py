"""Ops without a rule of their own: those that onnx defines by others, and those that ONNX Runtime fuses."""

from __future__ import annotations

from functools import cached_property
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from autodiff.gradient_cases import NO_RULE, Between, Case, forward, in_standard_onnx, lowered
from autodiff.gradient_checks import CheckedCase, against_differences, loss_on_stock, on_stock
from autodiff.small_models import differentiated, model
from bngrad.autodiff.expansion import expand, function_versions
from bngrad.autodiff.rules import RULES
from bngrad.errors import UnsupportedNodeError
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import session
from bngrad.validation.float64 import Evaluator

DECAY = Between(-1.5, -0.1)
"""A draw of logarithms of decay."""


def linear_attention(rule, *inputs, decay=4, **more):
    """T steps of 4 heads of queries, 2 of keys, of size 2; values of size 3."""
    shapes = {"d": f"N, T, {decay}", "b": "N, T, 2", "p": "N, 2, 2, 3"}
    names = ", ".join(name if name in inputs else "" for name in "pdb").rstrip(", ")
    attributes = f'update_rule = "{rule}", q_num_heads = 4, kv_num_heads = 2'
    tensors = ["N, T, 8] q", "N, T, 4] k", "N, T, 6] v", *(f"{shapes[name]}] {name}" for name in inputs)]
    return Case(
        f"linear attention, {rule}",
        ", ".join(f"float[{tensor}" for tensor in tensors),
        f"y, s = LinearAttention <{attributes}> (q, k, v{', ' * bool(names)}{names})",
        ("q", "k", "v", *inputs),
        outputs=("y", "s"),
        dims=({"N": 2, "T": 3},),
        draw={"d": DECAY} if "d" in inputs else {},
        oracle=NO_RULE,
        **{"float_limit": 3e-5, "opset": 27} | more,
    )


def causal_conv(name, attributes="", also="", **more):
    shapes = {"b": "float[2] b", "p": "float[N, 2, 2] p"}
    return Case(
        f"causal convolution {name}",
        ", ".join(("float[N, 2, T] x, float[2, 1, 3] w", *(shapes[word] for word in also))),
        f"y, s = CausalConvWithState {attributes} (x, w{', ' * bool(also)}{', '.join(also)})",
        ("x", "w", *also),
        outputs=("y", "s"),
        dims=({"N": 2, "T": 4},),
        oracle=NO_RULE,
        **{"opset": 27} | more,
    )


CASES = [
    linear_attention("gated_delta", "p", "d", "b"),
    linear_attention("linear", opset=28, is_long=True),
    linear_attention("gated", "d", decay=2, is_long=True),
    linear_attention("delta", "b", "p", is_long=True),
    causal_conv("with bias and state, silu", '<activation = "silu">', "bp"),
    causal_conv("without", opset=28, is_long=True),
]


class ExpandedCase(CheckedCase):
    """A case whose op onnx's reference evaluator computes in float32: the differences are of its function."""

    @cached_property
    def _expanded(self) -> Evaluator:
        expanded = ir.from_proto(forward(self.case))
        InferTypesPass()(expanded)
        expand(expanded, [value for value in expanded.graph.inputs if value.name in self.case.wrt])
        return Evaluator(ir.to_proto(expanded))

    def loss(self, feeds):
        return self._expanded(feeds, ["loss"])["loss"].item()


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=[pytest.mark.long] * case.is_long) for case in CASES]
)
def test_functions_of_onnx(case):
    op = case.body.split(" = ")[1].split()[0]
    assert ("", op) not in RULES
    assert op not in {node.op_type for node in lowered(case).graph.node}
    checked = ExpandedCase(case)
    for dims in case.dims:
        for check in (against_differences, on_stock, loss_on_stock):
            checked.run(check, dims)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < NEWEST_OPSET, reason="an older onnx")
def test_which_ops_functions_replace():
    """A newer op, or one that lost its rule, is here once its function was compared with it: add a case."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert {name for name in names if ("", name) not in RULES and function_versions(name, NEWEST_OPSET)} == {
        "CausalConvWithState",
        "LinearAttention",
        "SwiGLU",
    }


def test_a_function_within_a_function():
    case = Case(
        "", "float[2, 3] a, float[2, 3] b", "y = SwiGLU <alpha = 1.5> (a, b)", ("a", "b"), dims=({},), opset=28
    )
    without = {key: rule for key, rule in RULES.items() if key != ("", "Swish")}
    with patch.dict(RULES, without, clear=True):
        # ONNX Runtime has no kernel of Swish.
        ExpandedCase(case).run(against_differences, {})
        assert not {"SwiGLU", "Swish"} & {node.op_type for node in lowered(case).graph.node}


# name: (nodes that make y, with a fused op; the same with ONNX's ops)
FUSED = {
    "matmul": (
        "y = com.microsoft.FusedMatMul <transA = 1, transB = 1, alpha = 0.5> (x, w)",
        "a = Transpose (x) b = Transpose (w) m = MatMul (a, b) h = Constant <value_float = 0.5> () y = Mul (m, h)",
    ),
    "matmul as it is": ("y = com.microsoft.FusedMatMul (x, w)", "y = MatMul (x, w)"),
    "matmul of batches": (
        "u = Unsqueeze (x, f) y = com.microsoft.FusedMatMul <transA = 1, transBatchA = 1, transBatchB = 1> (u, u)",
        "u = Unsqueeze (x, f) a = Transpose <perm=[1,2,0]> (u) b = Transpose <perm=[1,0,2]> (u) y = MatMul (a, b)",
    ),
    "matmul twice": (
        "m = com.microsoft.FusedMatMul (x, w) y = com.microsoft.FusedMatMul <transA = 1> (m, w)",
        "m = MatMul (x, w) a = Transpose (m) y = MatMul (a, w)",
    ),
    "gemm": (
        'y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.25, beta = 2.0> (x, w, c)',
        "g = Gemm <beta = 2.0> (x, w, c) y = LeakyRelu <alpha = 0.25> (g)",
    ),
    "conv": (
        'k = Unsqueeze (x, f) y = com.microsoft.FusedConv <activation = "Relu"> (k, i, c, k)',
        "k = Unsqueeze (x, f) g = Conv (k, i, c) s = Add (g, k) y = Relu (s)",
    ),
    "conv with limits": (
        'k = Unsqueeze(x, f) y = com.microsoft.FusedConv <activation="Clip", activation_params = [0., 6.]> (k,i)',
        "k = Unsqueeze (x, f) g = Conv (k, i) l = Constant <value_float = 0.0> () y = Clip (g, l, six)",
    ),
    "layer norm": (
        "n, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, w, c, c, c) y = Mul (n, s)",
        "a = Add (x, w) s = Add (a, c) n = LayerNormalization <epsilon = 0.1> (s, c, c) y = Mul (n, s)",
    ),
    "layer norm alone": (
        "y = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, w, c)",
        "s = Add (x, w) y = LayerNormalization <epsilon = 0.1> (s, c)",
    ),
    "rms norm alone": (
        "y = SimplifiedLayerNormalization <epsilon = 0.1, axis = 1> (x, c)",
        "y = RMSNormalization <epsilon = 0.1> (x, c)",
    ),
    "rms norm": (
        "n, , , s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.1> (x, w, c) y = Mul (n, s)",
        "s = Add (x, w) n = RMSNormalization <epsilon = 0.1> (s, c) y = Mul (n, s)",
    ),
}
SHAPES = {"x": (3, 3), "w": (3, 3), "c": (3,)}
INPUTS = "float[3, 3] x, float[3, 3] w, float[3] c"
CONSTANTS = "int64[1] f = {0}, float[3, 3, 1] i = {1, 2, 3, 4, -5, 6, 7, 8, 9}, float six = {6}"
LOSS = "q = Mul (y, y) loss = ReduceSum <keepdims = 0> (q)"


def fused_model(body):
    forward_model = model(INPUTS, f"{body} {LOSS}", initializers=CONSTANTS, opset=23)
    forward_model.ir_version = 10
    return forward_model


@pytest.mark.parametrize("name", FUSED)
def test_fused_ops(name):
    forwards = [fused_model(body) for body in FUSED[name]]
    rng = np.random.default_rng(3)
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in SHAPES.items()}
    wrt = [key for key in SHAPES if any(key in node.input for node in forwards[0].graph.node)]
    trainings = [in_standard_onnx(differentiated(forward_model, wrt=wrt)) for forward_model in forwards]
    assert "com.microsoft" not in {node.domain for node in trainings[0].graph.node}
    names = ["loss", *(f"{key}_grad" for key in wrt)]
    results = [session(training, "function").run(names, feeds) for training in trainings]
    loss = session(forwards[0], "function").run(["loss"], feeds)
    for got, want in zip(results[0], results[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[0][0], loss[0], rtol=1e-5)


def test_a_step_whose_evaluation_has_a_fused_op_of_the_default_domain():
    """onnx's checker has no definition of it."""
    forward_model = fused_model("y = SimplifiedLayerNormalization <epsilon = 0.1> (x, c)")
    step = bngrad.training_step(forward_model, wrt=["c"], values={"c": np.ones(3, np.float32)})
    assert "SimplifiedLayerNormalization" in {node.op_type for node in step.evaluation.graph.node}


@pytest.mark.parametrize(
    "node",
    [
        'com.microsoft.FusedGemm <activation = "Square"> (x, w)',
        'com.microsoft.FusedGemm <activation = "LeakyRelu", activation_gamma = 1.0> (x, w)',
        "SimplifiedLayerNormalization <axis = 0> (x, w)",
    ],
)
def test_forms_that_are_not_known(node):
    with pytest.raises(UnsupportedNodeError, match=r"has no gradient rule"):
        differentiated(fused_model(f"y = {node}"), wrt=["x"])
