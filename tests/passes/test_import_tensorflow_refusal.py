"""Nodes of TensorFlow's that are refused: each reason, and that nothing changes."""

from __future__ import annotations

import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from pass_models import content
from tensorflow_formulas import parsed

DATA = "float[2,4,5,3]"


def grad_text(inputs="dy, x, scale, mean, variance, r", attributes="", op_type="FusedBatchNormGradV3", **types):
    of = {
        "dy": DATA,
        "x": DATA,
        "scale": "float[3]",
        "mean": "float[3]",
        "variance": "float[3]",
        "r": "float",
    } | types
    arguments = ", ".join(f"{kind} {name}" for name, kind in of.items())
    return f"g ({arguments}) => ({of['x']} dx) {{ [bn] dx, a, b, c, d = tf.{op_type}{attributes}({inputs}) }}"


def forward_text(inputs="x, scale, offset, mean, variance", attributes="", **types):
    of = {"x": DATA, "scale": "float[3]", "offset": "float[3]", "mean": "float[3]", "variance": "float[3]"} | types
    arguments = ", ".join(f"{kind} {name}" for name, kind in of.items())
    return (
        f"g ({arguments}) => ({of['x']} y) {{ [bn] y, a, b, c, d, e = tf.FusedBatchNormV3{attributes}({inputs}) }}"
    )


def in_a_function(attribute):
    return f"""<ir_version: 8, opset_import: ["" : 17, "tf" : 1, "f" : 1]>
    g ({DATA} x, float[3] p) => ({DATA} dx) {{ dx = f.Block<given = 1>(x, p) }}
    <domain: "f", opset_import: ["" : 17, "tf" : 1]>
    Block <given> (x, p) => (dx) {{
        [bn] dx, a, b, c, d = tf.FusedBatchNormGradV2<{attribute} = @given>(x, x, p, p, p) }}"""


INPUTS = "y_backprop, x, scale, reserve_space_1, reserve_space_2"
REFUSED = {
    "rank-3": (
        grad_text(dy="float[2,4,3]", x="float[2,4,3]"),
        "node 'bn' (outputs dx, a, b, c, d) cannot be rewritten: its x has rank 3; expected 4 or 5",
    ),
    "rank-6": (forward_text(x="float[2,2,2,2,2,3]"), "its x has rank 6; expected 4 or 5"),
    "y_backprop-of-another-shape": (
        grad_text(dy="float[2,5,5,3]"),
        "its y_backprop has shape [2, 5, 5, 3]; expected [2, 4, 5, 3] like x",
    ),
    "y_backprop-of-another-rank": (
        grad_text(dy="float[N,2,2,2,3]", x="float[N,4,?,3]"),
        "its y_backprop has shape [N, 2, 2, 2, 3]; expected [N, 4, ?, 3] like x",
    ),
    "scale-of-two-dimensions": (
        grad_text(scale="float[1,3]"),
        "its scale has shape [1, 3]; expected one dimension, the channels of x",
    ),
    "variance-without-dimensions": (
        grad_text(variance="float"),
        "its reserve_space_2 has shape []; expected one dimension, the channels of x",
    ),
    "scale-of-another-size": (
        grad_text(scale="float[4]"),
        "its scale has 4 elements; expected 3, the channels of x (the last dimension)",
    ),
    "mean-of-another-size": (
        grad_text(mean="float[4]"),
        "its reserve_space_1 has 4 elements; expected 3, the channels of x (the last dimension)",
    ),
    "channels-in-the-other-place": (
        grad_text(attributes='<data_format = "NCHW">'),
        "its scale has 3 elements; expected 4, the channels of x (dimension 1)",
    ),
    "offset-of-another-size": (
        forward_text(offset="float[2]"),
        "its offset has 2 elements; expected 3, the channels of x (the last dimension)",
    ),
    "an-average-that-is-read-and-empty": (
        forward_text(attributes="<exponential_avg_factor = 0.25>", mean="float[0]"),
        "its mean has 0 elements; expected 3, the channels of x (the last dimension)",
    ),
    "a-population-that-is-empty": (
        forward_text(attributes="<is_training = 0>", variance="float[0]"),
        "its variance has 0 elements; expected 3, the channels of x (the last dimension)",
    ),
    "a-format-that-is-not-there": (
        grad_text(attributes='<data_format = "NWHC">'),
        "its data_format is 'NWHC'; expected one of NHWC, NCHW, NDHWC, NCDHW",
    ),
    "a-format-that-is-a-number": (
        grad_text(attributes="<data_format = 1>"),
        "its data_format is of type int; expected string",
    ),
    "a-mode-that-is-not-there": (
        grad_text(attributes="<is_training = 2>"),
        "its is_training is 2; expected 0 or 1",
    ),
    "an-epsilon-that-is-an-integer": (
        grad_text(attributes="<epsilon = 1>"),
        "its epsilon is of type int; expected float",
    ),
    "a-mode-of-the-caller": (
        in_a_function("is_training: int"),
        "its is_training is @given, which may differ between calls of its function; expected a constant",
    ),
    "an-epsilon-of-the-caller": (in_a_function("epsilon: float"), "its epsilon is @given"),
    "integers": (
        grad_text(dy="int32[2,4,5,3]", x="int32[2,4,5,3]"),
        "its input 'x' is int32; expected one of float, double, float16, bfloat16",
    ),
    "data-of-two-types": (
        grad_text(dy="float16[2,4,5,3]"),
        "its input 'dy' is float16; expected float, the type of the data before it",
    ),
    "half-parameters-of-float": (grad_text(scale="float16[3]"), "its input 'scale' is float16; expected float"),
    "statistics-of-two-types": (
        grad_text(dy="float16[2,4,5,3]", x="float16[2,4,5,3]", variance="float16[3]"),
        "its reserve_space_2 is float16; expected float like reserve_space_1",
    ),
    "four-inputs": (grad_text("dy, x, scale, mean"), f"it has 4 inputs; expected 6, all present: {INPUTS}"),
    "an-input-left-out": (
        grad_text("dy, x, , mean, variance", op_type="FusedBatchNormGradV2"),
        f"it has 4 inputs; expected 5, all present: {INPUTS}",
    ),
    "six-inputs-of-version-2": (
        grad_text(op_type="FusedBatchNormGradV2"),
        f"it has 6 inputs; expected 5, all present: {INPUTS}",
    ),
    "four-inputs-of-a-forward": (
        forward_text("x, scale, offset, mean"),
        "it has 4 inputs; expected 5, all present: x, scale, offset, mean, variance",
    ),
    "six-outputs-of-a-gradient": (
        grad_text().replace("a, b, c, d =", "a, b, c, d, e ="),
        "it has 6 outputs; expected at most 5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_reason_and_changes_nothing(case):
    text, reason = REFUSED[case]
    model = parsed(text)
    before = content(model)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportTensorflowPass()(model)
    assert reason in str(error.value)
    assert content(model) == before


def test_one_refusal_leaves_the_nodes_before_it_as_they_were():
    model = parsed(f"""g ({DATA} x, float[3] p, float[3] q) => ({DATA} y) {{
        [good] y, a, b, c, d = tf.FusedBatchNormGradV2(x, x, p, p, p)
        [bad] z, e, f, h, i = tf.FusedBatchNormGradV2(q, q, p, p, p) }}""")
    before = content(model)
    with pytest.raises(UnsupportedNodeError, match="'bad'"):
        ImportTensorflowPass()(model)
    assert content(model) == before
