"""ConvTransposeGrad with ConvGrad as an op: dW is that op's, and all gradients are those of the lowering."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

import bngrad
from bngrad.errors import UnsupportedNodeError
from bngrad.opset.conv_grad import NAME
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.validation.float64 import evaluate

OUTPUTS = ("dX", "dW", "dB")
CASES = {
    "plain": ((2, 3, 5, 4), (3, 4, 3, 2), {}),
    "stride": ((2, 3, 5, 4), (3, 4, 3, 2), {"strides": [2, 3]}),
    "pads": ((2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
    "output padding": ((2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 3], "output_padding": [1, 2]}),
    "dilation": ((2, 3, 5, 4), (3, 4, 2, 3), {"strides": [2, 1], "dilations": [2, 3], "pads": [1, 1, 1, 1]}),
    "group": ((2, 4, 5, 4), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "depthwise": ((2, 4, 5, 4), (4, 1, 3, 3), {"group": 4}),
    "valid": ((2, 3, 5, 4), (3, 4, 3, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    "1-d": ((2, 3, 7), (3, 4, 3), {"strides": [2], "pads": [1, 0], "output_padding": [1]}),
    "3-d": ((2, 2, 3, 4, 2), (2, 3, 2, 3, 2), {"strides": [2, 1, 2]}),
}
LEFT = {
    "output_shape": ((2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [10, 8]}),
    "same": ((2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "more output padding": ((2, 3, 5, 4), (3, 4, 3, 3), {"dilations": [3, 3], "output_padding": [2, 1]}),
}
"""Those that stay for the lowering."""
RUNS_OVERLOADS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 27)


def shapes_of(x, w, attributes):
    """The shapes of dY, X and W, the first by onnx."""
    node = helper.make_node("ConvTranspose", ["X", "W"], ["Y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("X", x), ("W", w))]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("Y", 1, None)])
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph), strict_mode=True)
    return [[dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim], list(x), list(w)]


def model_of(x, w, attributes, outputs=OUTPUTS, *, symbolic=False):
    shapes = dict(zip(("dY", "X", "W"), shapes_of(x, w, attributes), strict=True))
    of_outputs = {"dX": shapes["X"], "dW": shapes["W"], "dB": shapes["dY"][1:2]}
    if symbolic:
        shapes |= {
            name: ["N", shapes[name][1], *(f"{name}{i}" for i in range(len(x) - 2))] for name in ("dY", "X")
        }
        of_outputs["dX"] = shapes["X"]
    node = helper.make_node("ConvTransposeGrad", list(shapes), list(outputs), "n", domain=MICROSOFT, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, of_outputs[n]) for n in outputs if n],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def rewritten(*case, conv_grad=True, **options):
    return ir.to_proto(bngrad.rewrite(model_of(*case, **options), conv_grad=conv_grad))


def ops_of(model):
    return Counter(node.op_type for node in model.graph.node)


def check(case, rng, **options):
    x, w, attributes = case
    names = ("dY", "X", "W")
    feeds = {n: rng.standard_normal(s) for n, s in zip(names, shapes_of(x, w, attributes), strict=True)}
    model = rewritten(*case, **options)
    expected = evaluate(rewritten(*case, conv_grad=False, **options), feeds)
    actual = evaluate(model, feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, {name: array.astype(np.float32) for name, array in feeds.items()})
    for value, result in zip(model.graph.output, results, strict=True):
        np.testing.assert_allclose(actual[value.name], expected[value.name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(result, expected[value.name], rtol=0, atol=1e-4)
    return model


@pytest.mark.skipif(not RUNS_OVERLOADS, reason="ONNX Runtime below 1.27 has no overloads")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients(case, symbolic, rng):
    model = check(case, rng, symbolic=symbolic)
    assert (ops_of(model)[NAME], ops_of(model)["Conv"]) == (1, 1)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.skipif(not RUNS_OVERLOADS, reason="ONNX Runtime below 1.27 has no overloads")
@pytest.mark.parametrize("outputs", [("dX", "", "dB"), ("", "dW"), ("", "", "dB"), ("dX",)], ids="-".join)
def test_omitted_outputs(outputs, rng):
    model = check(CASES["output padding"], rng, outputs=outputs)
    assert ops_of(model)[NAME] == ("dW" in outputs)
    assert ops_of(model)["Conv"] == ("dX" in outputs)


@pytest.mark.parametrize("case", LEFT.values(), ids=LEFT)
def test_others_are_lowered(case, rng):
    assert ops_of(check(case, rng))[NAME] == 0


UP = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3,4,5] x, float[N,2,8,10] t) => (float loss)
<float[4,3,3,3] v = {%s}, float[4,2,3,3] w = {%s}> {
    h = Conv <pads = [1, 1, 1, 1]> (x, v)
    r = Relu (h)
    y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (r, w)
    d = Sub (y, t)
    s = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (s)
}"""


@pytest.mark.skipif(not RUNS_OVERLOADS, reason="ONNX Runtime below 1.27 has no overloads")
def test_training_in_both_layouts(rng):
    weights = [", ".join(f"{number:.3f}" for number in rng.standard_normal(size)) for size in (108, 72)]
    model = onnx.parser.parse_model(UP % tuple(weights))
    batch = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 3, 4, 5)), ("t", (2, 2, 8, 10)))}
    losses = []
    for options in ({}, {"conv_grad": True}, {"channels_last": True}):
        step = bngrad.training_step(model, **options)
        assert sum(node.op_type == NAME for node in step.model.graph.node) == (2 if options else 0)
        trainer = bngrad.Trainer(step, learning_rate=0.1)
        losses.append([trainer.step(**batch) for _ in range(3)])
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


def test_what_the_lowering_refuses_is_refused():
    x, w, attributes = CASES["group"]
    model = model_of(x, w, attributes)
    model.graph[0].attributes["group"] = ir.AttrInt64("group", 3)
    with pytest.raises(UnsupportedNodeError, match="its group is 3; expected a divisor of its channels"):
        bngrad.rewrite(model, conv_grad=True)
