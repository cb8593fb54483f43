"""What campaigns have found, each as small as it gets: a model, what is done to it, and what is said now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import helper

from fuzz.seeds import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "local" : 1, "tf" : 1, "aten" : 1]>'
CALL = "g (float[N,3] x) => (float loss) { y = local.F(x) loss = ReduceSum <keepdims = 0> (y) }"
WEIGHTS = """g (float[3] x) => (float loss) <float[3] w = {1, 2, 3}>
    { y = Mul(x, w) loss = ReduceSum <keepdims = 0> (y) }"""
TF = """g (float[2,4,5,3] x, float[3] s, float[3] o, float[3] m, float[3] v) => (float[2,4,5,3] dx) {
    y, bm, bv, sm, sv, r = tf.FusedBatchNormV3 <is_training = 1> (x, s, o, m, v)
    dx, ds, d, u, w = tf.FusedBatchNormGradV3 <is_training = 1> (r, x, s, sm, sv, r) }"""
ATEN = """g (float[N,3,5] dy, float[N,3,5] x, float[3] w, float[3] m, float[3] v) => (float[N,3,5] dx) {
    dx = aten.native_batch_norm_backward <train: int = 0, eps: float = 0.001, output_mask: ints = [1, 0, 0]>
        (dy, x, w, m, v) }"""


ATEN_NODE = 'org.pytorch.aten.ATen <overload_name = ["a"], operator = "aten::native_batch_norm_backward", '


class Regression(NamedTuple):
    """A model that a command once failed on without a word of its own."""

    command: str
    text: str
    """The model, in ONNX's text form, without its header."""
    message: str
    """What is said now; empty where the command succeeds."""
    change: Callable[[onnx.ModelProto], object] = lambda _model: None
    """What the text form cannot say."""
    header: str = HEADER


def _function(body: str) -> str:
    return f'<domain: "local", opset_import: ["" : 17, "local" : 1, "com.microsoft" : 1]> {body}'


def _external(tensor: onnx.TensorProto, location: str) -> None:
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def _set(target: object, name: str, value: object) -> None:
    setattr(target, name, value)


def _remove_branch_output(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute[0].g.node[0].output[0] = "elsewhere"


def _not_utf8(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString().replace(b"ReduceSum", b"Re\x80uceSum"))


NEEDS_A_FILE = "the model's external data cannot be read: "
IF = """g (bool c, float[3] x) => (float[3] y) { y = If(c) <then_branch = t () => (float[3] p) { p = Exp(x) },
    else_branch = e () => (float[3] q) { q = Neg(x) }> }"""
LONG = "g (float[N] x, float[9223372036854775807] z) => (float loss) { y = Cast <to = 1> (z) w = Mul(x, y) \
    loss = ReduceSum <keepdims = 0> (w) }"
RELU_GRAD = "g (float[3] dy, float[3] y) => (float[3] dx) { dx = com.microsoft.ReluGrad(dy) }"
UNTYPED = """g (float[3] dy, float[3] y) => (float[3] dx) { dx = local.F(dy, y) }"""

CASES = {
    "a-fifo": Regression(
        "inspect", WEIGHTS, NEEDS_A_FILE + "'fifo', of tensor 'w': it is no regular file",
        lambda m: _external(m.graph.initializer[0], "fifo"),
    ),
    "a-file-of-the-system": Regression(
        "rewrite", WEIGHTS, NEEDS_A_FILE + "'/etc/passwd', of tensor 'w': expected a path relative to",
        lambda m: _external(m.graph.initializer[0], "/etc/passwd"),
    ),
    "a-link-out-of-the-folder": Regression(
        "finalize", WEIGHTS, NEEDS_A_FILE + "'link.bin', of tensor 'w': it is outside the model's folder",
        lambda m: _external(m.graph.initializer[0], "link.bin"),
    ),
    "functions-in-a-circle": Regression(
        "inspect",
        CALL + _function("F (a) => (b) { b = local.G(a) }") + _function("G (a) => (b) { b = local.F(a) }"),
        "its functions call each other in a circle, local.",
    ),
    "a-function-that-calls-itself": Regression(
        "differentiate", CALL + _function("F (a) => (b) { b = local.F(a) }"),
        "its functions call each other in a circle, local.F -> local.F;",
    ),
    "an-attribute-of-another-type": Regression(
        "differentiate",
        f"g (float[N,3] x) => (float[N,3] y) <{PARAMETERS}> "
        "{ y = BatchNormalization <training_mode: float = 1.0> (x, s, b, m, v) }",
        "BatchNormalization node '' has the attribute 'training_mode' of type FLOAT; expected INT",
    ),
    "an-attribute-of-no-function": Regression(
        "differentiate", WEIGHTS, "ReduceSum node '' refers to an attribute of a function, and is in none",
        lambda m: _set(m.graph.node[1].attribute[0], "ref_attr_name", "k"),
    ),
    "a-constant-without-a-value": Regression(
        "rewrite", "g (float[3] x) => (float[3] y) { c = Constant <axis = 1> () y = Add(x, c) }",
        "Constant node '' has the attributes axis; expected its value alone",
    ),
    "a-missing-input": Regression(
        "differentiate", "g (float[3] x) => (float[3] y) { y = Mul(x) }",
        "Mul node '' has no input 1, which is required",
    ),
    "too-few-inputs-of-ours": Regression(
        "rewrite",
        "g (float[N,3] x) => (float[3] m) { m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> () }",
        "BatchNormalizationStatistics node '' has no input 0, which is required",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "too-few-inputs-of-a-training-op": Regression(
        "rewrite", RELU_GRAD, "(outputs dx) has no input 1, which ReluGrad requires"
    ),
    "a-training-op-of-no-known-type": Regression(
        "rewrite", UNTYPED + _function("F (a, b) => (c) { c = com.microsoft.ReluGrad(a, b) }"),
        "the type of 'b' is not known; expected a model that shape inference can read",
    ),
    "a-tensor-of-no-type": Regression(
        "inspect", WEIGHTS, "is not an ONNX model that can be read: -1 is not a valid DataType",
        lambda m: _set(m.graph.initializer[0], "data_type", -1),
    ),
    "a-tensor-of-another-type": Regression(
        "inspect", WEIGHTS, "its initializer 'w' cannot be read: Unsupported dtype UINT32 for float_data",
        lambda m: _set(m.graph.initializer[0], "data_type", onnx.TensorProto.UINT32),
    ),
    "a-tensor-of-another-shape": Regression(
        "finalize", WEIGHTS, "its initializer 'w' cannot be read: cannot reshape array of size 3",
        lambda m: m.graph.initializer[0].dims.append(2),
    ),
    "a-tensor-of-a-negative-extent": Regression(
        "inspect", WEIGHTS, "its initializer 'w' has a negative extent",
        lambda m: m.graph.initializer[0].dims.append(-1),
    ),
    "a-branch-without-its-output": Regression(
        "rewrite", IF, "nothing makes its output 'p'", _remove_branch_output
    ),
    "an-empty-branch": Regression(
        "inspect", IF, "the attribute 'then_branch' of If node '' is an empty graph",
        lambda m: m.graph.node[0].attribute[0].g.Clear(),
    ),
    "an-op-that-is-no-text": Regression(
        "inspect", WEIGHTS, "has the name b'Re\\x80uceSum', which is no UTF-8", _not_utf8
    ),
    "a-vector-that-is-taken-for-a-shape": Regression("inspect", LONG, ""),
    "a-shape-of-another-rank": Regression(
        "differentiate",
        "g (float[2,3] x) => (float loss, float[3] y) { y = Mul(x, x) loss = ReduceSum <keepdims = 0> (y) }",
        "does not pass onnx's checker",
    ),
    "a-function-of-another-opset": Regression(
        "differentiate", CALL + _function("F (a) => (b) { b = Relu(a) }"),
        "the model's functions cannot be inlined: Opset mismatch",
        lambda m: _set(m.opset_import[0], "version", 15),
    ),
    "initializers-that-are-no-inputs-of-an-old-ir": Regression(
        "finalize", WEIGHTS, "",
        lambda m: _set(m, "ir_version", 3),
    ),
    "one-domain-in-two-versions": Regression(
        "rewrite", TF, "it imports ai.onnx in two versions, 15 and 17; expected one",
        lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 15)),
    ),
    "pads-of-another-rank": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3] x, float[1,1,2] w) => (float[1,1,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2], pads = [0, 0, 0, 0]> (dy, x, w) }",
        "cannot be rewritten: its pads are [0, 0, 0, 0]; expected 2 numbers",
    ),
    "a-stride-of-nothing": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3] x, float[1,1,2] w) => (float[1,1,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2], strides = [0]> (dy, x, w) }",
        "cannot be rewritten: its strides are [0]; expected 1 numbers, 1 at least",
    ),
    "windows-over-data-of-another-rank": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3,3] x, float[1,1,2] w) => (float[1,1,3,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2]> (dy, x, w) }",
        "the tensor 'x' of a gradient has 4 dimensions; expected 3: batch, channels, and one for each",
    ),
    "a-gradient-of-a-resize-without-its-data": Regression(
        "rewrite",
        "g (float[1,1,4] dy) => (float[1,1,2] dx) { dx = com.microsoft.ResizeGrad(dy) }",
        "the type and rank of its X are not known",
    ),
    "a-resize-by-no-rule": Regression(
        "rewrite",
        "g (float[1,1,4] dy, float[1,1,2] x) => (float[1,1,2] dx) "
        '{ dx = com.microsoft.ResizeGrad <coordinate_transformation_mode = "none"> (dy, x) }',
        "it has coordinate_transformation_mode 'none'; expected one of half_pixel, half_pixel_symmetric,",
    ),
    "a-constant-with-three-values": Regression(
        "inspect", "g (float[3] x) => (float[3] y) { c, d, e = Constant <value_float = 1.0> () y = Add(x, c) }",
        "Constant node '' has 3 outputs; expected at most 1",
    ),
    "axes-that-are-no-list": Regression(
        "inspect",
        "g (float[2,3] x) => (float[3] m) <int64 axes = {0}> "
        "{ m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> (x, axes) }", "",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "a-concat-without-its-axis": Regression(
        "inspect", "g (float[3] x) => (float[6] y) { y, n = com.microsoft.ConcatTraining(x, x) }", "",
    ),
    "a-training-mode-before-there-was-one": Regression(
        "differentiate",
        f"g (float[N,3] x) => (float loss) <{PARAMETERS}> "
        "{ y = BatchNormalization <training_mode: float = 1.0> (x, s, b, m, v) "
        "loss = ReduceSum <keepdims = 0> (y) }",
        "", header='<ir_version: 8, opset_import: ["" : 13]>',
    ),
    "new-statistics-that-are-read": Regression(
        "finalize",
        f"g (float[N,3] x) => (float[N,3] loss) <{PARAMETERS}> "
        "{ y, n, w = BatchNormalization <training_mode = 1> (x, s, b, m, v) loss = Add(y, n) }",
        "cannot be one of inference: its output 'n', which only training has, is read by other nodes",
    ),
    "data-beyond-a-folder-that-is-not-there": Regression(
        "inspect", WEIGHTS, NEEDS_A_FILE + "'nowhere/../data.bin', of tensor 'w': it does not exist",
        lambda m: _external(m.graph.initializer[0], "nowhere/../data.bin"),
    ),
    "a-reserve-that-is-read-as-data": Regression(
        "rewrite", TF, "cannot be rewritten: it reads cuDNN's reserve as a tensor"
    ),
    "an-overload-that-is-no-text": Regression(
        "rewrite", ATEN.replace("aten.native_batch_norm_backward <", ATEN_NODE), "",
        header='<ir_version: 8, opset_import: ["" : 17, "org.pytorch.aten" : 1]>',
    ),
    "a-node-name-that-is-taken": Regression(
        "differentiate",
        """g (float[3] x) => (float loss) <float[3] w = {1, 2, 3}>
            { ["y_Grad/Mul_0"] h = Neg(x) [y] y = Mul(h, w) [loss] loss = ReduceSum <keepdims = 0> (y) }""", "",
    ),
}  # fmt: skip


def model(case: Regression) -> onnx.ModelProto:
    """The model that the command gets."""
    made = onnx.parser.parse_model(f"{case.header}\n{case.text}")
    changed = case.change(made)
    return changed if isinstance(changed, onnx.ModelProto) else made


def chain(length: int, *, broken: bool = False) -> onnx.ModelProto:
    """A model of as many nodes, each of which reads what the one before makes."""
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    if broken:
        nodes[length // 2].input[0] = "nothing"
    nodes.append(helper.make_node("ReduceSum", [f"v{length}"], ["loss"], keepdims=0))
    given = helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, [3])
    made = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
