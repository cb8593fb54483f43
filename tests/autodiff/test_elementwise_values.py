"""Gradients that central differences do not check: corners, element types, random masks."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from autodiff.cases.activation import CASES as ACTIVATIONS
from autodiff.cases.elementwise import CASES as OTHERS
from autodiff.cases.elementwise import UNARY
from autodiff.gradient_cases import NO_RULE, Case, forward, in_standard_onnx, lowered, written
from autodiff.gradient_checks import CheckedCase, on_stock
from bngrad.errors import UnsupportedNodeError
from bngrad.oracle import prepare_forward
from bngrad.passes.pipeline import rewrite
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

LIMITS = "float low = {-1}, float high = {2}"
CROSSED = "float low = {2}, float high = {-1}"

# name: (node, initializers, x, its gradient, the reason why ORT's builder is not an oracle)
CORNERS = {
    "relu": ("Relu(x)", "", [0, -0.0], [0, 0], ""),
    "leaky-relu": ("LeakyRelu <alpha = 0.2> (x)", "", [0], [0.2], ""),
    "prelu": ("PRelu(x, s)", "float s = {0.2}", [0], [0.2], NO_RULE),
    "elu": ("Elu <alpha = 0.2> (x)", "", [0], [0.2], NO_RULE),
    "abs": ("Abs(x)", "", [0, -0.0], [0, 0], ""),
    "clip": ("Clip(x, low, high)", LIMITS, [-1, 2, -1.5, 3], [1, 1, 0, 0], ""),
    "clip-crossed": ("Clip(x, low, high)", CROSSED, [-2, -1, 0, 2, 3], [0, 0, 0, 0, 0], ""),
    "hard-sigmoid": ("HardSigmoid <alpha = 0.5> (x)", "", [-1, 1, 0.5], [0, 0, 0.5], NO_RULE),
    "hard-swish": ("HardSwish(x)", "", [-3, 3, 0], [0, 1, 0.5], NO_RULE),
    "shrink": ("Shrink <lambd = 0.25> (x)", "", [-0.25, 0.25, 0.5], [0, 0, 1], NO_RULE),
    "max": ("Max(x, z, w)", "float z = {1}, float w = {2}", [1, 2, 3], [0, 0.5, 1], ""),
    "max-of-three": ("Max(x, z, w)", "float z = {3}, float w = {3}", [3], [1 / 3], ""),
    "min": ("Min(x, z)", "float z = {1}", [1, 2, 0], [0.5, 0, 1], ""),
    "pow-2": ("Pow(x, p)", "float p = {2}", [0, -1], [0, -2], ""),
    "pow-3": ("Pow(x, p)", "float p = {3}", [0, -1], [0, 3], ""),
    "pow-1": ("Pow(x, p)", "float p = {1}", [0, -1], [1, 1], ""),
    "pow-0": ("Pow(x, p)", "float p = {0}", [0, -1], [0, 0], "ORT's gradient is 0 times infinity"),
    "pow-several": ("Pow(x, p)", "float[3] p = {0, 1, 2}", [0, 0, 0], [0, 1, 0], "ORT's is 0 times infinity"),
    "where": ("Where(c, x, x)", "bool[2] c = {1, 0}", [1, 2], [1, 1], "ORT's builder gives both one name"),
}


def corner(name):
    """The case, the array to feed, and the gradient that is expected."""
    node, initializers, x, want, _ = CORNERS[name]
    case = Case(name, "float[N] x", f"y = {node}", initializers=initializers)
    return case, np.array(x, np.float32), np.array(want)


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name):
    case, x, want = corner(name)
    feeds = {"x": x, "y_weight": np.ones_like(x)}
    np.testing.assert_allclose(evaluate(lowered(case), feeds, ["x_grad"])["x_grad"], want, rtol=1e-6)
    np.testing.assert_allclose(session(lowered(case), "function").run(["x_grad"], feeds)[0], want, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name, corner in CORNERS.items() if not corner[-1]])
def test_corners_are_those_of_ort(name, oracle):
    case, x, want = corner(name)
    prepared = prepare_forward(forward(case), "loss", case.wrt)
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    feeds = {**prepared.values, "x": x, "y_weight": np.ones_like(x)}
    np.testing.assert_allclose(oracle.run(training, feeds, ["x_grad"])["x_grad"], want, rtol=1e-6)


def test_exponent_of_zero():
    """Y log A where A is 0: 0 for B >= 0, although log A is not finite."""
    case = Case("pow", "float[N] x, float[N] p", "y = Pow(x, p)", ("p",))
    feeds = {"x": np.zeros(2, np.float32), "p": np.array([0, 2], np.float32), "y_weight": np.ones(2, np.float32)}
    np.testing.assert_array_equal(session(lowered(case), "function").run(["p_grad"], feeds)[0], [0, 0])


TYPED = {
    *("relu", "leaky-relu", "sigmoid", "tanh", "elu", "elu-alpha", "softplus", "hard-sigmoid", "hard-swish"),
    *("selu", "thresholded-relu", "softsign", "mish", "shrink", "mod-toward-zero"),
    *("prelu", "gelu", "gelu-tanh"),
    *(case.name for case in UNARY if "opset" not in case.name and re.fullmatch(r"y = \w+\(x\)", case.body)),
    *("add-outer", "sub-vector", "mul-both", "div-leading", "max-vector", "min-scalar", "pow-same", "sum-three"),
    *(
        "mean-three",
        "mul-symbols",
        "div-symbols",
        "pow-2.0",
        "pow--2.5",
        "pow-int32-tensor",
        "clip",
        "clip-limits",
    ),
    *("where-condition", "dropout-ratio"),
}
NO_16_BITS = {"pow-2.0", "pow--2.5", "clip", "dropout-ratio"}
"""ONNX's text form has no constants of these types."""
NO_BFLOAT16 = NO_16_BITS | {"shrink"}


def of_type(element, limit, without=frozenset(), **options):
    for case in (*ACTIVATIONS, *OTHERS):
        if case.name in TYPED - without:
            inputs, initializers = (text.replace("float", element) for text in (case.inputs, case.initializers))
            options |= {"inputs": inputs, "initializers": initializers, "element": element, "float_limit": limit}
            yield pytest.param(replace(case, **options), case.dims[0], id=f"{case}-{element}")


def test_every_typed_case_exists():
    assert {case.name for case in (*ACTIVATIONS, *OTHERS)} >= TYPED


@pytest.mark.parametrize(("case", "dims"), [*of_type("double", 1e-13), *of_type("float16", 5e-3, NO_16_BITS)])
def test_other_types(case, dims):
    try:
        session(written(case), "function")
    except UnsupportedNodeError:
        pytest.skip(f"ONNX Runtime has no kernel for this op in {case.element}")
    CheckedCase(case).run(on_stock, dims)


@pytest.mark.parametrize(
    "case", [parameter.values[0] for parameter in of_type("bfloat16", 0, NO_BFLOAT16, opset=22)], ids=str
)
def test_bfloat16_is_a_valid_model(case):
    """The checker is part of the lowering; stock ONNX Runtime has few kernels of this type."""
    gradient = next(value for value in lowered(case).graph.output if value.name == f"{case.wrt[0]}_grad")
    assert gradient.type.tensor_type.elem_type == ir.DataType.BFLOAT16


def dropout(inputs, initializers=""):
    return Case("dropout", inputs, "y, mask = Dropout(x, r, t)", ("x",), initializers=initializers)


DROPPING = {
    "constant": dropout("float[N, 8] x", "float r = {0.25}, bool t = {1}"),
    "fed": dropout("float[N, 8] x, float r, bool t"),
    "half-ratio": dropout("float[N, 8] x, float16 r, bool t"),
    "default-ratio": Case("d", "float[N, 8] x, bool t", "y, mask = Dropout(x, , t)"),
    "no-mask": Case("d", "float[N, 8] x, bool t", "y = Dropout(x, , t)"),
    "opset-13": replace(dropout("float[N, 8] x, float r, bool t"), opset=13),
    "opset-26": replace(dropout("float[N, 8] x, float r, bool t"), opset=26),
}


MODES = [(name, mode) for name in DROPPING for mode in (True, False) if mode or name != "constant"]


@pytest.mark.parametrize("builder", ["bngrad", "ort"])
@pytest.mark.parametrize(("name", "training"), MODES)
def test_dropout(name, training, builder, oracle):
    """The gradient uses the mask that the same run has drawn."""
    case = DROPPING[name]
    if builder == "ort":
        prepared = prepare_forward(forward(case), "loss", case.wrt)
        model = in_standard_onnx(oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model)
    else:
        model = lowered(case)
    ratio = 0.5 if "x, ," in case.body else 0.25
    x, weight = (np.random.default_rng(i).standard_normal([30, 8]).astype(np.float32) for i in (0, 1))
    dtype = np.float16 if "float16" in case.inputs else np.float32
    feeds = {"x": x, "y_weight": weight, "r": np.array(ratio, dtype), "t": np.array(training)}
    run = session(with_output(model, "y"), "function")
    names = {value.name for value in run.get_inputs()}
    gradient, y = run.run(["x_grad", "y"], {name: array for name, array in feeds.items() if name in names})
    kept = (y != 0) / (1 - ratio) if training else np.ones_like(y)
    assert (y == 0).any() == training
    np.testing.assert_allclose(gradient, weight * kept, rtol=1e-3 if dtype == np.float16 else 1e-6)


def with_output(model, name):
    model = ir.from_proto(model)
    model.graph.outputs.append(next(v for node in model.graph for v in node.outputs if v.name == name))
    return ir.to_proto(model)


SHAPE_PAIRS = [
    ([2, 3], [2, 3]),
    ([2, 3], [3]),
    ([3], [2, 3]),
    ([2, 1, 3], [4, 1]),
    ([1, 1], [1]),
    ([], [2, 3]),
    ([], []),
    ([0, 3], [1, 3]),
    ([1, 3], [0, 1]),
]


@pytest.mark.parametrize(("a", "b"), SHAPE_PAIRS, ids=str)
@pytest.mark.parametrize("outputs", ["p, q", "p", ", q"])
def test_axes_of_two_shapes(a, b, outputs):
    """BroadcastGradientArgs of vectors of any length; the order of the axes means nothing."""
    names = [name for name in ("p", "q") if name in outputs]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (int64[A] a, int64[B] b) => ({", ".join(f"int64[{name.upper()}] {name}" for name in names)})
        {{ {outputs} = com.microsoft.BroadcastGradientArgs(a, b) }}"""
    )
    feeds = {"a": np.array(a, np.int64), "b": np.array(b, np.int64)}
    results = session(rewrite(ir.from_proto(model)).model, "function").run(names, feeds)
    for name, axes in zip(names, results, strict=True):
        np.testing.assert_array_equal(axes, np.sort(evaluate(model, feeds, [name])[name]))
