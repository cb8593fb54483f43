"""Gradients of softmaxes and of losses over class labels."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import (
    Case,
    check_against_differences,
    check_against_oracle,
    check_in_float16,
    check_on_stock,
    lowered,
)
from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from bngrad.runtime import session

NO_RULE = "ORT's builder has no rule for it"
FLOAT_ALONE = "it differentiates float alone"
BOTH = "ORT's builder drops what comes from the second output"
N = ({"N": 1}, {"N": 4})
IMAGES = ({"N": 1, "H": 1, "W": 2}, {"N": 2, "H": 3, "W": 2})
CLASSES = 5


def labels(*, ignored=None):
    """Labels, of which about a third are ``ignored``, but not all: the mean of nothing is no number."""

    def draw(rng, shape):
        found = rng.choice([c for c in range(CLASSES) if c != ignored], shape)
        ignore = rng.random(shape) < 0.3
        ignore.flat[0] = False
        return found if ignored is None else np.where(ignore, ignored, found)

    return draw


def weights(rng, shape):
    return rng.uniform(0.5, 2, shape)


def softmaxes():
    for op in ("Softmax", "LogSoftmax"):
        for what, shape, attributes, dims, opset in [
            ("of rows", "N, 4", "", N, 18),
            ("of rows, symbols", "N, H", "", IMAGES, 18),
            ("of columns", "N, 4", "axis = 0", N, 18),
            ("in the middle", "N, 4, H, W", "axis = 1", IMAGES, 18),
            ("of a negative axis", "N, H, W", "axis = -2", IMAGES, 18),
            ("of a vector", "N", "", N, 18),
            ("opset 13", "N, H, W", "axis = 1", IMAGES, 13),
            ("newest", "N, H, W", "axis = 1", IMAGES, 26),
        ]:
            body = f"y = {op} <{attributes}> (x)".replace("<> ", "")
            yield Case(f"{op} {what}", f"float[{shape}] x", body, dims=dims, opset=opset)
        body = f"y = {op} (x)"
        yield Case(
            f"{op} of double", "double[N, 3] x", body, element="double", float_limit=1e-13, oracle=FLOAT_ALONE
        )
        yield Case(
            f"{op} of a MatMul", "float[N, 3] x, float[3, 4] w", f"t = MatMul(x, w) \n y = {op} (t)", ("x", "w")
        )


def losses(op):
    oracle = NO_RULE if op == "NegativeLogLikelihoodLoss" else ""
    for reduction in ("mean", "sum", "none"):
        for what, weighted, ignore in [
            ("", False, None),
            (", weights", True, None),
            (", a class ignored", False, 2),
            (", padding of -1", False, -1),
            (", padding of -100", False, -100),
            (", weights and a class ignored", True, 2),
            (", weights and padding of -100", True, -100),
        ]:
            for shape, of_labels, sizes in [("N, 5", "N", N), ("N, 5, H, W", "N, H, W", IMAGES)]:
                attributes = f'reduction = "{reduction}"' + (f", ignore_index = {ignore}" if ignore else "")
                yield Case(
                    f"{op} [{shape}] {reduction}{what}",
                    f"float[{shape}] x, int64[{of_labels}] t" + (", float[5] w" if weighted else ""),
                    f"y = {op} <{attributes}> (x, t{', w' if weighted else ''})",
                    dims=sizes if reduction == "mean" and not weighted else sizes[1:],
                    draw={"t": labels(ignored=ignore), "w": weights},
                    oracle=oracle,
                )
    for what, more in [
        ("int32 labels", {}),
        ("static", {"dims": ({},)}),
        ("opset 13", {"opset": 13}),
        ("newest", {"opset": 26}),
        ("series", {"dims": IMAGES}),
    ]:
        kind, n = "int32" if what == "int32 labels" else "int64", "4" if what == "static" else "N"
        wide = ", H" if what == "series" else ""
        yield Case(
            f"{op}, {what}",
            f"float[{n}, 5{wide}] x, {kind}[{n}{wide}] t, float[5] w",
            f"y = {op} <ignore_index = 3> (x, t, w)",
            draw={"t": labels(ignored=3), "w": weights},
            oracle=oracle,
            **{"dims": N, **more},
        )
    yield Case(
        f"{op} of double",
        "double[N, 5] x, int64[N] t, double[5] w",
        f"y = {op} <ignore_index = -1> (x, t, w)",
        dims=N,
        draw={"t": labels(ignored=-1), "w": weights},
        element="double",
        float_limit=1e-13,
        oracle=FLOAT_ALONE,
    )


CASES = [
    *softmaxes(),
    *losses("SoftmaxCrossEntropyLoss"),
    *losses("NegativeLogLikelihoodLoss"),
    *(
        Case(
            f"cross entropy, {what}",
            "float[N, 5, H] x, int64[N, H] t",
            f'y, p = SoftmaxCrossEntropyLoss <reduction = "{reduction}", ignore_index = 1> (x, t)',
            outputs=outputs,
            dims=IMAGES,
            draw={"t": labels(ignored=1)},
            oracle=BOTH if "p" in outputs else "",
        )
        for what, outputs, reduction in [
            ("with an output that is not read", ("y",), "mean"),
            ("both outputs", ("y", "p"), "mean"),
            ("both outputs, of each", ("y", "p"), "none"),
            ("second output alone", ("p",), "sum"),
        ]
    ),
    Case(
        "NLL of LogSoftmax",
        "float[N, 5] x, int64[N] t",
        "p = LogSoftmax <axis = 1> (x) \n y = NegativeLogLikelihoodLoss(p, t)",
        dims=N,
        draw={"t": labels()},
        oracle=NO_RULE,
    ),
    Case(
        "cross entropy of Gemm",
        "float[N, 3] x, float[5, 3] w, float[5] b, int64[N] t",
        "s = Gemm <transB = 1> (x, w, b) \n y = SoftmaxCrossEntropyLoss(s, t)",
        ("x", "w", "b"),
        dims=N,
        draw={"t": labels()},
    ),
]
OLD = [
    Case(f"{op} {what}", f"float[{shape}] x", f"y = {op} <{attributes}> (x)", dims=IMAGES, opset=12)
    for op in ("Softmax", "LogSoftmax")
    for what, shape, attributes in [
        ("from axis 1 on", "N, H, W", "axis = 1"),
        ("from axis 2 on", "N, H, 2, W", "axis = 2"),
        ("from a negative axis on", "N, 2, H, W", "axis = -2"),
        ("of all", "N, H, W", "axis = 0"),
    ]
]
"""Before opset 13 a softmax is over all axes from one on, which onnx's reference evaluator does not know."""
EACH = pytest.mark.parametrize(
    ("case", "dims"), [pytest.param(c, d, id=f"{c}-{d}") for c in CASES for d in c.dims]
)


@EACH
def test_central_differences(case, dims):
    check_against_differences(case, dims)


@EACH
def test_stock(case, dims):
    check_on_stock(case, dims)


@EACH
def test_oracle(case, dims, oracle):
    if case.oracle:
        pytest.skip(case.oracle)
    check_against_oracle(case, dims, oracle)


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        pytest.param(c, c.dims[-1], id=str(c))
        for c in CASES
        if c.element == "float" and not any(word in c.name for word in ("sum", "none", "opset"))
    ],
)
def test_float16(case, dims):
    check_in_float16(case, dims)


@pytest.mark.parametrize("dims", IMAGES, ids=str)
@pytest.mark.parametrize("case", OLD, ids=str)
def test_softmax_of_opset_12(case, dims, oracle):
    check_on_stock(case, dims)
    check_against_oracle(case, dims, oracle)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("ignored", [-100, -1, 0, 7])
def test_padding_alone(op, ignored):
    """The mean over no label at all is 0 / 0; its gradient is 0, as ORT has it."""
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
        ("u = Reshape (x, s) v = Identity (u) dx = com.microsoft.SoftmaxGrad (u, v)", "nobody knows its rank"),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.LogSoftmaxGrad (u, v)",
            "nobody knows its rank",
        ),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.LayerNormalizationGrad (u, v, w, w, w)",
            "nobody knows the rank of its X",
        ),
        (
            "u = Reshape (x, s) v = Identity (u) dx = com.microsoft.SimplifiedLayerNormalizationGrad (u, v, w, w)",
            "nobody knows the rank of its X",
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
