"""Depthwise convolutions of a training graph as ops of ``bngrad``: which are taken, and what runs where."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import bngrad
from bngrad.errors import BngradWarning, ModelError
from bngrad.opset.depthwise import CONV, GRADS
from bngrad.opset.domain import DOMAIN
from bngrad.validation.training_ops.convolution import conv, conv_grad
from test_lower_convolution import APART, APART_ELSEWHERE, model_of

BIG = {"group": 3, "pads": [1, 1, 1, 1]}


def network(*, channels=4, size=8, bias=False, dtype=np.float32, spatial=("H", "W"), **attributes):
    """Two convolutions with groups of one channel, a pointwise one, a batch norm, and the loss."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((channels, 1, 3, 3)),
        "w2": rng.standard_normal((2 * channels, 1, 3, 3)),
        "w3": rng.standard_normal((3, 2 * channels, 1, 1)),
    }
    weights |= {"b1": rng.standard_normal(channels)} if bias else {}
    weights |= {"s": np.ones(3), "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3)}
    same = {"pads": [1, 1, 1, 1], "group": channels} | attributes
    nodes = [
        helper.make_node("Conv", ["x", "w1", *(["b1"] if bias else [])], ["y1"], "first", **same),
        helper.make_node("Relu", ["y1"], ["z1"], "relu"),
        helper.make_node("Conv", ["z1", "w2"], ["y2"], "second", strides=[2, 2], **same),
        helper.make_node("Conv", ["y2", "w3"], ["y3"], "third"),
        helper.make_node("BatchNormalization", ["y3", *"sbmv"], ["y", "nm", "nv"], "norm", training_mode=1),
        helper.make_node("ReduceMean", ["y"], ["logits"], "pool", axes=[2, 3], keepdims=0),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    outputs = [info("logits", kind, ["N", 3]), *(info(name, kind, [3]) for name in ("nm", "nv"))]
    initializers = [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()]
    sizes = [size if name is None else name for name in spatial]
    graph = helper.make_graph(nodes, "g", [info("x", kind, ["N", channels, *sizes])], outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FIXED = (None, None)


def ops_of(model):
    return [node.op_type for node in model.graph.node if node.domain == DOMAIN and "Depthwise" in node.op_type]


def session_of(model, *, native):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if native:
        bngrad.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def differentiated(model, **options):
    options = {"loss_fn": "cross_entropy"} | options
    return bngrad.differentiate(model, **options)


@pytest.mark.parametrize("spatial", [FIXED, ("H", "W")], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_the_kernel_and_the_functions_agree(spatial, bias, rng):
    """Without the library, ONNX Runtime inlines the functions."""
    model = differentiated(network(spatial=spatial, bias=bias))
    assert ops_of(model) == [CONV, CONV, GRADS[0], GRADS[1]]
    assert {CONV, *GRADS[:2]} <= {function.name for function in model.functions}
    assert not any(function.overload for function in model.functions)
    assert model.ir_version == 8
    feeds = {"x": rng.standard_normal((5, 4, 8, 8)).astype(np.float32), "target": np.arange(5) % 3}
    feeds = {value.name: feeds.get(value.name, feeds["target"]) for value in model.graph.input[:2]}
    native, functions = (session_of(model, native=native).run(None, feeds) for native in (True, False))
    for result, other in zip(native, functions, strict=True):
        np.testing.assert_allclose(result, other, rtol=0, atol=2e-6 * (1 + np.max(np.abs(other))))


@pytest.mark.parametrize(
    ("x", "w", "attributes"), [pytest.param(*case, id=name) for name, *case in [*APART, *APART_ELSEWHERE]]
)
def test_gradients(x, w, attributes, rng):
    model = bngrad.rewrite(ir.to_proto(model_of(x, w, attributes, ("dX", "dW", "dB"))))
    is_taken = len(x) < 4 and attributes.get("strides", [1])[-1] <= 2
    assert ops_of(model) == ([GRADS[0]] if is_taken else [])
    feeds = {"X": rng.standard_normal((2, *x)).astype(np.float32), "W": rng.standard_normal(w).astype(np.float32)}
    feeds["dY"] = rng.standard_normal(conv(feeds["X"], feeds["W"], **attributes).shape).astype(np.float32)
    expected = conv_grad(**{name: array.astype(np.float64) for name, array in feeds.items()}, **attributes)
    for native in (True, False):
        results = session_of(model, native=native).run(["dX", "dW", "dB"], feeds)
        for result, array in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, array, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "symbolic"),
    [
        ((4, 6, 6), (4, 2, 3, 3), {"group": 2}, False),
        ((1, 6, 6), (4, 1, 3, 3), {}, False),
        ((2, 4, 5, 6), (2, 1, 2, 2, 2), {"group": 2}, False),
        ((3, 6, 6), ("M", 1, 3, 3), BIG, False),
        ((3, 6, 6), (3, 1, 3, 3), {"group": 3, "pads": [3, 0, 0, 0]}, False),
        ((3, 9, 9), (3, 1, 3, 3), {"group": 3, "strides": [1, 3]}, False),
        ((3, 6, 6), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "auto_pad": "SAME_UPPER"}, True),
    ],
    ids=["groups", "one group", "3-d", "weights", "pads", "stride", "padding of unknown size"],
)
def test_what_is_not_taken(x, w, attributes, symbolic):
    assert not ops_of(bngrad.rewrite(ir.to_proto(model_of(x, w, attributes, ("dX", "dW"), symbolic=symbolic))))


@pytest.mark.parametrize(
    "options",
    [
        {"conv_grad": True},
        {"channels_last": True},
        {"functions": False},
        {"target": "training"},
        {"target": "ort"},
    ],
    ids=str,
)
def test_other_devices_and_targets_have_none(options):
    assert not ops_of(differentiated(network(), **options))


def test_forward_convolutions_without_a_gradient_stay():
    """ONNX Runtime has fast kernels for weights that are constant."""
    model = differentiated(network(), wrt=["w2"])
    assert ops_of(model) == [CONV, GRADS[0]]
    assert not ops_of(bngrad.rewrite(network()))


def test_lean_memory():
    with pytest.warns(BngradWarning, match="keeps as much as 'full'"):
        model = differentiated(network(spatial=FIXED), memory="lean")
    assert ops_of(model) == [CONV, CONV, GRADS[0], GRADS[1]]


def test_nodes_of_one_form_share_a_function():
    model = ir.to_proto(model_of((3, 6, 6), (3, 1, 3, 3), BIG, ("dX",)))
    other = helper.make_node("ConvGrad", ["dY", "X", "W"], ["other"], "other", domain="com.microsoft", **BIG)
    model.graph.node.append(other)
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", 3, 6, 6]))
    assert ops_of(bngrad.rewrite(model)) == [GRADS[0], GRADS[0]]


def test_more_forms_than_names():
    """Other nodes are lowered."""
    model = ir.to_proto(model_of((3, 80, 6), (3, 1, 3, 3), {"group": 3}, ("", "dW"), symbolic=True))
    for pad in range(len(GRADS) + 3):
        pads = [pad % 3, pad // 3 % 3, pad // 9 % 3, pad // 27 % 3]
        inputs = ["dY", "X", "W"]
        attributes = {"group": 3, "pads": pads, "name": f"node{pad}", "domain": "com.microsoft"}
        model.graph.node.append(helper.make_node("ConvGrad", inputs, ["", f"dW{pad}"], **attributes))
        model.graph.output.append(helper.make_tensor_value_info(f"dW{pad}", TensorProto.FLOAT, [3, 1, 3, 3]))
    assert set(ops_of(bngrad.rewrite(model))) == set(GRADS)


def test_a_second_rewrite_takes_other_names():
    once = bngrad.rewrite(ir.to_proto(model_of((3, 6, 6), (3, 1, 3, 3), BIG)))
    other = helper.make_node("ConvGrad", ["dY", "X", "W"], ["other"], "other", domain="com.microsoft", **BIG)
    once.graph.node.append(other)
    once.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", 3, 6, 6]))
    once.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert ops_of(bngrad.rewrite(once)) == [GRADS[0], GRADS[1]]


@pytest.mark.parametrize(
    "change",
    [
        lambda function: function.input.append("more"),
        lambda function: function.output.append("X"),
        lambda function: function.attribute.remove("group"),
    ],
    ids=["inputs", "outputs", "attributes"],
)
@pytest.mark.parametrize("name", [CONV, GRADS[1]])
def test_another_function_of_its_name_is_refused(name, change):
    model = differentiated(network())
    change(next(function for function in model.functions if function.name == name))
    with pytest.raises(ModelError, match=f"its function bngrad.{name} does not have the signature of that op"):
        bngrad.rewrite(model)


def test_the_schemas_infer_shapes():
    model = differentiated(network(spatial=FIXED))
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info
    dims = {value.name: value.type.tensor_type.shape.dim for value in inferred}
    shapes = [[dim.dim_param or dim.dim_value for dim in dims[name]] for name in ("y1", "y2")]
    assert shapes == [["N", 4, 8, 8], ["N", 8, 4, 4]]


def weights_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_network_through_its_whole_life(rng):
    """Step, training, finalize: the same weights as with standard ops only, and a smaller loss."""
    forward = network(spatial=FIXED)
    labels = np.arange(6) % 3
    data = (rng.standard_normal((6, 4, 8, 8)) + labels.reshape(-1, 1, 1, 1)).astype(np.float32)
    finals, losses = [], []
    for conv_grad_op in (False, True):
        step = bngrad.training_step(forward, optimizer="sgd", loss_fn="cross_entropy", conv_grad=conv_grad_op)
        assert len(ops_of(step.model)) == (0 if conv_grad_op else 4)
        trainer = bngrad.Trainer(step, learning_rate=0.05)
        losses.append([trainer.step(x=data, labels=labels) for _ in range(20)])
        finals.append(trainer.finalize())
    assert losses[0][-1] < 0.9 * losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert [node.op_type for node in finals[0].graph.node].count("Conv") == 3
    first, second = map(weights_of, finals)
    assert np.abs(first["w1"] - weights_of(forward)["w1"]).max() > 1e-3
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=0, atol=1e-3)
