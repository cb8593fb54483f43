"""Properties of all of MIOpen's nodes: refusals, places of a node, and names that are kept."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.miopen.activation import ImportMiopenActivationPass
from bngrad.passes.imports.miopen.backward import ImportMiopenBackwardPass
from bngrad.passes.imports.miopen.forward import ImportMiopenForwardPass
from dialects import rewritten, run, worst_error
from miopen_reference import backward, content, parameter
from pass_models import all_nodes, header, model, ops

PASSES = (ImportMiopenBackwardPass, ImportMiopenForwardPass, ImportMiopenActivationPass)
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "dialects" / "miopen.md"


def parsed(text):
    return model(text if text.lstrip().startswith("<") else header(17, "miopen") + text)


def imported(result):
    """Returns whether any pass changed a model."""
    modified = [import_pass()(result).modified for import_pass in PASSES]
    return any(modified)


# ---- what is refused ----

ARGUMENTS = {
    "x": "float[4,3,2,5]",
    "dy": "float[4,3,2,5]",
    "y": "float[4,3,2,5]",
    "scale": "float[1,3,1,1]",
    "bias": "float[1,3,1,1]",
    "mean": "float[1,3,1,1]",
    "inv": "float[1,3,1,1]",
    "old": "float[1,3,1,1]",
}
NODES = {
    "backward": ("miopenBatchNormalizationBackward", "dx, ds, db", "x, dy, scale, mean, inv", {}),
    "training": (
        "miopenBatchNormalizationForwardTraining",
        "out, rm, rv, sm, si",
        "x, scale, bias, mean, inv",
        {"epsilon": "1e-5", "expAvgFactor": "0.5"},
    ),
    "inference": (
        "miopenBatchNormalizationForwardInference",
        "out",
        "x, scale, bias, mean, inv",
        {"epsilon": "1e-5"},
    ),
    "fused": (
        "miopenFusionBatchNormActivBackward",
        "dx, ds, db",
        "dy, x, y, scale, bias, mean, inv",
        {"activ_mode": '"LOGISTIC"'},
    ),
}


def text(kind, *, inputs=None, outputs=None, without=(), graph_outputs=None, types=None, **attributes):
    """One node in ONNX text, with some of it changed."""
    op_type, its_outputs, its_inputs, its_attributes = NODES[kind]
    outputs = outputs or its_outputs
    merged = {"bn_mode": '"spatial"'} | its_attributes | attributes
    listed = ", ".join(f"{name} = {value}" for name, value in merged.items() if name not in without)
    arguments = ", ".join(f"{of} {name}" for name, of in (ARGUMENTS | (types or {})).items())
    results = [f"float[a{i},b{i},c{i},d{i}] {name}" for i, name in enumerate(graph_outputs or outputs.split(", "))]
    return f"""g ({arguments}) => ({", ".join(filter(None, results))}) {{
        [bn] {outputs} = miopen.{op_type}<{listed}>({inputs or its_inputs}) }}"""


LIKE_X = "expected [4, 3, 2, 5] like x"
C11 = "expected [1, 3, 1, 1] or [3]"
REFUSED = {
    # What it has.
    "no-bn_mode": (text("inference", without=["bn_mode"]), "it has no attribute bn_mode; expected one"),
    "bn_mode": (
        text("backward", bn_mode='"batch"'),
        "its bn_mode is 'batch'; expected 'spatial' (or 1) or 'per_activation' (or 0)",
    ),
    "bn_mode-2": (text("training", bn_mode="2"), "its bn_mode is 2"),
    "bn_mode-kind": (text("backward", bn_mode="1.0"), "its bn_mode is of type float; expected string or int"),
    "layout": (
        text("backward", layout='"CHWN"'),
        "it has layout CHWN; expected one of NCHW, NHWC, NCDHW, NDHWC",
    ),
    "unknown-attribute": (text("backward", eps="1.0"), "it has an attribute eps; expected only bn_mode, layout"),
    "alpha-of-a-fused-node": (text("fused", alpha="1.0"), "it has an attribute alpha; expected only bn_mode"),
    "epsilon-kind": (text("backward", epsilon='"small"'), "its epsilon is of type string; expected float or int"),
    "negative-epsilon": (text("training", epsilon="-0.5"), "it has epsilon -0.5; expected 0 or more"),
    "no-epsilon-in-training": (text("training", without=["epsilon"]), "it has no attribute epsilon"),
    "no-epsilon-in-inference": (text("inference", without=["epsilon"]), "it has no attribute epsilon"),
    "no-epsilon-and-no-statistics": (
        text("backward", inputs="x, dy, scale"),
        "it has no attribute epsilon; expected one, because MIOpen has no default",
    ),
    "no-epsilon-and-one-statistic": (
        text("backward", inputs="x, dy, scale, mean"),
        "it has no attribute epsilon",
    ),
    "no-factor": (text("training", without=["expAvgFactor"]), "it has no attribute expAvgFactor"),
    "two-factors": (
        text("training", exponentialAverageFactor="0.5"),
        "it has both expAvgFactor and exponentialAverageFactor; expected one of them",
    ),
    "factor": (text("training", expAvgFactor="1.5"), "it has expAvgFactor 1.5; expected 0 to 1"),
    "no-input": (text("backward", inputs="x, dy"), "it has no input bnScale; expected at least x, dy, bnScale"),
    "input-left-out": (text("training", inputs="x, '', bias"), "it has no input bnScale; expected at least"),
    "too-many-inputs": (
        text("inference", inputs="x, scale, bias, mean, inv, y, y"),
        "it has 7 inputs; expected at most 6: x, bnScale, bnBias, estimatedMean, estimatedVariance, y",
    ),
    "too-many-outputs": (
        text("inference", outputs="out, more"),
        "it has 2 outputs; expected at most 1: y",
    ),
    "fused-without-statistics": (
        text("fused", inputs="dy, x, y, scale, bias, mean"),
        "it has no input savedInvVariance; expected at least dy, x, bnScale, bnBias, savedMean, savedInv",
    ),
    # Blending.
    "no-dx-to-blend": (
        text("backward", betaDataDiff="0.5"),
        "it has betaDataDiff 0.5 and no input dx; expected old contents to blend in",
    ),
    "no-dscale-to-blend": (
        text("backward", betaParamDiff="1"),
        "it has betaParamDiff 1 and no input resultBnScaleDiff",
    ),
    "no-dbias-to-blend": (
        text("backward", inputs="x, dy, scale, mean, inv, '', old", betaParamDiff="1.0"),
        "it has betaParamDiff 1 and no input resultBnBiasDiff",
    ),
    "no-y-to-blend": (text("training", beta="1.0"), "it has beta 1 and no input y; expected old contents"),
    "no-y-to-blend-in-inference": (text("inference", beta="1.0"), "it has beta 1 and no input y"),
    # Running statistics.
    "no-running-statistics": (
        text("training", inputs="x, scale, bias"),
        (
            "its output resultRunningMean is used; expected both inputs resultRunningMean and "
            "resultRunningVariance to update"
        ),
    ),
    "one-running-statistic": (
        text("training", inputs="x, scale, bias, mean", graph_outputs=["out", "rv"]),
        "its output resultRunningVariance is used; expected both inputs",
    ),
    # Types.
    "integers": (text("backward", types={"x": "int32[4,3,2,5]"}), "its input 'x' is int32; expected one of float"),
    "integer-scale": (
        text("backward", types={"scale": "int32[3]"}),
        "its input 'scale' is int32; expected float",
    ),
    "double-scale-of-float": (
        text("backward", types={"scale": "double[3]"}),
        "its input 'scale' is double; expected float",
    ),
    "half-statistics-of-float": (
        text("training", types={"mean": "float16[3]"}),
        "its input 'mean' is float16; expected float",
    ),
    "bfloat16-scale-of-float16": (
        text("inference", types={"x": "float16[4,3,2,5]", "scale": "bfloat16[3]"}),
        "its input 'scale' is bfloat16; expected float or float16",
    ),
    "old-dx": (
        text("backward", inputs="x, dy, scale, mean, inv, y", types={"y": "float16[4,3,2,5]"}),
        "its input 'y' is float16; expected float like dy",
    ),
    "dx-not-as-dy": (
        text("backward", types={"dy": "float16[4,3,2,5]"}),
        "its output 'dx' is float; expected float16 like dy",
    ),
    "y-not-as-x": (
        text("training", types={"x": "float16[4,3,2,5]"}),
        "its output 'out' is float; expected float16 like x",
    ),
    "fused-dx-not-as-dy": (
        text("fused", types={"dy": "float16[4,3,2,5]"}),
        "its output 'dx' is float; expected float16 like dy",
    ),
    # Shapes.
    "rank-3": (
        text("backward", types=dict.fromkeys(("x", "dy"), "float[4,3,10]")),
        "its x has rank 3; expected 4 (NCHW) or 5 (NCDHW)",
    ),
    "rank-6": (text("inference", types={"x": "float[1,2,3,4,5,6]"}), "its x has rank 6; expected 4"),
    "rank-4-as-NCDHW": (
        text("backward", layout='"NCDHW"'),
        "its input 'x' has shape [4, 3, 2, 5]; expected 5 dimensions",
    ),
    "dy-shape": (
        text("backward", types={"dy": "float[4,3,5,2]"}),
        f"its input 'dy' has shape [4, 3, 5, 2]; {LIKE_X}",
    ),
    "dy-rank": (text("backward", types={"dy": "float[4,3,10]"}), f"its input 'dy' has shape [4, 3, 10]; {LIKE_X}"),
    "y-shape": (
        text("fused", types={"y": "float[N,3,2,6]"}),
        "its input 'y' has shape [?, 3, 2, 6]; expected [4, 3, 2, 5] like x",
    ),
    "scale-channels": (
        text("backward", types={"scale": "float[1,4,1,1]"}),
        f"its input 'scale' has shape [1, 4, 1, 1]; {C11}",
    ),
    "scale-flat": (text("backward", types={"scale": "float[4]"}), f"its input 'scale' has shape [4]; {C11}"),
    "scale-per-activation": (
        text("backward", types={"scale": "float[1,3,2,5]"}),
        f"its input 'scale' has shape [1, 3, 2, 5]; {C11}",
    ),
    "statistics-shape": (text("backward", types={"inv": "float[2]"}), f"its input 'inv' has shape [2]; {C11}"),
    "running-shape": (text("training", types={"mean": "float[2]"}), f"its input 'mean' has shape [2]; {C11}"),
    "old-shape": (
        text("backward", inputs="x, dy, scale, mean, inv, '', old", types={"old": "float[2]"}),
        f"its input 'old' has shape [2]; {C11}",
    ),
    "spatial-scale-per-activation": (
        text("training", bn_mode='"per_activation"'),
        "its input 'scale' has shape [1, 3, 1, 1]; expected [1, 3, 2, 5] or [3, 2, 5]",
    ),
    "scale-of-another-layout": (
        text("training", layout='"NHWC"'),
        "its input 'scale' has shape [1, 3, 1, 1]; expected [1, 5, 1, 1] or [1, 1, 1, 5] or [5]",
    ),
    "symbolic-dx-of-too-few-dimensions": (
        text("backward").replace("float[a0,b0,c0,d0] dx", "float[a,b,c] dx"),
        "its output 'dx' has shape [?, ?, ?]; expected [4, 3, 2, 5] like x",
    ),
    # Activations.
    "no-activ_mode": (text("fused", without=["activ_mode"]), "it has no attribute activ_mode"),
    "activ_mode": (
        text("fused", activ_mode='"GELU"'),
        (
            "its activ_mode 'GELU' does not exist; expected one of PASTHRU, LOGISTIC, TANH, RELU, SOFTRELU, ABS, "
            "POWER, CLIPPEDRELU, LEAKYRELU, ELU, or 0 to 9"
        ),
    ),
    "activ_mode-10": (text("fused", activ_mode="10"), "its activ_mode 10 does not exist"),
    "activ_mode-kind": (
        text("fused", activ_mode="1.5"),
        "its activ_mode is of type float; expected string or int",
    ),
    "no-activ_alpha": (text("fused", activ_mode='"ELU"'), "it has no attribute activ_alpha; expected one"),
    "no-activ_gamma": (
        text("fused", activ_mode='"POWER"', activ_alpha="1.0", activ_beta="1.0"),
        "it has no attribute activ_gamma",
    ),
}

IN_A_FUNCTION = """g (float[4,3,2,5] x, float[3] p) => (float[4,3,2,5] y) {{ y = f.Block{call}(x, p) }}
<domain: "f", opset_import: ["" : 17, "miopen" : 1]>
Block {declared}(x, p) => (y) {{ [bn] {node} }}"""
REFUSED_IN_A_FUNCTION = {
    "an-attribute-of-the-function": (
        IN_A_FUNCTION.format(
            call="<m = 1>",
            declared="<m> ",
            node="y = miopen.miopenBatchNormalizationForwardTraining<bn_mode: int = @m, epsilon = 1.0>(x, p, p)",
        ),
        "its bn_mode refers to a function attribute; expected a value: inline the function",
    ),
    "an-activation-of-unknown-type": (
        IN_A_FUNCTION.format(
            call="",
            declared="",
            node="y = miopen.miopenFusionBatchNormActivBackward<bn_mode = 1, activ_mode = 5>(x, x, x, p, p, p, p)",
        ),
        "the type of its input 'x' is unknown; add type information to the model, or inline the function",
    ),
    "running-statistics-that-the-function-hands-out": (
        IN_A_FUNCTION.format(
            call="",
            declared="",
            node="v, y = miopen.miopenBatchNormalizationForwardTraining<bn_mode = 1, epsilon = 1.0>(x, p, p)",
        ),
        "its output resultRunningMean is used; expected both inputs",
    ),
    "an-inference-of-unknown-type": (
        IN_A_FUNCTION.format(
            call="",
            declared="",
            node="y = miopen.miopenBatchNormalizationForwardInference<bn_mode = 1, epsilon = 1.0>(x, p, p, p, p)",
        ),
        "the type of its input 'x' is unknown",
    ),
}
ALL_REFUSED = REFUSED | {
    name: (header(17, "miopen", "f") + of, reason) for name, (of, reason) in REFUSED_IN_A_FUNCTION.items()
}


@pytest.mark.parametrize("case", ALL_REFUSED)
def test_a_refusal_has_a_reason_and_changes_nothing(case):
    of, reason = ALL_REFUSED[case]
    result = parsed(of.replace("''", ""))
    before = content(result)
    with pytest.raises(UnsupportedNodeError) as error:
        imported(result)
    assert "node 'bn'" in str(error.value)
    assert f"cannot be rewritten: {reason}" in str(error.value)
    assert content(result) == before


def test_a_number_that_is_not_finite():
    result = parsed(text("backward", alphaDataDiff="1.0"))
    result.graph[0].attributes["alphaDataDiff"] = ir.AttrFloat32("alphaDataDiff", float("nan"))
    with pytest.raises(UnsupportedNodeError, match="it has alphaDataDiff nan; expected a finite number"):
        imported(result)


def test_one_refusal_leaves_the_nodes_before_it_as_they_were():
    good, bad = (
        text("backward"),
        "[bad] e, f, h = miopen.miopenBatchNormalizationBackward(x, dy, scale, mean, inv)",
    )
    result = parsed(good.rstrip(" }") + f"\n{bad} }}")
    before = content(result)
    with pytest.raises(UnsupportedNodeError, match="node 'bad'"):
        imported(result)
    assert content(result) == before


@pytest.mark.parametrize("kind", NODES)
def test_what_the_refusals_start_from_is_accepted(kind):
    result = parsed(text(kind))
    assert imported(result)
    once = content(result)
    assert not imported(result)
    assert content(result) == once


UNTOUCHED = {
    "nothing": "g (float[2] x) => (float[2] y) { y = Neg(x) }",
    "another-op": "g (float[2] x) => (float[2] y) { y = miopen.miopenConvolutionForward(x) }",
    "onnx": """g (float[2,3,4,5] x, float[3] p) => (float[2,3,4,5] y, float[3] m, float[3] v) {
        y, m, v = BatchNormalization<training_mode = 1>(x, p, p, p, p) }""",
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_is_not_miopens_is_left_alone(case):
    result = parsed(UNTOUCHED[case])
    before = content(result)
    assert not imported(result)
    assert content(result) == before


# ---- where a node may be, and what is kept ----


@pytest.mark.parametrize("kind", NODES)
def test_names_and_texts_survive(kind):
    proto = onnx.parser.parse_model(header(17, "miopen") + text(kind))
    node = proto.graph.node[0]
    node.doc_string = "about it"
    entry = node.metadata_props.add()
    entry.key, entry.value = "from", "MIOpen"
    result = ir.from_proto(proto)
    imported(result)
    (successor,) = (n for n in result.graph if n.name == "bn")
    assert (successor.doc_string, dict(successor.metadata_props)) == ("about it", {"from": "MIOpen"})
    assert [v.name for v in result.graph.outputs] == [v.name for v in proto.graph.output]
    names = [v.name for n in all_nodes(result) for v in n.outputs]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("domain", ["", "amd", "com.amd.miopen"])
def test_any_domain(domain):
    named = text("backward").replace("miopen.miopen", f"{domain}.miopen" if domain else "miopen")
    result = parsed((header(17, domain) if domain else header(17)) + named)
    assert imported(result)


FEEDS = {
    "x": (4, 3, 2, 5),
    "dy": (4, 3, 2, 5),
    "scale": (1, 3, 1, 1),
    "mean": (1, 3, 1, 1),
    "inv": (1, 3, 1, 1),
}


def drawn(rng):
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in FEEDS.items()}
    want = backward(*(feeds[name] for name in FEEDS), "NCHW", "spatial")
    return feeds, dict(zip(("dx", "ds", "db"), want, strict=True))


def expect(got, want):
    assert set(got) == set(want)
    assert all(worst_error(got[name], value) <= 1e-6 for name, value in want.items())


FUNCTION = """g (float[4,3,2,5] x, float[4,3,2,5] dy, float[1,3,1,1] scale, float[1,3,1,1] mean,
       float[1,3,1,1] inv) => (float[4,3,2,5] dx, float[1,3,1,1] ds, float[1,3,1,1] db) {{
    dx, ds, db = f.Block(x, dy, scale, mean, inv)
}}
<domain: "f", opset_import: ["" : 17, "miopen" : 1]>
Block (x, dy, scale, mean, inv) => (dx, ds, db) {{
    dx, ds, db = miopen.miopenBatchNormalizationBackward<{attributes}>(x, dy, scale, mean, inv, dy, scale, scale)
}}"""


def test_in_a_function(rng):
    """Neither types nor ranks nor shapes are known there."""
    feeds, want = drawn(rng)
    result = parsed(header(17, "miopen", "f") + FUNCTION.format(attributes='bn_mode = "spatial"'))
    expect(run(rewritten(result, ImportMiopenBackwardPass()), feeds), want)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_an_empty_batch_in_a_function(mode, rng):
    feeds, _ = drawn(rng)
    feeds |= {name: feeds[name][:0] for name in ("x", "dy")}
    of = FUNCTION.format(attributes=f'bn_mode = "{mode}"').replace("[4,3,2,5]", "[0,3,2,5]")
    if mode == "per_activation":
        feeds |= {name: rng.standard_normal((1, 3, 2, 5)).astype(np.float32) for name in ("scale", "mean", "inv")}
        of = of.replace("[1,3,1,1]", "[1,3,2,5]")
    got = run(rewritten(parsed(header(17, "miopen", "f") + of), ImportMiopenBackwardPass()), feeds)
    assert got["dx"].shape == (0, 3, 2, 5)
    assert got["ds"].shape == feeds["scale"].shape
    assert not got["ds"].any()


def test_blending_in_a_function(rng):
    feeds, want = drawn(rng)
    attributes = "bn_mode = 1, betaDataDiff = 0.5, alphaParamDiff = 2.0, betaParamDiff = -1.0"
    result = parsed(header(17, "miopen", "f") + FUNCTION.format(attributes=attributes))
    want = {
        "dx": want["dx"] + 0.5 * feeds["dy"],
        **{name: 2 * want[name] - feeds["scale"] for name in ("ds", "db")},
    }
    expect(run(rewritten(result, ImportMiopenBackwardPass()), feeds), want)


def test_per_activation_in_a_function(rng):
    feeds, _ = drawn(rng)
    feeds |= {name: rng.standard_normal((1, 3, 2, 5)).astype(np.float32) for name in ("scale", "mean", "inv")}
    of = FUNCTION.format(attributes='bn_mode = "per_activation"').replace("[1,3,1,1]", "[1,3,2,5]")
    got = run(rewritten(parsed(header(17, "miopen", "f") + of), ImportMiopenBackwardPass()), feeds)
    want = backward(*(feeds[name] for name in FEEDS), "NCHW", "per_activation")
    expect(got, dict(zip(("dx", "ds", "db"), want, strict=True)))


def test_training_in_a_function(rng):
    """Forward, in its own words: running statistics in double are not known to be, but float ones are right."""
    of = """g (float[4,3,2,5] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[4,3,2,5] y, float[3] n) {
        y, n = f.Block(x, s, b, m, v) }
    <domain: "f", opset_import: ["" : 17, "miopen" : 1]>
    Block (x, s, b, m, v) => (y, n) {
        y, n = miopen.miopenBatchNormalizationForwardTraining
            <bn_mode = 1, epsilon = 0.5, expAvgFactor = 0.25>(x, s, b, m, v) }"""
    feeds = {"x": rng.standard_normal((4, 3, 2, 5)).astype(np.float32)}
    feeds |= {name: rng.standard_normal(3).astype(np.float32) for name in "sbmv"}
    got = run(rewritten(parsed(header(17, "miopen", "f") + of), ImportMiopenForwardPass()), feeds)
    x = feeds["x"].astype(np.float64)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    s, b, m, v = (parameter(p, "NCHW", "spatial")[..., None] for p in (feeds["s"], feeds["b"], mean, variance))
    want = {"y": s * (x - m) / np.sqrt(v + 0.5) + b, "n": 0.75 * feeds["m"] + 0.25 * mean}
    expect(got, want)


BRANCH = """g (bool c, float[4,3,2,5] x, float[4,3,2,5] dy, float[1,3,1,1] scale, float[1,3,1,1] mean,
       float[1,3,1,1] inv) => (float[4,3,2,5] dx) {
    dx = If(c) <
        then_branch = t () => (float[4,3,2,5] u) {
            u = miopen.miopenBatchNormalizationBackward<bn_mode = 1>(x, dy, scale, mean, inv) },
        else_branch = e () => (float[4,3,2,5] w) { w = Identity(dy) }>
}"""


def test_in_a_subgraph(rng):
    feeds, want = drawn(rng)
    result = rewritten(parsed(BRANCH), ImportMiopenBackwardPass())
    assert "bngrad.BatchNormalizationGrad" in ops(result)
    expect(run(result, feeds | {"c": np.array(True)}), {"dx": want["dx"]})
    expect(run(result, feeds | {"c": np.array(False)}), {"dx": feeds["dy"]})


SYMBOLIC = """g (float[N,C,H,W] x, float[N,C,H,W] dy, float[1,C,1,1] scale, float[a,b,c,d] mean, float[e] inv)
    => (float[N,C,H,W] dx, float[1,C,1,1] ds, float[1,C,1,1] db) {{
    dx, ds, db = miopen.miopenBatchNormalizationBackward<bn_mode = 1{layout}>(x, dy, scale, mean, inv) }}"""


@pytest.mark.parametrize("layout", ["", ', layout = "NHWC"'])
def test_symbolic_extents(layout, rng):
    feeds, want = drawn(rng)
    feeds["inv"] = feeds["inv"].reshape(3)
    if layout:
        feeds |= {name: np.moveaxis(feeds[name], 1, -1) for name in ("x", "dy")}
        want["dx"] = np.moveaxis(want["dx"], 1, -1)
    result = rewritten(parsed(SYMBOLIC.format(layout=layout)), ImportMiopenBackwardPass())
    expect(run(result, feeds), want)


def test_the_layout_tells_a_rank_that_nothing_else_does(rng):
    feeds, want = drawn(rng)
    feeds |= {name: np.moveaxis(feeds[name], 1, -1) for name in ("x", "dy")}
    want["dx"] = np.moveaxis(want["dx"], 1, -1)
    of = FUNCTION.format(attributes='bn_mode = 1, layout = "NHWC"').replace("[4,3,2,5]", "[4,2,5,3]")
    expect(run(rewritten(parsed(header(17, "miopen", "f") + of), ImportMiopenBackwardPass()), feeds), want)


# ---- the documentation ----


def examples():
    return re.findall(r"```onnx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(2))
def test_the_examples_of_the_documentation(index, rng):
    original = examples()[index]
    result = parsed(original)
    for import_pass in PASSES:
        result = rewritten(result, import_pass())
    assert not [n for n in all_nodes(result) if n.domain == "miopen"]
    feeds = {v.name: rng.uniform(0.5, 2, tuple(v.shape.numpy())).astype(np.float32) for v in result.graph.inputs}
    got = run(result, feeds)
    assert set(got) == {v.name for v in result.graph.outputs}
    assert all(np.isfinite(array).all() for array in got.values())


def test_there_is_no_other_example():
    assert len(examples()) == 2
