"""Former findings of campaigns, minimized: a model, a command, and the expected message.

`node_regressions.py` and `lowering_regressions.py` contain those about a single node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "local" : 1, "tf" : 1, "aten" : 1]>'
CALL = "g (float[N,3] x) => (float loss) { y = local.F(x) loss = ReduceSum <keepdims = 0> (y) }"
SLICED = """g (float[2,3,3,3] x, float[4,3,5,5] w) => (float loss) {
    y = Conv(x, w) zero = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> ()
    s = Slice(y, zero, one, one) loss = ReduceSum <keepdims = 0> (s) }"""
WEIGHTS = """g (float[3] x) => (float loss) <float[3] w = {1, 2, 3}>
    { y = Mul(x, w) loss = ReduceSum <keepdims = 0> (y) }"""
TF = """g (float[2,4,5,3] x, float[3] s, float[3] o, float[3] m, float[3] v) => (float[2,4,5,3] dx) {
    y, bm, bv, sm, sv, r = tf.FusedBatchNormV3 <is_training = 1> (x, s, o, m, v)
    dx, ds, d, u, w = tf.FusedBatchNormGradV3 <is_training = 1> (r, x, s, sm, sv, r) }"""


class Regression(NamedTuple):
    """A model on which a command once failed."""

    command: str
    text: str
    """The model in ONNX's text format, without its header."""
    message: str
    """The expected message; empty if the command succeeds."""
    change: Callable[[onnx.ModelProto], object] = lambda _model: None
    """A change of the model that the text format does not support."""
    header: str = HEADER
    weights: tuple[str, ...] = ()
    """The names of the weights to pass, three numbers each."""


def function(body: str) -> str:
    return f'<domain: "local", opset_import: ["" : 17, "local" : 1, "com.microsoft" : 1]> {body}'


def _external(tensor: onnx.TensorProto, location: str) -> None:
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def set_field(target: object, name: str, value: object) -> None:
    setattr(target, name, value)


def _remove_branch_output(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute[0].g.node[0].output[0] = "elsewhere"


def not_utf8(model: onnx.ModelProto, word: bytes = b"ReduceSum", places: int = -1) -> onnx.ModelProto:
    """Replaces the first letter of a word by a byte that is not valid UTF-8, in all or the first places."""
    return onnx.ModelProto.FromString(model.SerializeToString().replace(word, b"\x80" + word[1:], places))


def _set_sizes(value: onnx.ValueInfoProto, *sizes: int) -> None:
    for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=True):
        dim.dim_value = size


NEEDS_A_FILE = "the model's external data cannot be read: "
IF = """g (bool c, float[3] x) => (float[3] y) { y = If(c) <then_branch = t () => (float[3] p) { p = Exp(x) },
    else_branch = e () => (float[3] q) { q = Neg(x) }> }"""
LONG = "g (float[N] x, float[9223372036854775807] z) => (float loss) { y = Cast <to = 1> (z) w = Mul(x, y) \
    loss = ReduceSum <keepdims = 0> (w) }"

CASES = {
    "a-fifo": Regression(
        "inspect", WEIGHTS, NEEDS_A_FILE + "'fifo', of tensor 'w': it is not a regular file",
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
        CALL + function("F (a) => (b) { b = local.G(a) }") + function("G (a) => (b) { b = local.F(a) }"),
        "its functions call each other in a cycle: local.",
    ),
    "a-scalar-that-is-taken-for-a-shape": Regression(
        "inspect",
        """g (float[H] x) => (float[H] z) <int64 most = {9223372036854775807}> {
            y = Expand(x, most) w = Mul(y, y) z = Add(w, x) }""", "",
    ),
    "bngrad-op-without-inputs-beside-its-function": Regression(
        "rewrite",
        """g (float[N,3] x) => (float[3] m) { m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> () }
            <domain: "bngrad", opset_import: ["" : 17]> BatchNormalizationStatistics <epsilon> (X, axes) => (m, v)
            { m = ReduceMean(X) v = ReduceMean(X) }""",
        "BatchNormalizationStatistics node (outputs m, s) has no input 0, which is required",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "functions-in-a-circle-by-an-overload-that-is-not-there": Regression(
        "inspect",
        CALL + function("F (a) => (b) { b = local.G(a) }") + function("G (a) => (b) { b = local.F(a) }"),
        "its functions call each other in a cycle: local.",
        lambda m: set_field(m.functions[0].node[0], "overload", "x"),
    ),
    "an-initializer-of-no-type": Regression(
        "finalize", WEIGHTS, "its initializer 'w' has no type", lambda m: m.graph.initializer[0].CopyFrom(
            onnx.TensorProto(name="w", dims=[], float_data=[1])
        ),
    ),
    "a-weight-for-an-input-of-no-type": Regression(
        "finalize", WEIGHTS, "its input 'x' has no type",
        lambda m: set_field(m.graph.input[0].type.tensor_type, "elem_type", 0),
    ),
    "a-weight-for-an-initializer-that-is-said-to-be-of-no-type": Regression(
        "finalize", WEIGHTS, "",
        lambda m: m.graph.value_info.append(helper.make_tensor_value_info("w", 0, None)),
        weights=("w",),
    ),
    "a-function-in-the-place-of-onnx-s-own-op-that-an-op-it-calls-is-made-of": Regression(
        "rewrite",
        "g (float[3] x) => (float[3] y) { h = com.microsoft.Gelu(x) z = com.microsoft.Gelu(h) y = Identity(z) }"
        '<domain: "", opset_import: ["" : 17, "com.microsoft" : 1]> Identity (a) => (b) '
        "{ b = com.microsoft.Gelu(a) }",
        "does not pass onnx's checker: Field 'domain' of 'function' is required but missing",
    ),
    "data-that-are-the-reserve-of-a-forward-node": Regression(
        "rewrite", TF.replace("(r, x, s, sm", "(x, r, s, sm"),
        "it reads reserve_space_3, cuDNN's internal data, as a tensor",
    ),
    "an-import-of-less-than-the-first-version": Regression(
        "differentiate", WEIGHTS.replace("Mul(x, w)", "com.microsoft.Gelu(w)"),
        "Gelu node (outputs y) has opset com.microsoft -1; expected 1 or newer",
        lambda m: [set_field(o, "version", -1) for o in m.opset_import if o.domain == "com.microsoft"],
    ),
    "an-import-of-less-than-the-first-version-that-nothing-uses": Regression(
        "differentiate", WEIGHTS, "",
        lambda m: [set_field(o, "version", -1) for o in m.opset_import if o.domain == "com.microsoft"],
    ),
    "a-function-of-onnx-that-calls-itself": Regression(
        "inspect", CALL.replace("local.F", "F") + function("F (a) => (b) { b = ai.onnx.F(a) }"),
        "its functions call each other in a cycle: F -> F",
        lambda m: set_field(m.functions[0], "domain", "ai.onnx"),
    ),
    "a-function-that-calls-itself": Regression(
        "differentiate", CALL + function("F (a) => (b) { b = local.F(a) }"),
        "its functions call each other in a cycle: local.F -> local.F",
    ),
    "an-attribute-of-no-function": Regression(
        "differentiate", WEIGHTS, "node (outputs loss) refers to an attribute of a function, but is not in",
        lambda m: set_field(m.graph.node[1].attribute[0], "ref_attr_name", "k"),
    ),
    "a-constant-without-a-value": Regression(
        "rewrite", "g (float[3] x) => (float[3] y) { c = Constant <axis = 1> () y = Add(x, c) }",
        "Constant node (outputs c) has the attributes axis; expected only its value",
    ),
    "a-tensor-of-no-type": Regression(
        "inspect", WEIGHTS, "is not a valid ONNX model: -1 is not a valid DataType",
        lambda m: set_field(m.graph.initializer[0], "data_type", -1),
    ),
    "a-tensor-of-another-type": Regression(
        "inspect", WEIGHTS, "its initializer 'w' cannot be read: Unsupported dtype UINT32 for float_data",
        lambda m: set_field(m.graph.initializer[0], "data_type", onnx.TensorProto.UINT32),
    ),
    "a-tensor-of-another-shape": Regression(
        "finalize", WEIGHTS, "its initializer 'w' cannot be read: cannot reshape array of size 3",
        lambda m: m.graph.initializer[0].dims.append(2),
    ),
    "a-tensor-of-a-negative-size": Regression(
        "inspect", WEIGHTS, "its initializer 'w' has a negative dimension",
        lambda m: m.graph.initializer[0].dims.append(-1),
    ),
    "a-branch-without-its-output": Regression(
        "rewrite", IF, "no node produces its output 'p'", _remove_branch_output
    ),
    "an-empty-branch": Regression(
        "inspect", IF, "the attribute 'then_branch' of If node (outputs y) is an empty graph",
        lambda m: m.graph.node[0].attribute[0].g.Clear(),
    ),
    "an-op-that-is-not-utf-8": Regression(
        "inspect", WEIGHTS, "has the name b'\\x80educeSum', which is not valid UTF-8", not_utf8
    ),
    "a-vector-that-is-taken-for-a-shape": Regression(
        "inspect", LONG, "its input 'z' has shape [9223372036854775807]; expected fewer than 2^60 elements"
    ),
    "a-slice-behind-a-window-that-does-not-fit": Regression("inspect", SLICED, ""),
    "a-gradient-of-a-window-that-does-not-fit": Regression(
        "differentiate", SLICED, "its output 'y' has inferred shape [2,4,-1,-1]; expected sizes of 0 or more"
    ),
    "a-shape-of-another-rank": Regression(
        "differentiate",
        "g (float[2,3] x) => (float loss, float[3] y) { y = Mul(x, x) loss = ReduceSum <keepdims = 0> (y) }",
        "does not pass onnx's checker",
    ),
    "a-function-of-another-opset": Regression(
        "differentiate", CALL + function("F (a) => (b) { b = ReduceMean <axes = [0]> (a) }"),
        "the model's functions cannot be inlined: Opset mismatch",
        lambda m: set_field(m.opset_import[0], "version", 18),
    ),
    "initializers-that-are-no-inputs-of-an-old-ir": Regression(
        "finalize", WEIGHTS, "",
        lambda m: set_field(m, "ir_version", 3),
    ),
    "one-domain-in-two-versions": Regression(
        "rewrite", TF, "it imports ai.onnx in two versions, 15 and 17; expected one",
        lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 15)),
    ),
    "a-constant-with-three-values": Regression(
        "inspect", "g (float[3] x) => (float[3] y) { c, d, e = Constant <value_float = 1.0> () y = Add(x, c) }",
        "Constant node (outputs c, d, e) has 3 outputs; expected at most 1",
    ),
    "data-beyond-a-folder-that-is-not-there": Regression(
        "inspect", WEIGHTS, NEEDS_A_FILE + "'nowhere/../data.bin', of tensor 'w': it does not exist",
        lambda m: _external(m.graph.initializer[0], "nowhere/../data.bin"),
    ),
    "a-node-name-that-is-taken": Regression(
        "differentiate",
        """g (float[3] x) => (float loss) <float[3] w = {1, 2, 3}>
            { ["y_Grad/Mul_0"] h = Neg(x) [y] y = Mul(h, w) [loss] loss = ReduceSum <keepdims = 0> (y) }""", "",
    ),
    "two-nodes-of-one-name": Regression(
        "rewrite",
        """g (float[2,3] dy, float[2,3] x, float[3] s, float[3] m, float[3] i) => (float[2,3] dx, float[2,3] du) {
            [one] dx = com.microsoft.BatchNormalizationGrad(dy, x, s, m, i)
            [one] du = com.microsoft.BatchNormalizationGrad(x, dy, s, m, i) }""", "",
    ),
    "sizes-below-0": Regression(
        "differentiate",
        """g (float[3] x) => (float loss) <int64[1] starts = {0}, int64[1] ends = {2}>
            { y = Slice(x, starts, ends) loss = ReduceSum <keepdims = 0> (y) }""", "",
        lambda m: _set_sizes(m.graph.input[0], -1),
    ),
    "a-shape-of-sizes-below-0": Regression(
        "rewrite",
        """g (float[N,4,3] x, int64[N,5,1] i, float[N,5,3] dy) => (float[N,4,3] dx) <int64[3] shape>
            { shape = Shape(x) dx = com.microsoft.GatherNDGrad <batch_dims = 1> (shape, i, dy) }""", "",
        lambda m: _set_sizes(m.graph.value_info[0], -(1 << 63)),
    ),
    "a-call-without-what-the-function-needs": Regression(
        "differentiate",
        "g (float[N,3] x) => (float loss) { y = local.F(x) loss = ReduceSum <keepdims = 0> (y) }"
        + function("F (a, s, b, m, v) => (c) { c = BatchNormalization <training_mode = 1> (a, s, b, m, v) }"),
        "with its functions inlined is not valid: BatchNormalization node 'node' (outputs y) has no input 1",
    ),
    "data-that-is-not-there": Regression(
        "inspect", WEIGHTS, "its initializer 'w' has no data; expected 4294967296 elements",
        lambda m: m.graph.initializer[0].CopyFrom(onnx.TensorProto(name="w", data_type=1, dims=[1 << 32])),
    ),
    "two-bits-of-another-number": Regression(
        "inspect", WEIGHTS, "its initializer 'w' has 1 bytes of data; expected 1073741824",
        lambda m: m.graph.initializer[0].CopyFrom(
            onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT2, dims=[1 << 32], raw_data=b"1")
        ),
    ),
    "a-domain-that-is-not-utf-8": Regression(
        "rewrite", WEIGHTS, "it imports the domain b'\\x80ocal', which is not valid UTF-8",
        lambda m: not_utf8(m, b"local"),
    ),
    "bngrad-op-in-another-version": Regression(
        "rewrite", WEIGHTS.replace("Mul(x, w)", "bngrad.BatchNormalizationGrad(x, w)"),
        "BatchNormalizationGrad node (outputs y) has opset bngrad 0; expected 1",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 0]>',
    ),
    "bngrad-op-in-another-version-that-nothing-uses": Regression(
        "differentiate", WEIGHTS, "",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1000]>',
    ),
    "a-vector-that-a-number-says": Regression(
        "inspect",
        """g (float[1,1] x) => (float loss) { s = Constant <value_ints = [2147483647]> () y = Reshape (x, s)
            z = Mul (y, y) loss = ReduceSum <keepdims = 0> (z) }""", "",
    ),
    "more-elements-than-there-can-be": Regression(
        "rewrite",
        """g (float[4611686018427387905,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) {
            y, mean, var = BatchNormalization <training_mode = 1> (x, s, b, m, v) }""",
        "its input 'x' has shape [4611686018427387905,3]; expected",
    ),
    "a-vector-of-which-nothing-is-said": Regression(
        "inspect",
        """g (float[H,2147483648] x) => (float loss) <int64[1] axes = {0}>
            { y = ReduceMean <keepdims = 0> (x, axes) loss = ReduceSum <keepdims = 0> (y) }""", "",
        header='<ir_version: 8, opset_import: ["" : 18]>',
    ),
    "an-output-that-is-an-input-of-another-shape": Regression(
        "differentiate",
        """g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v)
            => (float[2,3] y, float loss, float[5] v) { y = BatchNormalization <training_mode = 1> (x, s, b, m, v)
            loss = ReduceSum <keepdims = 0> (y) }""", "",
    ),
    "a-reference-that-is-not-utf-8": Regression(
        "differentiate",
        CALL + function("F <along: int = 0> (a) => (b) { b = Softmax <axis: int = @along> (a) }"),
        "has the name b'\\x80long', which is not valid UTF-8", lambda m: not_utf8(m, b"along", 1),
    ),
    "a-graph-that-is-not-utf-8": Regression(
        "differentiate", WEIGHTS, "it has a graph with the name b'\\x80', which is not valid UTF-8",
        lambda m: not_utf8(m, b"g"),
    ),
    "an-input-that-is-not-utf-8": Regression(
        "differentiate", WEIGHTS.replace("(float[3] x)", "(float[3] x, float[3] unread)"),
        "it has a graph with the name b'\\x80nread', which is not valid UTF-8", lambda m: not_utf8(m, b"unread"),
    ),
    "an-initializer-that-is-not-utf-8": Regression(
        "finalize", WEIGHTS.replace("<float[3]", "<float[1] unread = {1}, float[3]"),
        "Value name must be a string, not <class 'bytes'>", lambda m: not_utf8(m, b"unread"),
    ),
    "a-note-of-an-input-that-is-not-utf-8": Regression(
        "rewrite", WEIGHTS, "it has a graph with the note b'\\x80oted', which is not valid UTF-8",
        lambda m: (set_field(m.graph.input[0], "doc_string", "noted"), not_utf8(m, b"noted"))[1],
    ),
    "a-note-of-a-tensor-that-is-not-utf-8": Regression(
        "rewrite", WEIGHTS, "its initializer 'w' has the note b'\\x80oted', which is not valid UTF-8",
        lambda m: (set_field(m.graph.initializer[0], "doc_string", "noted"), not_utf8(m, b"noted"))[1],
    ),
    "a-name-of-a-tensor-that-is-not-utf-8": Regression(
        "differentiate", WEIGHTS.replace("y =", "v = Constant <value = float[3] named {1, 2, 3}> () y ="),
        "the attribute 'value' of Constant node (outputs v) has the name b'\\x80amed', which is not valid UTF-8",
        lambda m: not_utf8(m, b"named"),
    ),
    "an-entry-of-an-output-that-is-not-utf-8": Regression(
        "rewrite", WEIGHTS, "it has a graph with the entry b'\\x80alue', which is not valid UTF-8",
        lambda m: (m.graph.output[0].metadata_props.add(key="key", value="value"), not_utf8(m, b"value"))[1],
    ),
    "an-extent-that-is-not-utf-8": Regression(
        "inspect", WEIGHTS.replace("(float[3] x)", "(float[NAMED] x)"),
        "Expected str, None, or sympy.Expr, got bytes", lambda m: not_utf8(m, b"NAMED"),
    ),
    "a-note-that-is-not-utf-8": Regression(
        "rewrite", WEIGHTS, "it has the note b'\\x80oted', which is not valid UTF-8",
        lambda m: (set_field(m, "doc_string", "noted"), not_utf8(m, b"noted"))[1],
    ),
    "an-entry-that-is-not-utf-8": Regression(
        "finalize", WEIGHTS, "Mul node (outputs y) has the entry b'\\x80alue', which is not valid UTF-8",
        lambda m: (m.graph.node[0].metadata_props.add(key="key", value="value"), not_utf8(m, b"value"))[1],
    ),
    "a-function-that-is-not-utf-8": Regression(
        "differentiate", WEIGHTS + function("Once (a) => (b) { b = Relu(a) }"),
        "it has a function called b'\\x80nce', which is not valid UTF-8", lambda m: not_utf8(m, b"Once"),
    ),
}  # fmt: skip


def model(case: Regression) -> onnx.ModelProto:
    """Returns the model of a regression."""
    parsed = onnx.parser.parse_model(f"{case.header}\n{case.text}")
    changed = case.change(parsed)
    return changed if isinstance(changed, onnx.ModelProto) else parsed


def chain(length: int, *, broken: bool = False) -> onnx.ModelProto:
    """Returns a model with a chain of nodes."""
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    if broken:
        nodes[length // 2].input[0] = "nothing"
    nodes.append(helper.make_node("ReduceSum", [f"v{length}"], ["loss"], keepdims=0))
    data = helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, [3])
    loss = helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [data], [loss])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
