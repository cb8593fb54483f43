"""Tests the description of a model's batch norms."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.inspection.inspect import inspect

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "bngrad" : 1, "f" : 1]>\n'
X = "float[N,3,4,4]"


def inspected(text, header=HEADER):
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    for node in model.graph:
        if node.op_type == "Constant":  # onnx-ir gives its tensor a name when it is read; nothing else may change
            node.attributes["value"].value.name = node.outputs[0].name
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    inspection = inspect(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    return inspection


INTERNAL = "y, m2, v2, sm, si = com.microsoft.BatchNormInternal(x, s, b, m, v)"
INPUTS = f"{X} dy, {X} x, float[3] s, float[3] b, float[3] m, float[3] v"
CASES = {
    "forward-and-gradient": (
        f"""g ({INPUTS}) => ({X} dx) {{
            [f] {INTERNAL}
            dx, a, c = com.microsoft.BatchNormalizationGrad(dy, x, s, sm, si) }}""",
        [("f", "com.microsoft.BatchNormInternal", "training", [0, 2, 3], "com.microsoft.BatchNormalizationGrad")],
    ),
    "forward-and-fused-gradient": (
        f"""g ({INPUTS}) => ({X} dx) <int64[3] axes = {{0, 2, 3}}> {{
            [f] {INTERNAL}
            dx, a, c = bngrad.BatchNormalizationReluGrad <training_mode = 1> (dy, y, x, s, sm, si, axes) }}""",
        [("f", "com.microsoft.BatchNormInternal", "training", [0, 2, 3], "bngrad.BatchNormalizationReluGrad")],
    ),
    "fused-gradient-alone": (
        f"""g ({INPUTS}, {X} z) => ({X} dx) <int64[3] axes = {{0, 2, 3}}> {{
            [g] dx, a, c = bngrad.BatchNormalizationReluGrad <training_mode = 1> (dy, z, x, s, m, v, axes) }}""",
        [
            (
                "g",
                "bngrad.BatchNormalizationReluGrad",
                "gradient",
                [0, 2, 3],
                "bngrad.BatchNormalizationReluGrad",
            )
        ],
    ),
    "gradient-alone": (
        f"g ({INPUTS}) => ({X} dx) {{ [g] dx, a, c = com.microsoft.BatchNormalizationGrad(dy, x, s, m, v) }}",
        [
            (
                "g",
                "com.microsoft.BatchNormalizationGrad",
                "gradient",
                [0, 2, 3],
                "com.microsoft.BatchNormalizationGrad",
            )
        ],
    ),
    "forward-alone": (
        f"g ({INPUTS}) => ({X} y) {{ [f] {INTERNAL} }}",
        [("f", "com.microsoft.BatchNormInternal", "training", [0, 2, 3], "")],
    ),
    "a-name-is-that-of-an-output-where-there-is-none": (
        f"g ({INPUTS}) => ({X} y) {{ y = BatchNormalization(x, s, b, m, v) }}",
        [("y", "BatchNormalization", "frozen", [0, 2, 3], "")],
    ),
    "two-of-one-x-are-told-apart-by-their-statistics": (
        f"""g ({INPUTS}) => ({X} dx) {{
            [one] {INTERNAL}
            [two] y_, m2_, v2_, sm_, si_ = com.microsoft.BatchNormInternal(x, b, b, m, v)
            dx, a, c = com.microsoft.BatchNormalizationGrad(dy, x, b, sm_, si_) }}""",
        [
            ("one", "com.microsoft.BatchNormInternal", "training", [0, 2, 3], ""),
            (
                "two",
                "com.microsoft.BatchNormInternal",
                "training",
                [0, 2, 3],
                "com.microsoft.BatchNormalizationGrad",
            ),
        ],
    ),
    "ours-with-any-axes": (
        f"""g ({X} x, float[4] p) => ({X} y) {{
            axes = Constant<value = int64[3] {{0, 1, -1}}>()
            [f] y, a, c, d, e = bngrad.BatchNormalizationTraining
                <epsilon = 0.1, momentum = 0.9, unbiased_running_var = 0>(x, p, p, p, p, axes) }}""",
        [("f", "bngrad.BatchNormalizationTraining", "training", [0, 1, -1], "")],
    ),
    "in-a-function-nothing-is-known": (
        f"""g ({INPUTS}) => ({X} y) {{ y = f.F(x, s, b, m, v) }}
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        F (x, s, b, m, v) => (y) {{ [f] {INTERNAL} }}""",
        [("f", "com.microsoft.BatchNormInternal", "training", None, "")],
    ),
    "a-gradient-without-inputs": (
        f"g ({INPUTS}) => ({X} y) {{ [f] {INTERNAL}  [g] dx = com.microsoft.BatchNormalizationGrad() }}",
        [
            ("f", "com.microsoft.BatchNormInternal", "training", [0, 2, 3], ""),
            (
                "g",
                "com.microsoft.BatchNormalizationGrad",
                "gradient",
                None,
                "com.microsoft.BatchNormalizationGrad",
            ),
        ],
    ),
    "a-forward-without-inputs": (
        f"g ({INPUTS}) => ({X} y) {{ y = Neg(x)  [f] z = bngrad.BatchNormalizationTraining() }}",
        [("f", "bngrad.BatchNormalizationTraining", "training", None, "")],
    ),
    "none": (f"g ({INPUTS}) => ({X} y) {{ y = Neg(x) }}", []),
}


@pytest.mark.parametrize("case", CASES)
def test_batch_norms(case):
    text, expected = CASES[case]
    batch_norms = inspected(text).batch_norms
    assert [(b.name, b.op, b.mode, b.axes, b.gradient) for b in batch_norms] == expected


HAZARDS = {
    "left-out": ("y = BatchNormalization<training_mode = 1>(x, s, b, m, v)", X + " y", "crashes"),
    "one-left-out": ("y, , v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)", X + " y", "crashes"),
    "not-an-output": (
        "y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)",
        X + " y, float[3] m2",
        "overwrites running_mean and running_var",
    ),
    "both-are-outputs": (
        "y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)",
        X + " y, float[3] m2, float[3] v2",
        None,
    ),
    "frozen": ("y = BatchNormalization(x, s, b, m, v)", X + " y", None),
}


@pytest.mark.parametrize("case", HAZARDS)
def test_hazards(case):
    node, outputs, hazard = HAZARDS[case]
    (batch_norm,) = inspected(f"g ({INPUTS}) => ({outputs}) {{ {node} }}").batch_norms
    assert len(batch_norm.hazards) == (hazard is not None)
    if hazard:
        assert hazard in batch_norm.hazards[0]


@pytest.mark.parametrize(
    ("declared", "shape", "dtype"),
    [
        ("float[N,3,4,4]", "Nx3x4x4", "float"),
        ("double[2,3]", "2x3", "double"),
        ("float16[N,3,H]", "Nx3xH", "float16"),
    ],
)
def test_types_and_shapes(declared, shape, dtype):
    text = f"g ({declared} x, float[3] s) => ({declared} y) {{ y = BatchNormalization(x, s, s, s, s) }}"
    (batch_norm,) = inspected(text).batch_norms
    assert (batch_norm.shape, batch_norm.dtype) == (shape, dtype)


def test_what_stock_ort_lacks_is_counted():
    inspection = inspected(
        f"""g ({INPUTS}) => ({X} y) {{
            y = com.microsoft.ReluGrad(dy, x)
            z = com.microsoft.ReluGrad(dy, y)
            u = MaxPoolGrad<kernel_shape = [1, 1]>(dy, x)
            w = com.microsoft.FusedMatMul(x, x) }}"""
    )
    assert inspection.not_in_stock == {"com.microsoft.ReluGrad": 2, "MaxPoolGrad": 1}
    assert (inspection.opset, inspection.ir_version) == (17, 8)


def test_another_systems_batch_norm_is_foreign_until_it_is_rewritten():
    model = ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
        g (float[2,4,4,3] dy, float[2,4,4,3] x, float[3] s, float[3] m, float[3] v) => (float[2,4,4,3] dx) {
            [grad] dx, ds, db = tf.FusedBatchNormGradV2 <epsilon = 0.001> (dy, x, s, m, v) }""")
    )
    (batch_norm,) = inspect(model).batch_norms
    assert (batch_norm.name, batch_norm.op, batch_norm.mode) == ("grad", "tf.FusedBatchNormGradV2", "foreign")
    assert (batch_norm.dtype, batch_norm.shape) == ("float", "2x4x4x3")
    (rewritten,) = inspect(bngrad.rewrite(model)).batch_norms
    assert (rewritten.op, rewritten.mode) == ("bngrad.BatchNormalizationGrad", "gradient")
    assert rewritten.axes == [0, 1, 2]
