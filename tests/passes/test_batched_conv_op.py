"""Convolutions of few pixels as ops of ``bngrad``: which are taken, and what runs where."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import bngrad
from bngrad.errors import ModelError
from bngrad.opset.batched_conv import CONV, TRANSPOSE
from bngrad.passes.lower.batched_conv_op import BatchedConvOpPass
from bngrad.validation.training_ops.convolution import conv, conv_grad
from test_lower_convolution import model_of

SAME = {"pads": [1, 1, 1, 1]}


def network(*, size=5, bias=False, dtype=np.float32, batch="N", channels=6, last=None):
    """A convolution with stride 2, one without, both with batch norms, a pointwise one, and the loss."""
    rng = np.random.default_rng(0)
    last = last or {}
    weights = {
        "w1": rng.standard_normal((channels, 3, 3, 3)) / 3,
        "w2": rng.standard_normal((channels, channels // last.get("group", 1), 3, 3)) / channels,
        "w3": rng.standard_normal((3, channels, 1, 1)),
    }
    weights |= {"c1": rng.standard_normal(channels)} if bias else {}
    for name in "12":
        weights |= {f"s{name}": np.ones(channels), f"b{name}": np.zeros(channels)}
        weights |= {f"m{name}": np.zeros(channels), f"v{name}": np.ones(channels)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", *(["c1"] if bias else [])], ["y1"], "first", strides=[2, 2], **SAME)
    ]
    nodes.append(helper.make_node("Conv", ["z1", "w2"], ["y2"], "second", **SAME, **last))
    nodes.append(helper.make_node("Conv", ["z2", "w3"], ["y3"], "third"))
    for name in "12":
        values = [f"y{name}", *(f"{value}{name}" for value in "sbmv")]
        outputs = [f"n{name}", f"nm{name}", f"nv{name}"]
        nodes.append(helper.make_node("BatchNormalization", values, outputs, f"norm{name}", training_mode=1))
        nodes.append(helper.make_node("Relu", [f"n{name}"], [f"z{name}"], f"relu{name}"))
    nodes.append(helper.make_node("ReduceMean", ["y3"], ["logits"], "pool", axes=[2, 3], keepdims=0))
    order = ["first", "norm1", "relu1", "second", "norm2", "relu2", "third", "pool"]
    nodes.sort(key=lambda node: order.index(node.name))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    initializers = [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()]
    inputs, outputs = [info("x", kind, [batch, 3, size, size])], [info("logits", kind, [batch, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ops_of(model):
    return Counter(node.op_type for node in model.graph.node if node.op_type in (CONV, TRANSPOSE))


def session_of(model, *, native):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if native:
        bngrad.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def differentiated(model, **options):
    return bngrad.differentiate(model, **({"loss_fn": "cross_entropy"} | options))


def both(model, feeds):
    """The outputs with the kernels, and with the functions, which ONNX Runtime inlines without the library."""
    return (session_of(model, native=native).run(None, feeds) for native in (True, False))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("images", [1, 2, 20])
def test_the_kernels_and_the_functions_agree(bias, images, rng):
    model = differentiated(network(bias=bias))
    assert ops_of(model) == {CONV: 4, TRANSPOSE: 1}
    assert {CONV, TRANSPOSE} <= {function.name for function in model.functions}
    feeds = {"x": rng.standard_normal((images, 3, 5, 5)).astype(np.float32), "target": np.arange(images) % 3}
    feeds = {value.name: feeds.get(value.name, feeds["target"]) for value in model.graph.input[:2]}
    for result, other in zip(*both(model, feeds), strict=True):
        np.testing.assert_allclose(result, other, rtol=0, atol=2e-6 * (1 + np.max(np.abs(other))))


GRADIENTS = {
    "3x3": ((5, 3, 3), (4, 5, 3, 3), SAME),
    "stride 2": ((5, 6, 7), (4, 5, 3, 3), {"strides": [2, 2], **SAME}),
    "stride 2, a row that no window meets": ((5, 6, 6), (4, 5, 3, 3), {"strides": [2, 2]}),
    "pointwise, stride 2": ((5, 4, 4), (4, 5, 1, 1), {"strides": [2, 2]}),
    "dilation": ((5, 6, 7), (4, 5, 2, 3), {"dilations": [3, 2], "strides": [2, 1]}),
    "auto_pad": ((5, 5, 6), (4, 5, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "1-d": ((5, 9), (4, 5, 3), {"strides": [2]}),
}


@pytest.mark.parametrize("outputs", [("dX",), ("dX", "dW", "dB")], ids=len)
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(case, outputs, rng):
    x, w, attributes = GRADIENTS[case]
    feeds = {"X": rng.standard_normal((12, *x)).astype(np.float32), "W": rng.standard_normal(w).astype(np.float32)}
    feeds["dY"] = rng.standard_normal(conv(feeds["X"], feeds["W"], **attributes).shape).astype(np.float32)
    model = model_of(x, w, attributes, outputs)
    model.graph.inputs[0].shape = ir.Shape(["N", *feeds["dY"].shape[1:]])
    model = bngrad.rewrite(ir.to_proto(model))
    assert ops_of(model) == {TRANSPOSE: 1}
    expected = conv_grad(**{name: array.astype(np.float64) for name, array in feeds.items()}, **attributes)
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    for results in both(model, feeds):
        for result, array in zip(results, expected, strict=False):
            np.testing.assert_allclose(result, array, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "symbolic"),
    [
        ((4, 3, 3), (4, 2, 3, 3), {"group": 2, **SAME}, False),
        ((4, 3, 3, 3), (4, 4, 3, 3, 3), {"strides": [2, 2, 2]}, False),
        ((4, 3, 3), ("M", 4, 3, 3), SAME, False),
        ((4, 3, 3), (4, 4, 3, 3), SAME, True),
        ((4, 40, 40), (4, 4, 3, 3), {"strides": [2, 2], **SAME}, False),
    ],
    ids=["groups", "3-d", "weights", "sizes", "many pixels"],
)
def test_what_is_not_taken(x, w, attributes, symbolic):
    assert not ops_of(bngrad.rewrite(ir.to_proto(model_of(x, w, attributes, ("dX", "dW"), symbolic=symbolic))))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {CONV: 4, TRANSPOSE: 1}),
        ({"size": 7}, {CONV: 4, TRANSPOSE: 1}),
        ({"size": 13}, {CONV: 4, TRANSPOSE: 1}),
        ({"size": 15}, {CONV: 4, TRANSPOSE: 1}),
        ({"size": 16}, {CONV: 4, TRANSPOSE: 1}),
        ({"size": 17}, {}),
        ({"batch": 1}, {}),
        ({"batch": 8}, {CONV: 4, TRANSPOSE: 1}),
        ({"dtype": np.float64}, {}),
        ({"last": {"group": 2}}, {CONV: 3}),
    ],
    ids=str,
)
def test_which_convolutions_are_taken(changes, expected):
    """Those of 1 to 64 pixels."""
    assert ops_of(differentiated(network(**changes))) == expected


def test_forward_convolutions_without_a_gradient_stay():
    """ONNX Runtime has fast kernels for weights that are constant."""
    assert ops_of(differentiated(network(), wrt=["w2"])) == {CONV: 2}
    assert not ops_of(bngrad.rewrite(network()))


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


def test_mixed_precision_has_none():
    """In 16 bits they are ONNX Runtime's."""
    step = bngrad.training_step(network(), optimizer="sgd", loss_fn="cross_entropy", precision="mixed")
    assert not ops_of(step.model)


GENERATORS = {
    "pads": (SAME, True),
    "stride": ({"strides": [2, 2], "output_padding": [1, 0]}, True),
    "auto_pad of declared pads": ({"auto_pad": "VALID"}, True),
    "auto_pad": ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, False),
    "output_shape": ({"output_shape": [7, 7], "strides": [2, 2]}, False),
    "groups": ({"group": 2}, False),
}


@pytest.mark.parametrize("case", GENERATORS)
def test_a_forward_conv_transpose(case, rng):
    attributes, is_taken = GENERATORS[case]
    group = attributes.get("group", 1)
    arrays = {"w": rng.standard_normal((4, 5, 3, 3)), "c": rng.standard_normal(5 * group)}
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "c"], ["y"], "up", **attributes),
        helper.make_node("Tanh", ["y"], ["z"], "tanh"),
        helper.make_node("ReduceSumSquare", ["z"], ["loss"], "loss", keepdims=0),
    ]
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    outputs = [info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["N", 4, 3, 3])], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = bngrad.differentiate(model, wrt=["x", "w", "c"])
    assert ops_of(result)[TRANSPOSE] == is_taken
    feeds = {"x": rng.standard_normal((5, 4, 3, 3)).astype(np.float32)}
    for value, other in zip(*both(result, feeds), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=2e-6 * (1 + np.max(np.abs(other))))


@pytest.mark.parametrize(
    ("attributes", "is_taken"),
    [
        ({"strides": [2, 2], "output_padding": [0, 1]}, True),
        ({"strides": [1, 2], "output_padding": [1, 0]}, False),
        ({"dilations": [2, 2], "output_padding": [1, 1]}, False),
        ({"pads": [0, 0, -1, 0]}, False),
    ],
    ids=str,
)
def test_attributes_that_the_kernel_refuses(attributes, is_taken):
    info = helper.make_tensor_value_info
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    shapes = {"x": ["N", 4, 3, 3], "w": [4, 5, 3, 3]}
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ir.from_proto(model)
    assert BatchedConvOpPass({model.graph.inputs[1]: False})(model).modified == is_taken


def test_models_without_gradients_stay():
    """Whatever their convolutions are."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4,3,3] x, float[4,5,3,3] w, float[5] a) => (float[N,5,7,7] u, float[N,4,3,3] y) {
            v = Neg (w) u = ConvTranspose <strides = [2, 2]> (x, w) t = ConvTranspose (x, v)
            [norm] r, m, n = BatchNormalization <training_mode = 1> (t, a, a, a, a) y = Conv (r, v) }""")
    assert not ops_of(bngrad.rewrite(model))


def test_a_second_rewrite_changes_nothing():
    once = differentiated(network())
    twice = bngrad.rewrite(once)
    assert ops_of(twice) == ops_of(once)
    assert {function.name for function in twice.functions} == {function.name for function in once.functions}


@pytest.mark.parametrize(
    "change",
    [
        lambda function: function.input.append("more"),
        lambda function: function.output.append("X"),
        lambda function: function.attribute.remove("pads"),
    ],
    ids=["inputs", "outputs", "attributes"],
)
@pytest.mark.parametrize("name", [CONV, TRANSPOSE])
def test_another_function_of_its_name_is_refused(name, change):
    model = differentiated(network())
    change(next(function for function in model.functions if function.name == name))
    with pytest.raises(ModelError, match=f"its function bngrad.{name} does not have the signature of that op"):
        bngrad.rewrite(model)


def test_second_derivatives():
    """They go through the functions."""
    model, again = network(), {"loss_fn": "mse", "prediction": "x_grad", "wrt": ["w1", "w2"]}
    results = []
    for functions in (True, False):
        first = bngrad.vjp(model, outputs=["logits"], wrt=["x"], functions=functions)
        assert bool(ops_of(first)) == functions
        second = bngrad.differentiate(first, **again)
        feeds = {"x": (5, 3, 5, 5), "logits_seed": (5, 3), "target": (5, 3, 5, 5)}
        seeded = np.random.default_rng(1)
        arrays = {name: seeded.standard_normal(shape).astype(np.float32) for name, shape in feeds.items()}
        results += both(second, arrays)
    for result in results[1:]:
        for value, other in zip(result, results[0], strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=1e-4 * (1 + np.max(np.abs(other))))


def test_the_schemas_infer_shapes():
    model = differentiated(network())
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info
    dims = {value.name: value.type.tensor_type.shape.dim for value in inferred}
    shapes = [[dim.dim_param or dim.dim_value for dim in dims[name]] for name in ("y1", "y2", "y3")]
    assert shapes == [["N", 6, 3, 3], ["N", 6, 3, 3], ["N", 3, 3, 3]]


def weights_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("options", [{}, {"memory": "lean"}, {"quantize": "int8"}], ids=str)
def test_a_network_through_its_whole_life(options, rng):
    """Step, training, finalize: the same weights as with standard ops only, and a smaller loss."""
    forward = network()
    labels = np.arange(6) % 3
    data = (rng.standard_normal((6, 3, 5, 5)) + labels.reshape(-1, 1, 1, 1)).astype(np.float32)
    finals, losses = [], []
    for conv_grad_op in (False, True):
        step = bngrad.training_step(
            forward, optimizer="sgd", loss_fn="cross_entropy", conv_grad=conv_grad_op, **options
        )
        assert ops_of(step.model) == ({} if conv_grad_op else {CONV: 4, TRANSPOSE: 1})
        trainer = bngrad.Trainer(step, learning_rate=0.05)
        losses.append([trainer.step(x=data, labels=labels) for _ in range(20)])
        finals.append(trainer.finalize())
    assert losses[0][-1] < 0.9 * losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    first, second = map(weights_of, finals)
    if "quantize" not in options:  # else they are integers
        assert np.abs(first["w1"] - weights_of(forward)["w1"]).max() > 1e-3
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=0, atol=1e-3)
