"""Tests the gradients that PyTorch's exporter records, without PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad

FX_NODE = "pkg.torch.onnx.fx_node"
W = np.array([[1.0, -2.0], [3.0, 4.0], [0.5, 1.0]], np.float32)
IDS = "i = Constant <value_ints = [0, 1, 1]> () [n] y = Gather (w, i)"


def call(op, *arguments):
    written = f"(args = ({', '.join(arguments)}), kwargs = {{}})"
    return f"%y : [num_users=1] = call_function[target=torch.ops.aten.{op}]{written}"


def model_of(nodes, record="", *, name="", names=("n",)):
    model = onnx.parser.parse_model(
        f'<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]> g () => (float loss) '
        f"<float[3, 2] w = {{1, -2, 3, 4, 0.5, 1}}> {{ {nodes} loss = ReduceSum <keepdims = 0> (y) }}"
    )
    for node in model.graph.node:
        if node.name in names and record:
            onnx.helper.set_metadata_props(node, {FX_NODE: record})
        if node.name == "n" and name:
            node.name = name
    return model


def gradient(model, **options):
    graph = bngrad.differentiate(model, **options)
    return bngrad.session(graph).run(["w_grad"], {})[0]


DETACHED = "[n] d = Identity (w) y = Mul (w, d)"
ATTENTION = "r = Constant <value_float = 0.999> () [n] d = Dropout (w, r) y = Mul (w, d)"
TAKEN_OVER = {
    "detach": (DETACHED, {"record": call("detach.default", "%w")}, W),
    "detach by its name": (DETACHED, {"name": "node_detach_3"}, W),
    "an Identity of another op": (DETACHED, {"record": call("clone.default", "%w")}, 2 * W),
    "an Identity of no record": (DETACHED, {"name": "node_clone"}, 2 * W),
    "padding": (IDS, {"record": call("embedding.default", "%p_w", "%i", "1")}, [[1, 1], [0, 0], [0, 0]]),
    "no padding": (IDS, {"record": call("embedding.default", "%p_w", "%i", "-1")}, [[1, 1], [2, 2], [0, 0]]),
    "no options": (IDS, {"record": call("embedding.default", "%p_w", "%i")}, [[1, 1], [2, 2], [0, 0]]),
}
"""The nodes, the record of the node n, and the gradient of w."""


@pytest.mark.parametrize("case", TAKEN_OVER)
def test_taken_over(case, tmp_path):
    nodes, said, expected = TAKEN_OVER[case]
    bngrad.save(model_of(nodes, **said), tmp_path / "net.onnx")
    np.testing.assert_allclose(gradient(tmp_path / "net.onnx"), expected)


def test_padding_that_is_an_output_and_is_read_twice():
    model = model_of(f"{IDS.replace('y =', 'r =')} y = Mul (r, r)", call("embedding.default", "%p_w", "%i", "1"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [3, 2]))
    np.testing.assert_allclose(gradient(model, loss="loss"), [[2, -4], [0, 0], [0, 0]])


def test_the_dropout_of_attention_is_on():
    record = call("scaled_dot_product_attention.default", "%q", "%k", "%v", "None", "0.999")
    got = gradient(model_of(ATTENTION, record))
    assert not np.allclose(got, 2 * W)
    np.testing.assert_allclose(gradient(model_of(ATTENTION)), 2 * W)


SMOOTHED = "t = Constant <value_ints = [0, 1, 1]> () [n] y = SoftmaxCrossEntropyLoss (w, t)"
QUANTIZED = (
    "s = Constant <value_float = 0.1> () [n] q = QuantizeLinear (w, s) d = DequantizeLinear (q, s) y = Add (w, d)"
)
REFUSED = {
    "scale_grad_by_freq": (IDS, call("embedding.default", "%p_w", "%i", "-1", "True"), "scale_grad_by_freq=True"),
    "max_norm": ("[n] y = Relu (w)", call("embedding_renorm.default", "%p_w", "%i", "1.0", "2.0"), "max_norm"),
    "label_smoothing": (
        SMOOTHED,
        call("cross_entropy_loss.default", "%w", "%t", "None", "1", "-100", "0.1"),
        "label_smoothing=0.1",
    ),
    "a detach that is gone": (
        "[n] y = Mul (w, w)",
        call("mul.Tensor", "%w", "%detach"),
        "read 'detach', a detached",
    ),
    "a detach in a list": (
        "[n] y = Add (w, w)",
        call("cat.default", "[%w, %detach_2]"),
        "read 'detach_2', a detached",
    ),
    "a detach that became another node": (
        "detach = Relu (w) [n] y = Mul (w, detach)",
        call("mul.Tensor", "%w", "%detach"),
        "has removed the detach",
    ),
}
"""The nodes, the record of the node n, and a part of the message."""


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    nodes, record, message = REFUSED[case]
    with pytest.raises(bngrad.UnsupportedNodeError) as raised:
        bngrad.differentiate(model_of(nodes, record))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


NOT_REFUSED = {
    "no label smoothing": (SMOOTHED, call("cross_entropy_loss.default", "%w", "%t", "None", "1", "-100", "0.0")),
    "a detach that is there": (
        "[d] detach = Identity (w) [n] y = Mul (w, detach)",
        call("mul.Tensor", "%w", "%detach"),
    ),
    "a name that begins like one": ("[n] y = Mul (w, w)", call("mul.Tensor", "%w", "%detached")),
    "a record that cannot be read": ("[n] y = Mul (w, w)", "%y = call_function[target=torch.ops.aten.mul.Tensor"),
    "brackets without an end": ("[n] y = Mul (w, w)", call("mul.Tensor", "%w", "[" * 1000)),
}


@pytest.mark.parametrize("case", NOT_REFUSED)
def test_not_refused(case):
    nodes, record = NOT_REFUSED[case]
    assert gradient(model_of(nodes, record)).shape == (3, 2)


@pytest.mark.parametrize("options", [{}, {"wrt": ["w"]}])
def test_fake_quantization_is_straight_through(options):
    record = call("fake_quantize_per_tensor_affine.default", "%w", "0.1", "0", "0", "255")
    np.testing.assert_array_equal(gradient(model_of(QUANTIZED, record), **options), 1 + (W >= 0))


def test_weights_behind_fake_quantization_can_be_named():
    nodes = QUANTIZED.replace("y =", "z =") + " y = Mul (z, v)"
    model = model_of(nodes, call("fake_quantize_per_channel_affine.default", "%w", "%s"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "v"))
    graph = bngrad.differentiate(model, wrt=["v"])
    got = bngrad.session(graph).run(["v_grad"], {})[0]
    np.testing.assert_allclose(got, W + np.maximum(W, 0), rtol=0.1)
