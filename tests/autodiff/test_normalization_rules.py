"""Gradients of batch norm and its relatives."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import (
    Case,
    check_against_differences,
    check_against_oracle,
    check_in_float16,
    check_on_stock,
    feeds_of,
    forward,
    lowered,
)
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import UnsupportedNodeError
from bngrad.runtime import session
from bngrad.validation.float64 import evaluate

NO_RULE = "ORT's builder has no rule for it"
NEWER = "the op is newer than the oracle"
FLOAT_ALONE = "it differentiates float alone"
NO_BIAS = "ORT's builder asks for a bias"
XSB = ("x", "s", "b")
SIZES = ({"N": 3, "H": 2, "W": 4}, {"N": 1, "H": 3, "W": 3})
RANKS = ["N, 3", "N, 3, W", "N, 3, H, W", "N, 3, H, 2, W"]
STATISTICS = "float[3] m = {0.1, -0.2, 0.3}, float[3] v = {1.5, 0.5, 1}"


def positive(rng, shape):
    return rng.uniform(0.5, 2, shape)


def norm(name, op, x, parameters="3", attributes="", inputs="x, s, b", element="float", **more):
    wrt = tuple(name for name in XSB if name in inputs.split(", "))
    types = [f"{element}[{x}] x", *(f"{element}[{parameters}] {name}" for name in wrt[1:])]
    # Its statistics are there for ORT's builder, which does not add them.
    outputs = "y, mean, inv_std" if op == "LayerNormalization" and not more.get("oracle") else "y"
    body = f"{outputs} = {op} <{attributes}> ({inputs})".replace("<> ", "")
    more = {"dims": SIZES, "element": element, **more}
    if element == "double":
        more = {"float_limit": 1e-12, "oracle": FLOAT_ALONE, **more}
    return Case(f"{op} {name}", ", ".join(types), body, wrt, **more)


def batch_norms():
    for what, attributes, least in [("frozen", "", 1), ("training", "training_mode = 1", 3)]:
        # A batch of one element a channel has no gradient in training mode.
        dims = tuple({**d, "N": max(d["N"], least)} for d in SIZES)
        more = {"initializers": STATISTICS, "dims": dims, "inputs": "x, s, b, m, v"}
        for shape in RANKS:
            yield norm(f"{what}, [{shape}]", "BatchNormalization", shape, attributes=attributes, **more)
        both = "epsilon = 0.01, momentum = 0.5" + (f", {attributes}" if attributes else "")
        yield norm(f"{what}, attributes", "BatchNormalization", RANKS[2], attributes=both, **more)
        yield norm(f"{what}, static", "BatchNormalization", "2, 3, 4, 5", attributes=attributes, **more)
        yield norm(f"{what}, opset 14", "BatchNormalization", RANKS[2], attributes=attributes, opset=14, **more)
        yield norm(f"{what}, newest", "BatchNormalization", RANKS[2], attributes=attributes, opset=26, **more)
        more["initializers"] = STATISTICS.replace("float", "double")
        more["oracle"] = FLOAT_ALONE
        yield norm(
            f"{what}, double", "BatchNormalization", RANKS[2], attributes=attributes, element="double", **more
        )


def batch_norms_by_x_alone():
    for mode in (0, 1):
        for shape in RANKS[::2]:
            yield Case(
                f"BatchNormalization {mode}, [{shape}], by x alone",
                f"float[{shape}] x, float[3] s, float[3] b",
                f"y = BatchNormalization <training_mode = {mode}> (x, s, b, m, v)",
                initializers=STATISTICS,
                dims=SIZES[:1],
            )


def layer_norms():
    for what, x, scale, attributes in [
        ("of the last", "N, H, 5", "5", ""),
        ("of the last, symbols", "N, H, W", "W", "epsilon = 0.01"),
        ("of a row", "N, 5", "5", "axis = 1"),
        ("of two", "N, H, W", "H, W", "axis = 1"),
        ("of two, from behind", "N, H, 2, W", "2, W", "axis = -2"),
        ("of all", "N, H, W", "N, H, W", "axis = 0"),
        ("of a vector", "W", "W", ""),
        ("static", "2, 3, 4", "4", ""),
    ]:
        yield norm(what, "LayerNormalization", x, scale, attributes)
        yield norm(f"{what}, no bias", "LayerNormalization", x, scale, attributes, "x, s", oracle=NO_BIAS)
        yield norm(what, "RMSNormalization", x, scale, attributes, "x, s", opset=23, oracle=NEWER)
    yield norm("opset 17", "LayerNormalization", "N, H, 5", "5", opset=17)
    yield norm("without statistics", "LayerNormalization", "N, H, 5", "5", oracle="ORT's builder asks for them")
    yield norm("newest", "LayerNormalization", "N, H, 5", "5", opset=26)
    yield norm("newest", "RMSNormalization", "N, H, 5", "5", "", "x, s", opset=26, oracle=NEWER)
    yield norm("double", "RMSNormalization", "N, H, 5", "5", "", "x, s", "double", opset=23)
    yield norm("double", "LayerNormalization", "N, H, 5", "5", element="double", float_limit=1e-5)
    for wrt in XSB:
        yield Case(
            f"LayerNormalization by {wrt} alone",
            "float[N, H, 5] x, float[5] s, float[5] b",
            "y, mean, inv_std = LayerNormalization(x, s, b)",
            (wrt,),
            dims=SIZES,
        )
    yield Case(
        "LayerNormalization of a sum that is read again",
        "float[N, H, 5] x, float[N, H, 5] z, float[5] s, float[5] b",
        "t = Add(x, z) \n u, mean, inv_std = LayerNormalization(t, s, b) \n y = Add(t, u)",
        ("x", "z", "s", "b"),
        dims=SIZES,
    )


CASES = [
    *batch_norms(),
    *batch_norms_by_x_alone(),
    *layer_norms(),
    *(
        norm(what, "InstanceNormalization", x, attributes=attributes, oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of series", "N, 3, W", "", 18),
            ("of images", "N, 3, H, W", "epsilon = 0.01", 18),
            ("of volumes", "N, 3, H, 2, W", "", 18),
            ("of images, static", "2, 3, 4, 5", "", 18),
            ("opset 13", "N, 3, H, W", "", 13),
            ("newest", "N, 3, H, W", "", 26),
        ]
    ),
    *(
        norm(what, "GroupNormalization", x, "6", f"num_groups = {groups}{more}", oracle=NO_RULE, opset=opset)
        for what, x, groups, more, opset in [
            ("of series", "N, 6, W", 2, "", 21),
            ("of images", "N, 6, H, W", 3, ", epsilon = 0.01", 21),
            ("of volumes", "N, 6, H, 2, W", 2, "", 21),
            ("of rows", "N, 6", 2, "", 21),
            ("of one group", "N, 6, H, W", 1, "", 21),
            ("of a group for each channel", "N, 6, H, W", 6, "", 21),
            ("of images, static", "2, 6, 4, 5", 2, "", 21),
            ("newest", "N, 6, H, W", 2, "", 26),
        ]
    ),
    *(
        norm(what, "LRN", x, attributes=attributes, inputs="x", oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of 3", "N, 6, H, W", "size = 3, alpha = 0.5, bias = 1.5", 18),
            ("of 1", "N, 6, H, W", "size = 1, alpha = 0.5, beta = 0.25", 18),
            ("of more than all", "N, 3, H, W", "size = 9, alpha = 2.0", 18),
            ("of 5, static, defaults", "2, 7, 3, 4", "size = 5", 18),
            ("of 5, opset 13", "N, 7, H, W", "size = 5, alpha = 0.3", 13),
            ("of 5, newest", "N, 7, H, W", "size = 5, alpha = 0.3", 26),
        ]
    ),
    *(
        norm(what, "LpNormalization", x, attributes=attributes, inputs="x", oracle=NO_RULE, opset=opset)
        for what, x, attributes, opset in [
            ("of rows", "N, 4", "", 18),
            ("in the middle", "N, H, W", "axis = 1", 18),
            ("p = 1", "N, 4", "p = 1", 18),
            ("p = 1, in the middle", "N, H, W", "p = 1, axis = -2", 18),
            ("opset 13", "N, 4", "", 13),
            ("newest", "N, 4", "", 26),
        ]
    ),
    norm("double", "LpNormalization", "N, 4", inputs="x", element="double"),
    norm(
        "double",
        "GroupNormalization",
        "N, 6, H, W",
        "6",
        "num_groups = 2, stash_type = 11",
        element="double",
        opset=21,
    ),
]
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
"""What stock ONNX Runtime has no kernel for on the way forward."""


@pytest.mark.parametrize("case", NOT_ON_STOCK, ids=str)
def test_central_differences_alone(case):
    check_against_differences(case, case.dims[0])


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        pytest.param(c, c.dims[0], id=str(c))
        for c in CASES
        if c.element == "float" and not c.name.startswith("BatchNormalization")
    ],
)
def test_float16(case, dims):
    check_in_float16(case, dims)


@pytest.mark.parametrize("mode", [0, 1], ids=["frozen", "training"])
@pytest.mark.parametrize("parameters", ["float", "float16"])
@pytest.mark.parametrize("statistics", ["float", "float16"])
def test_batch_norm_of_float16(mode, parameters, statistics):
    """Parameters and statistics have the type of X, or float; gradients have the type of what they are by."""
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
    """And no number that is infinite, or none."""
    axes = ", axes" if op == "ReduceL2" else ""
    case = Case("", "float[N, 3] x", f"y = {op} (x{axes})", initializers="int64[1] axes = {-1}")
    x = np.array([[0, 0, 0], [3, 0, -4]], np.float32)
    y_weight = np.array([[1, 2, 3], [1, 2, 3]], np.float32)[:, : 1 if axes else 3]
    (got,) = session(lowered(case), "function", threads=1).run(["x_grad"], {"x": x, "y_weight": y_weight})
    np.testing.assert_array_equal(got[0], 0)
    assert np.isfinite(got).all()
    assert got[1].any()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (norm("", "LayerNormalization", "N, H, W", "1"), "a scale of the shape of X from axis -1 on"),
        (norm("", "LayerNormalization", "N, H, 5", "H, 5"), r"its scale is \[H,5\] and its X \[N,H,5\]"),
        (norm("", "RMSNormalization", "N, H, 5", "1, 5", "", "x, s", opset=23), "its scale is"),
        (
            Case(
                "",
                "float[N, H, 5] x, float[5] s",
                "y, m, i = LayerNormalization(x, s)",
                outputs=("y", "m"),
            ),
            "the loss depends on an output of it other than the first",
        ),
        *(
            (
                Case(
                    "",
                    f"float[2, 3, 4] x, int64[K] shape, float[3] s, {more}",
                    f"t = Reshape(x, shape) y = {body}",
                ),
                rank,
            )
            for more, body, rank in [
                ("float[3] b", "InstanceNormalization(t, s, b)", "the rank of 't' is not known"),
                ("float[3] m", "BatchNormalization(t, s, s, m, s)", "the rank of 't' is not known"),
            ]
        ),
        (
            norm("", "LRN", "N, C, H, W", attributes="size = 3", inputs="x"),
            "nobody knows how many channels its X has",
        ),
        (
            Case("", "float[N] x, float[1] s", "y = BatchNormalization(x, s, s, s, s)"),
            "its X has rank 1; expected 2 to 8",
        ),
        (
            Case("", "float[N, 3] x, double[3] s", "y = BatchNormalization(x, s, s, s, s)"),
            "its input 's' is double; expected float",
        ),
    ],
    ids=[
        "one scale",
        "scale of too many axes",
        "scale of rank 2",
        "mean in the loss",
        "instance norm of unknown rank",
        "batch norm of unknown rank",
        "LRN of unknown channels",
        "batch norm of a vector",
        "batch norm of mixed types",
    ],
)
def test_refusals(case, reason):
    with pytest.raises(UnsupportedNodeError, match=reason):
        training_graph(ir.from_proto(forward(case)), loss="loss", wrt=case.wrt)


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
        UnsupportedNodeError, match="its scale is one of groups, as at opset 18; expected opset 21"
    ):
        training_graph(model, wrt=["x"])
