"""Former findings of campaigns about single nodes: their inputs, outputs, attributes and shapes.

`lowering_regressions.py` contains those about ONNX Runtime's training ops.
"""

from __future__ import annotations

import onnx

from fuzz.regressions import TF, Regression, function, not_utf8, set_field
from fuzz.seeds import PARAMETERS

ATEN = """g (float[N,3,5] dy, float[N,3,5] x, float[3] w, float[3] m, float[3] v) => (float[N,3,5] dx) {
    dx = aten.native_batch_norm_backward <train: int = 0, eps: float = 0.001, output_mask: ints = [1, 0, 0]>
        (dy, x, w, m, v) }"""
ATEN_NODE = 'org.pytorch.aten.ATen <overload_name = ["a"], operator = "aten::native_batch_norm_backward", '
NGRAPH = """g (float[2,3,4] x, float[3] s, float[3] o) => (float[2,3,4] y) {
    y = Relu(x) z = ngraph.BatchNormTraining <epsilon = 0.1> (x, s, o) }"""
NGRAPH_HEADER = '<ir_version: 8, opset_import: ["" : 17, "ngraph" : 1]>'


def _no_outputs(model: onnx.ModelProto) -> None:
    model.graph.node[1].ClearField("output")


CASES = {
    "an-attribute-of-another-type": Regression(
        "differentiate",
        f"g (float[N,3] x) => (float[N,3] y) <{PARAMETERS}> "
        "{ y = BatchNormalization <training_mode: float = 1.0> (x, s, b, m, v) }",
        "BatchNormalization node (outputs y) has the attribute 'training_mode' of type FLOAT; expected INT",
    ),
    "a-missing-input": Regression(
        "differentiate", "g (float[3] x) => (float[3] y) { y = Mul(x) }",
        "Mul node (outputs y) has no input 1, which is required",
    ),
    "too-few-inputs-of-a-bngrad-op": Regression(
        "rewrite",
        "g (float[N,3] x) => (float[3] m) { m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> () }",
        "BatchNormalizationStatistics node (outputs m, s) has no input 0, which is required",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "axes-that-are-no-list": Regression(
        "inspect",
        "g (float[2,3] x) => (float[3] m) <int64 axes = {0}> "
        "{ m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> (x, axes) }", "",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "a-split-into-fewer-parts-than-outputs": Regression(
        "inspect", "g (float[6,N] x) => (float[A,N] y, float[B,N] z) { y, z = Split <num_outputs = 1> (x) }",
        "Split node (outputs y, z) has num_outputs 1 but 2 outputs; expected equal numbers",
        header='<ir_version: 8, opset_import: ["" : 18]>',
    ),
    "an-epsilon-that-is-infinite": Regression(
        "rewrite",
        f"g (float[N,3] x) => (float[N,3] y) <{PARAMETERS}> "
        "{ y, n, w = BatchNormalization <training_mode = 1, epsilon = 0.5> (x, s, b, m, v) }",
        "epsilon is -inf; expected a finite number of 0 or more",
        lambda m: [set_field(a, "f", float("-inf")) for a in m.graph.node[0].attribute if a.name == "epsilon"],
    ),
    "a-momentum-that-is-no-number": Regression(
        "differentiate",
        f"g (float[N,3] x) => (float loss) <{PARAMETERS}> "
        "{ y, n, w = BatchNormalization <training_mode = 1, momentum = 0.5> (x, s, b, m, v) "
        "loss = ReduceSum <keepdims = 0> (y) }",
        "momentum is nan; expected a finite number",
        lambda m: [set_field(a, "f", float("nan")) for a in m.graph.node[0].attribute if a.name == "momentum"],
    ),
    "pads-that-have-no-opposite": Regression(
        "differentiate",
        """g (float[N,M] x) => (float loss) <int64[4] p = {0, -9223372036854775808, 0, 0}>
            { y = Pad(x, p) loss = ReduceSum <keepdims = 0> (y) }""",
        "its pads are [0, -9223372036854775808, 0, 0]; expected numbers that have an opposite",
    ),
    "fewer-than-no-batch-dimensions": Regression(
        "inspect", "g (float[N,4] x, int64[N,1] i) => (float[N] y) { y = GatherND <batch_dims = -3> (x, i) }",
        "GatherND node (outputs y) has batch_dims -3; expected 0 or more",
    ),
    "axes-that-are-no-integers": Regression(
        "inspect",
        "g (float[2,3] x) => (float[3] m) <double[1] axes = {0}> "
        "{ m, s = bngrad.BatchNormalizationStatistics <epsilon = 0.1> (x, axes) }", "",
        lambda m: m.graph.initializer[0].CopyFrom(
            onnx.helper.make_tensor("axes", onnx.TensorProto.COMPLEX64, [1], [1 + 2j])
        ),
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "a-gradient-of-another-shape": Regression(
        "rewrite",
        """g (float[2,3,4] dy, float[2,3,5] x, float[3] s, float[3] m, float[3] v) => (float[2,3,5] dx) {
            axes = Constant <value_ints = [0, 2]> ()
            dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1> (dy, x, s, m, v, axes) }""",
        "dY has shape [2, 3, 4] and X [2, 3, 5]; expected equal shapes",
        header='<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>',
    ),
    "a-training-mode-before-there-was-one": Regression(
        "differentiate",
        f"g (float[N,3] x) => (float loss) <{PARAMETERS}> "
        "{ y = BatchNormalization <training_mode: float = 1.0> (x, s, b, m, v) "
        "loss = ReduceSum <keepdims = 0> (y) }",
        "has the attribute training_mode, which opset 14 introduced",
        header='<ir_version: 8, opset_import: ["" : 13]>',
    ),
    "new-statistics-that-are-read": Regression(
        "finalize",
        f"g (float[N,3] x) => (float[N,3] loss) <{PARAMETERS}> "
        "{ y, n, w = BatchNormalization <training_mode = 1> (x, s, b, m, v) loss = Add(y, n) }",
        "",
    ),
    "a-reserve-that-is-read-as-data": Regression(
        "rewrite", TF, "cannot be rewritten: it reads reserve_space_3, cuDNN's internal data, as a tensor"
    ),
    "an-overload-that-is-not-utf-8": Regression(
        "rewrite", ATEN.replace("aten.native_batch_norm_backward <", ATEN_NODE), "",
        header='<ir_version: 8, opset_import: ["" : 17, "org.pytorch.aten" : 1]>',
    ),
    "a-gradient-of-windows-larger-than-their-data": Regression(
        "differentiate",
        """g (float[1,1,3] x, float[1,1,5] w) => (float loss)
            { y = Conv(x, w) z = Relu(y) loss = ReduceSum <keepdims = 0> (z) }""",
        "Conv node 'y' (outputs y) is not valid: its output 'y' has inferred shape [1,1,-1]; expected sizes of 0",
    ),
    "a-product-with-a-number": Regression(
        "differentiate",
        """g (float[2,3] x, float b) => (float loss) <float[2,3] y>
            { y = MatMul(x, b) loss = ReduceSum <keepdims = 0> (y) }""",
        "MatMul node 'y' (outputs y) cannot be differentiated: the types or shapes of its inputs contradict "
        "its op: ",
    ),
    "a-mean-over-axes-that-are-not-there": Regression(
        "differentiate",
        """g (float[3] x) => (float loss) <int64[1] axes = {4}, float y>
            { y = ReduceMean <keepdims = 0> (x, axes) loss = ReduceSum <keepdims = 0> (y) }""",
        "contradict its op: [ShapeInferenceError]",
        header='<ir_version: 8, opset_import: ["" : 18]>',
    ),
    "a-constant-of-another-type": Regression(
        "rewrite", "g (float[3] x) => (float[3] y) { y = local.F(x) }"
        + function("F (a) => (c) { b = Constant <value: floats = [1.0]> () c = Add(a, b) }"),
        "Constant node (outputs b) has the attributes value; expected only its value",
    ),
    "an-axis-of-more-than-32-bits": Regression(
        "inspect",
        """g (float[2,3] x, float[3] s) => (float[2,3] y) {
            y, mean, inv_std = LayerNormalization <axis = 2147483648> (x, s) }""",
        "LayerNormalization node (outputs y, mean, inv_std) has axis 2147483648, which is out of range",
    ),
    "running-statistics-of-another-shape": Regression(
        "rewrite",
        """g (float[2,3,4] x, float[3] s, float[3] b, float[7] m, float[3] v) => (float[2,3,4] y) {
            y, mean, var = BatchNormalization <training_mode = 1> (x, s, b, m, v) }""",
        "its input 'm' has shape [7]; expected [3]",
    ),
    "a-type-that-there-is-none-of": Regression(
        "inspect",
        """g (float[2,3] x, float[3] s) => (float[2,3] y) {
            y, mean, inv_std = LayerNormalization <stash_type = -1> (x, s) }""", "",
    ),
    "an-attribute-whose-double-is-infinite": Regression(
        "differentiate",
        """g (float[N,3,H,W] x) => (float loss) {
            y = LRN <size = 9, alpha = 3e+38> (x) loss = ReduceSum <keepdims = 0> (y) }""", "",
    ),
    "an-attribute-of-no-type": Regression(
        "differentiate", "g (float[3] x) => (float[3] y) { y = Mul(x, x) }",
        "Mul node (outputs y) has the attribute 'w' without a type",
        lambda m: m.graph.node[0].attribute.append(onnx.AttributeProto(name="w")),
    ),
    "a-foreign-batch-norm-without-outputs": Regression(
        "rewrite", NGRAPH, "it has no outputs; expected at least one", _no_outputs, NGRAPH_HEADER
    ),
    "a-foreign-batch-norm-without-outputs-to-look-at": Regression(
        "inspect", NGRAPH, "", _no_outputs, NGRAPH_HEADER
    ),
    "a-saved-variance-that-is-read-twice": Regression(
        "rewrite", TF.replace("(r, x, s, sm, sv, r)", "(x, x, sv, sm, sv, r)"), "",
    ),
    "an-overload-with-invalid-utf-8": Regression(
        "rewrite", ATEN.replace("aten.native_batch_norm_backward <", ATEN_NODE.replace('["a"]', '"XYZ"')),
        "cannot be rewritten: its overload is '\\\\x80YZ'; expected the default one",
        lambda m: not_utf8(m, b"XYZ"),
        header='<ir_version: 8, opset_import: ["" : 17, "org.pytorch.aten" : 1]>',
    ),
    "a-fourth-output-of-aten": Regression(
        "rewrite", ATEN.replace("dx =", "dx, a, b, c ="), "it has 4 outputs; expected at most 3"
    ),
    "data-of-two-ranks": Regression(
        "rewrite", ATEN.replace("float[N,3,5] x", "float[N,3] x"),
        "cannot be rewritten: its input has shape [N, 3]; expected [N, 3, 5] like grad_out",
    ),
    "data-that-is-found-out-to-be-none": Regression(
        "rewrite",
        """g (float[N,3,H,W] x, float[3] s, float[3] b, float[N,3,H,W] dy) => (float[N,3,H,W] dx) {
            y, m, v = ngraph.BatchNormTraining <eps = 0.001> (s, b, x)
            dx, ds, db = ngraph.BatchNormTrainingBackprop <eps = 0.001> (s, b, v, m, v, dy) }""",
        "cannot be rewritten: shape of delta does not match the shape of the input data",
        header='<ir_version: 8, opset_import: ["" : 17, "ngraph" : 1]>',
    ),
}  # fmt: skip
