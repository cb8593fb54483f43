"""Batch norms in primitives become ops: every form of the formulas, in every layout, and nothing else does."""

from __future__ import annotations

import pathlib
import re

import onnx
import onnx_ir as ir
import pytest
from spelled import BACKWARD, FORWARD, HEADER, graph, kinds, op_counts, recognized, require_same_numbers

from bngrad.passes import pipeline
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.prepare.infer_types import InferTypesPass
from pass_models import find

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "dialects" / "primitives.md"
TRAINING = {"BatchNormalizationTraining": 1}
BOTH = {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1}

LAYOUTS = {
    "NCHW": {},
    "NHWC": {"shape": "4,5,5,3", "parameter": "3", "axes": "0, 1, 2"},
    "rank 2": {"shape": "8,3", "parameter": "3", "axes": "0", "count": 8},
    "rank 3": {"shape": "4,3,7", "parameter": "3,1", "axes": "0, 2", "count": 28},
    "rank 5": {"shape": "2,3,2,3,4", "parameter": "1,3,1,1,1", "axes": "0, 2, 3, 4", "count": 48},
    "per activation": {"shape": "6,3,2,2", "parameter": "3,2,2", "axes": "0", "count": 6},
    "negative axes": {"shape": "4,5,5,3", "parameter": "1,1,1,3", "axes": "-4, -3, -2"},
    "one channel": {"shape": "4,1,5,5", "parameter": "1,1,1,1"},
    "a batch of one": {"shape": "1,3,5,5", "count": 25},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backward", BACKWARD)
@pytest.mark.parametrize("forward", FORWARD)
def test_forward_and_backward_are_two_ops(forward, backward, layout):
    proto, model, candidates = recognized(graph(FORWARD[forward] + BACKWARD[backward], **LAYOUTS[layout]))
    assert kinds(candidates) == {"forward": 1, "backward": 1}
    ops = op_counts(model)
    assert not [op for op in ops if op.startswith("Reduce")]
    assert ops["BatchNormalizationTraining"] == ops["BatchNormalizationGrad"] == 1
    require_same_numbers(proto, model)


@pytest.mark.parametrize("forward", FORWARD)
def test_a_forward_pass_alone_is_one_op(forward):
    proto, model, _ = recognized(graph(FORWARD[forward]))
    assert op_counts(model)["BatchNormalizationTraining"] == 1
    assert not [op for op in op_counts(model) if op.startswith("Reduce")]
    require_same_numbers(proto, model)


BESIDES = {
    "running averages": (
        """keep = Constant <value = double {0.9}> () new = Constant <value = double {0.1}> ()
        km = Mul (old_mean, keep) nm = Mul (m, new) new_mean = Add (km, nm)
        bessel = Constant <value = double {1.0101010101}> () kv = Mul (old_var, keep) unbiased = Mul (v, bessel)
        nv = Mul (unbiased, new) new_var = Add (kv, nv)""",
        ", double[1,3,1,1] new_mean, double[1,3,1,1] new_var",
        ", double[1,3,1,1] old_mean, double[1,3,1,1] old_var",
        {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1, "ReduceMean": 0},
    ),
    "xhat, too": ("z = Exp (c)", ", double[4,3,5,5] z", "", {"Sub": 1, "ReduceMean": 0}),
    "a residual in dX": (
        "dx2 = Add (dx, other)",
        ", double[4,3,5,5] dx2",
        ", double[4,3,5,5] other",
        {"BatchNormalizationGrad": 1, "Add": 1},
    ),
    "a residual in Y": (
        "y2 = Add (y, other)",
        ", double[4,3,5,5] y2",
        ", double[4,3,5,5] other",
        {"BatchNormalizationTraining": 1, "Add": 1},
    ),
    "weight decay in dscale": (
        "decay = Constant <value = double {0.01}> () w = Mul (scale, decay) total = Add (dscale, w)",
        ", double[1,3,1,1] total",
        "",
        {"BatchNormalizationGrad": 1, "Add": 1},
    ),
    "a gate behind Y": (
        "gated = Mul (y, gate)",
        ", double[4,3,5,5] gated",
        ", double[4,3,1,1] gate",
        {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1},
    ),
}


@pytest.mark.parametrize("case", BESIDES)
def test_what_else_reads_the_values(case):
    nodes, outputs, inputs, expected = BESIDES[case]
    main = "double[4,3,5,5] y, double[4,3,5,5] dx, double[1,3,1,1] dscale, double[1,3,1,1] dbias"
    text = graph(FORWARD["centered"] + BACKWARD["torch"] + nodes, outputs=main + outputs, inputs=inputs)
    proto, model, _ = recognized(text)
    ops = op_counts(model)
    assert {op: ops[op] for op in expected} == expected
    require_same_numbers(proto, model)


def test_a_gate_whose_product_alone_is_read():
    """Y is an input of a product, as before a squeeze-and-excitation gate."""
    text = graph(
        FORWARD["centered"] + "gated = Mul (y, gate)",
        outputs="double[4,3,5,5] gated",
        inputs=", double[4,3,1,1] gate",
    )
    proto, model, candidates = recognized(text)
    assert kinds(candidates) == {"forward": 1}
    assert op_counts(model)["ReduceMean"] == 0
    require_same_numbers(proto, model)


FROZEN = """
    ve = Add (var, eps) root = Sqrt (ve) r = Reciprocal (root) c = Sub (x, mean) xhat = Mul (c, r)
    sx = Mul (xhat, scale) y = Add (sx, bias)"""
FROZEN_BACKWARD = """
    s = ReduceSum <keepdims = 1> (dy, axes) pc = Mul (dy, xhat) dscale = ReduceSum <keepdims = 1> (pc, axes)
    dbias = Identity (s) rs = Mul (r, scale) dx = Mul (dy, rs)"""
GIVEN = ", double[1,3,1,1] mean, double[1,3,1,1] var"


def test_frozen_statistics():
    proto, model, candidates = recognized(graph(FROZEN + FROZEN_BACKWARD, inputs=GIVEN))
    assert kinds(candidates) == {"frozen forward": 1, "frozen backward": 1}
    ops = op_counts(model)
    assert ops["BatchNormalization"] == ops["BatchNormalizationGrad"] == 1
    assert ops["ReduceSum"] == 0
    (node,) = (node for node in model.graph if node.op_type == "BatchNormalizationGrad")
    assert node.attributes["training_mode"].value == 0
    require_same_numbers(proto, model)


def test_a_frozen_batch_norm_has_the_whole_slope():
    """x * (scale + inv_std) is not a batch norm beside x * scale."""
    body = FROZEN.replace("xhat = Mul (c, r)", "k = Add (r, scale)").replace("Mul (xhat, scale)", "Mul (c, k)")
    proto, model, candidates = recognized(graph(body, inputs=GIVEN))
    assert kinds(candidates) == {}
    assert op_counts(model) == op_counts(ir.from_proto(proto))


GIVEN_INV_STD = ", double[1,3,1,1] mean, double[1,3,1,1] inv_std"


VARIANCES = {
    "a quotient by the negative": "w_ = Div (p, ve)|nve = Neg (ve) nw = Div (p, nve) w_ = Neg (nw)",
    "a square": "w_ = Div (p, ve)|vv = Mul (ve, ve) pv = Mul (p, ve) w_ = Div (pv, vv)",
    "a power": "w_ = Div (p, ve)|two = Constant <value = double {2.0}> () vv = Pow (ve, two)"
    " pv = Mul (p, ve) w_ = Div (pv, vv)",
}


@pytest.mark.parametrize("case", VARIANCES)
def test_a_variance_that_is_read_before_its_root(case):
    right, spelled = VARIANCES[case].split("|")
    backward = BACKWARD["xla"].replace(right, spelled)
    assert backward != BACKWARD["xla"]
    head, tail = FORWARD["centered"].split("root = ")
    first, last = backward.split("cq = ")
    # dscale needs inv_std.
    first = first.replace("dscale = Mul (p, r)", "")
    body = f"{head} {first} root = {tail} dscale = Mul (p, r) cq = {last}"
    proto, model, candidates = recognized(graph(body))
    assert kinds(candidates) == {"forward": 1, "backward": 1}
    require_same_numbers(proto, model)


def test_dimensions_that_are_merged_in_other_ways():
    """Inv_std is expanded to [4, 3, 6, 2], and x is [4, 3, 2, 3, 2]: both are [4, 3, 12]."""
    body = FORWARD["centered"].replace(
        "xhat = Mul (c, r)",
        """merged = Constant <value_ints = [4, 3, 12]> () whole = Constant <value_ints = [4, 3, 2, 3, 2]> ()
        parts = Constant <value_ints = [4, 3, 6, 2]> () flat = Constant <value_ints = [1, 3, 1, 1]> ()
        r4 = Reshape (r, flat) wide = Expand (r4, parts) rm = Reshape (wide, merged) cm = Reshape (c, merged)
        xhatm = Mul (cm, rm) xhat = Reshape (xhatm, whole)""",
    )
    text = graph(body, shape="4,3,2,3,2", parameter="1,3,1,1,1", axes="0, 2, 3, 4")
    proto, model, candidates = recognized(text)
    assert kinds(candidates) == {"forward": 1}
    require_same_numbers(proto, model)


def test_a_residual_that_is_added_to_a_part_of_dx():
    """A sum of a * dY and other data is data itself, but not where the rest of a dX is added."""
    body = f"c = Sub (x, mean) r = Identity (inv_std) {BACKWARD['torch']}"
    body = body.replace("t = Sub (dy, through)", "").replace("u = Sub (t, sn)", "u = Add (through, sn)")
    body = body.replace("dx = Mul (u, rs)", "part = Mul (u, rs)")
    body += " direct = Mul (dy, rs) sum = Add (direct, other) dx = Sub (sum, part)"
    proto, model, candidates = recognized(graph(body, inputs=GIVEN_INV_STD + ", double[4,3,5,5] other"))
    assert kinds(candidates) == {"backward": 1}
    assert op_counts(model)["ReduceSum"] == 0
    require_same_numbers(proto, model)


def test_a_backward_pass_whose_statistics_are_given():
    body = "c = Sub (x, mean) r = Identity (inv_std)" + BACKWARD["torch"]
    inputs = ", double[1,3,1,1] mean, double[1,3,1,1] inv_std"
    proto, model, candidates = recognized(graph(body, inputs=inputs))
    assert kinds(candidates) == {"backward": 1}
    assert op_counts(model)["ReduceSum"] == 0
    (node,) = (node for node in model.graph if node.op_type == "BatchNormalizationGrad")
    assert node.attributes["training_mode"].value == 1
    require_same_numbers(proto, model)


def test_scale_and_bias_may_be_absent():
    body = FORWARD["centered"].replace("sx = Mul (xhat, scale) y = Add (sx, bias)", "y = Identity (xhat)")
    proto, model, candidates = recognized(
        graph(body + BACKWARD["torch"].replace("rs = Mul (r, scale)", "rs = Identity (r)"))
    )
    assert kinds(candidates) == {"forward": 1, "backward": 1}
    require_same_numbers(proto, model)


def test_a_bias_in_front_is_data():
    """A batch norm takes it away, but its gradient may be asked for, and the mean has it."""
    body = "u = Add (data, shift)" + FORWARD["centered"].replace("(x,", "(u,") + "mean = Identity (m)"
    inputs = ", double[4,3,5,5] data, double[1,3,1,1] shift"
    outputs = "double[4,3,5,5] y, double[1,3,1,1] mean"
    proto, model, candidates = recognized(graph(body, outputs=outputs, inputs=inputs))
    assert kinds(candidates) == {"forward": 1}
    assert find(model, "BatchNormalizationTraining").inputs[0].name == "u"
    require_same_numbers(proto, model)


def test_sixteen_bits_around_float_arithmetic():
    """PyTorch computes in float what it reads and writes in 16 bits; the op does both."""
    body = (FORWARD["centered"] + BACKWARD["torch"]).replace("double", "float").replace("(x,", "(x32,")
    body = body.replace("(dy,", "(dy32,").replace("y = Add (sx, bias)", "y32 = Add (sx, bias)")
    body = body.replace("dx = Mul (u, rs)", "dx32 = Mul (u, rs)")
    text = f"""{HEADER}g (float16[4,3,5,5] x, float[1,3,1,1] scale, float[1,3,1,1] bias, float16[4,3,5,5] dy)
        => (float16[4,3,5,5] y, float16[4,3,5,5] dx, float[1,3,1,1] dscale) {{
        axes = Constant <value_ints = [0, 2, 3]> () count_ = Constant <value = float {{100.0}}> ()
        eps = Constant <value = float {{0.001}}> () x32 = Cast <to = 1> (x) dy32 = Cast <to = 1> (dy) {body}
        y = Cast <to = 10> (y32) dx = Cast <to = 10> (dx32) }}"""
    proto, model, candidates = recognized(text)
    assert kinds(candidates) == {"forward": 1, "backward": 1}
    data = {node.op_type: node.inputs[0].dtype for node in model.graph if node.domain == "bngrad"}
    assert data["BatchNormalizationTraining"] == ir.DataType.FLOAT16
    require_same_numbers(proto, model, tolerance=2e-3)


def test_subgraphs_are_searched():
    inner = FORWARD["centered"].replace("y = Add (sx, bias)", "inner = Add (sx, bias)")
    text = f"""{HEADER}g (double[4,3,5,5] x, double[1,3,1,1] scale, double[1,3,1,1] bias, bool flag)
        => (double[4,3,5,5] y) {{
        axes = Constant <value_ints = [0, 2, 3]> () eps = Constant <value = double {{0.001}}> ()
        y = If (flag) <then_branch = t () => (double[4,3,5,5] inner) {{ {inner} }},
                       else_branch = e () => (double[4,3,5,5] same) {{ same = Identity (x) }}> }}"""
    _, model, candidates = recognized(text)
    assert kinds(candidates) == {"forward": 1}
    assert "BatchNormalizationTraining" in {
        node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)
    }


def test_functions_are_searched():
    text = f"""<ir_version: 8, opset_import: ["" : 18, "f" : 1]>
        g (double[4,3,5,5] x, double[1,3,1,1] s, double[1,3,1,1] b) => (double[4,3,5,5] y) {{ y = f.F (x, s, b) }}
        <domain: "f", opset_import: ["" : 18]> F (x, scale, bias) => (y) {{
            axes = Constant <value_ints = [0, 2, 3]> () {CONSTANT_EPSILON} {FORWARD["centered"]} }}"""
    _, _, candidates = recognized(text)
    assert kinds(candidates) in ({}, {"forward": 1})  # without shapes nothing is known of its values


CONSTANT_EPSILON = "eps = Constant <value = double {0.001}> ()"

NO_MATCH = {
    "layer norm": (FORWARD["centered"], {"axes": "1, 2, 3", "parameter": "3,5,5"}, "layer, group or instance"),
    "instance norm": (FORWARD["centered"], {"axes": "2, 3"}, "layer, group or instance"),
    "all axes": (FORWARD["centered"], {"axes": "0, 1, 2, 3", "parameter": "1,1,1,1"}, "layer, group or instance"),
    "RMS norm": (
        FORWARD["centered"].replace("Sub (x, m)", "Identity (x)"),
        {},
        "does not subtract the mean",
    ),
    "unbiased variance and epsilon outside": (
        FORWARD["centered"].replace("ve = Add (v, eps) root = Sqrt (ve)", "vr = Sqrt (v) root = Add (vr, eps)"),
        {},
        "no value is scale",
    ),
    "a mean over other axes": (
        FORWARD["centered"].replace(
            "m = ReduceMean <keepdims = 1> (x, axes)", "m = ReduceMean <keepdims = 1> (x)"
        ),
        {},
        "it is not the mean of",
    ),
    "a sign": (FORWARD["centered"].replace("c = Sub (x, m)", "c = Add (x, m)"), {}, "it is not the mean of"),
    "no square root": (
        FORWARD["centered"].replace("root = Sqrt (ve)", "root = Identity (ve)"),
        {},
        "no value is scale",
    ),
}


@pytest.mark.parametrize("case", NO_MATCH)
def test_what_is_no_batch_norm_stays(case):
    body, options, reason = NO_MATCH[case]
    text = graph(body, **options)
    proto, model, candidates = recognized(text)
    assert kinds(candidates) == {}
    assert any(reason in candidate.reason and candidate.name for candidate in candidates), candidates
    assert op_counts(model) == op_counts(ir.from_proto(proto))


NO_BACKWARD = {
    "no mean of dY": ("u = Sub (t, sn)", "u = Identity (t)"),
    "no projection": ("t = Sub (dy, through)", "t = Identity (dy)"),
    "a wrong count": ("pn = Div (p, count_)", "wrong = Constant <value = double {99.0}> () pn = Div (p, wrong)"),
    "inv_std once": ("rr = Mul (r, r)", "rr = Identity (r)"),
    "a sign": ("u = Sub (t, sn)", "u = Add (t, sn)"),
    "another value's sum": ("s = ReduceSum <keepdims = 1> (dy, axes)", "s = ReduceSum <keepdims = 1> (x, axes)"),
    "another scale": ("rs = Mul (r, scale)", "sq = Mul (r, ve) rs = Mul (sq, x)"),
}


@pytest.mark.parametrize("case", NO_BACKWARD)
def test_what_is_no_gradient_stays(case):
    right, wrong = NO_BACKWARD[case]
    assert right in BACKWARD["torch"]
    proto, model, candidates = recognized(graph(FORWARD["centered"] + BACKWARD["torch"].replace(right, wrong)))
    assert kinds(candidates) == {"forward": 1}
    require_same_numbers(proto, model)


def test_a_match_that_the_proof_rejects_is_refused(monkeypatch):
    monkeypatch.setattr("bngrad.passes.imports.decomposed.proof.Proof.difference", lambda *_: 0.25)
    proto, model, candidates = recognized(graph(FORWARD["centered"] + BACKWARD["torch"]))
    assert kinds(candidates) == {}
    assert any("it differs from the op by 2.5e-01 in float64" in candidate.reason for candidate in candidates)
    assert op_counts(model) == op_counts(ir.from_proto(proto))


def test_weights_of_equal_elements_stay_weights():
    """A scale of ones is a constant in a training graph, and a weight in a forward model."""
    text = graph(FORWARD["centered"])
    proto = onnx.parser.parse_model(text)
    ones = onnx.helper.make_tensor("scale", onnx.TensorProto.DOUBLE, [1, 3, 1, 1], [1.0] * 3)
    kept = [value for value in proto.graph.input if value.name != "scale"]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.append(ones)
    for keep in (False, True):
        model = ir.from_proto(proto)
        InferTypesPass()(model)
        ImportDecomposedPass(kept=[model.graph.initializers["scale"]] if keep else [])(model)
        assert kinds(candidates_of(model)) == {"forward": 1}
        assert bool(model.graph.initializers["scale"].uses()) == keep


def test_forward_only_leaves_gradients():
    _, model, candidates = recognized(graph(FORWARD["centered"] + BACKWARD["torch"]), forward_only=True)
    assert kinds(candidates) == {"forward": 1}
    assert op_counts(model)["BatchNormalizationGrad"] == 0


@pytest.mark.parametrize("recognize", [True, False])
def test_rewrite_can_leave_primitives(recognize):
    proto = onnx.parser.parse_model(graph(FORWARD["centered"] + BACKWARD["torch"]))
    if not recognize:
        with pytest.raises(pipeline.ModelError, match="no batch norm in training mode"):
            pipeline.rewrite(ir.from_proto(proto), recognize=False)
        return
    result = pipeline.rewrite(ir.from_proto(proto))
    assert result.rewritten == BOTH
    assert kinds(result.candidates) == {"forward": 1, "backward": 1}


MASKS = {
    "Where": "mask = Greater (z, zero) dy = Where (mask, dz, zero)",
    "Where of the complement": "mask = LessOrEqual (z, zero) dy = Where (mask, zero, dz)",
    "a product": "mask = Less (zero, z) f = Cast <to = 11> (mask) dy = Mul (f, dz)",
    "Not": "no = Greater (z, zero) mask = Not (no) dy = Where (mask, zero, dz)",
}


@pytest.mark.parametrize("mask", MASKS)
def test_a_relu_in_front_becomes_part_of_the_gradient(mask):
    body = FORWARD["centered"] + "z = Relu (y)" + MASKS[mask] + BACKWARD["torch"]
    text = graph(body, outputs="double[4,3,5,5] z, double[4,3,5,5] dx").replace(
        "double[4,3,5,5] dy", "double[4,3,5,5] dz"
    )
    result = pipeline.rewrite(ir.from_proto(onnx.parser.parse_model(text)))
    assert result.rewritten == {"BatchNormalizationTraining": 1, "BatchNormalizationReluGrad": 1}
    assert "Where" not in op_counts(result.model)


def test_the_example_of_the_documentation():
    before, after = (
        onnx.parser.parse_model(text)
        for text in re.findall(r"```onnx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    )
    model = ir.to_proto(pipeline.rewrite(ir.from_proto(before), functions=False).model)

    def shown(proto):
        return [(node.op_type, list(node.input), list(node.output)) for node in proto.graph.node]

    assert shown(model) == shown(after)
