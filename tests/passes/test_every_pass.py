"""Invariants of every pass of the package: a second run changes nothing, and ``modified`` is true to the facts.

The passes are found by walking the package: a new one needs a model here that it changes.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import walk_packages

import onnx_ir as ir
import pytest

from bngrad import passes
from bngrad.opset.functions import MIN_OPSET
from bngrad.passes.base import RewritePass
from bngrad.passes.pipeline import reads_attribute
from bngrad.passes.prepare.return_state import notes_of, state_of
from pass_models import content, header, internal_and_grad, model, proto

X, C, P = "float[N,3,4,4]", "float[3]", "float[1,3,1,1]"
NUMBERS = "bn_mode = 1, epsilon = 0.001"
STATISTICS = "com.microsoft.BatchNormInternal <training_mode = 1> (x, s, b, m, v)"

MODELS = {
    "ImportOrtPass": internal_and_grad(4),
    "ImportTensorflowPass": """g (float[2,4,4,3] dy, float[2,4,4,3] x, float[3] s, float[3] m, float[3] v)
        => (float[2,4,4,3] dx) { [f] dx, a, b, c, d = tf.FusedBatchNormGradV3 (dy, x, s, m, v, v) }""",
    "ImportOnnxPass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v) => ({X} y)
        {{ [f] y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, m, v) }}""",
    "ImportNgraphPass": f"""g ({C} s, {C} b, {X} x, {C} m, {C} v, {X} dy) => ({X} dx)
        {{ [f] dx, ds, db = BatchNormTrainingBackprop <eps = 0.001> (s, b, x, m, v, dy) }}""",
    "ImportMiopenBackwardPass": f"""g ({X} x, {X} dy, {P} s, {P} m, {P} v) => ({X} dx)
        {{ [f] dx, ds, db = miopen.miopenBatchNormalizationBackward <{NUMBERS}> (x, dy, s, m, v) }}""",
    "ImportMiopenForwardPass": f"""g ({X} x, {P} s, {P} b) => ({X} y)
        {{ [f] y = miopen.miopenBatchNormalizationForwardTraining
            <{NUMBERS}, expAvgFactor = 0.1> (x, s, b) }}""",
    "ImportMiopenActivationPass": f"""g ({X} x, {X} y, {X} dy, {P} s, {P} b, {P} m, {P} v) => ({X} dx)
        {{ [f] dx, ds, db = miopen.miopenFusionBatchNormActivBackward
            <bn_mode = 1, activ_mode = "RELU", activ_alpha = 0.0, activ_beta = 0.0, activ_gamma = 0.0>
            (dy, y, x, s, b, m, v) }}""",
    "ImportDirectmlPass": f"""g ({X} x, {X} dy, {P} m, {P} v, {P} s) => ({X} dx)
        {{ [f] dx, ds, db = DML_BATCH_NORMALIZATION_GRAD <Epsilon = 0.001> (x, dy, m, v, s) }}""",
    "ImportAtenPass": f"""g ({X} dy, {X} x, {C} s, {C} m, {C} v) => ({X} dx)
        {{ [f] dx, ds, db = aten.native_batch_norm_backward
            <train = 1, eps = 0.001, output_mask = [1, 1, 1]> (dy, x, s, , , m, v) }}""",
    "ImportDecomposedPass": f"""g ({X} x, {P} s, {P} b) => ({X} y) {{
        eps = Constant <value_float = 0.001> ()
        m = ReduceMean <axes = [0, 2, 3]> (x) c = Sub (x, m) q = Mul (c, c) v = ReduceMean <axes = [0, 2, 3]> (q)
        ve = Add (v, eps) r = Sqrt (ve) h = Div (c, r) u = Mul (h, s) [f] y = Add (u, b) }}""",
    "LowerTrainingPass": """g (float[2,3] dy, float[2,3] y) => (float[2,3] dx)
        { [a] du = com.microsoft.ReluGrad (dy, y) [b] dx = com.microsoft.TanhGrad (du, y) }""",
    "ConvGradOpPass": """g (float[N,2,4] dy, float[N,3,4] x, float[2,3,1] w) => (float[2,3,1] dw)
        { [a] dx, dw = com.microsoft.ConvGrad (dy, x, w) }""",
    "ConvTransposeGradOpPass": """g (float[N,3,4] dy, float[N,2,4] x, float[2,3,1] w) => (float[2,3,1] dw)
        { [a] dx, dw = com.microsoft.ConvTransposeGrad (dy, x, w) }""",
    "BatchedConvOpPass": """g (float[N,2,4] x, float[2,3,1] w) => (float[N,3,4] y)
        { v = Neg (w) [t] y = ConvTranspose (x, v) }""",
    "DepthwiseOpPass": """g (float[N,2,4] dy, float[N,2,4] x, float[2,1,1] w) => (float[2,1,1] dw)
        { [a] dx, dw = com.microsoft.ConvGrad <group = 2> (dy, x, w) }""",
    "MaxPoolGradOpPass": f"""g ({X} x, float[N,3,2,2] dy) => (float[N,3,2,2] y, {X} dx)
        {{ y, i = MaxPool <kernel_shape = [3, 3]> (x) [a] dx = MaxPoolGrad <kernel_shape = [3, 3]> (dy, i) }}""",
    "ChannelsLastPass": f"""g ({X} x, float[4,3,3,3] w) => (float[N,4,2,2] y)
        {{ [c] h = Conv (x, w) [r] y = Relu (h) }}""",
    "RecomputePass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v, {X} dz) => ({X} du) {{
        axes = Constant <value_ints = [0, 2, 3]> ()
        [f] y, nm, nv, sm, si = bngrad.BatchNormalizationTraining
            <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 0> (x, s, b, m, v, axes)
        [r] z = Relu (y)
        [AccumulateGrad_a] dy = Neg (dz)
        [AccumulateGrad_b] dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1> (dy, x, s, sm, si, axes)
        [AccumulateGrad_c] du = Mul (dx, z) }}""",
    "AllAxesPass": """g (float[2,3,4] x, int64[2] pads) => (float[4,3,N] y) {
        axes = Constant <value_ints = [-1]> () t = Transpose (x) [p] y = Pad (t, pads, , axes) }""",
    "ChainSumsPass": """g (float[N] a, float[N] b, float[N] c) => (float[N] y)
        { [AccumulateGrad_x_grad] y = Sum (a, b, c) }""",
    "FuseReluPass": f"""g ({X} dz, {X} z, {X} x, {C} s, {C} m, {C} v) => ({X} dx) {{
        axes = Constant <value_ints = [0, 2, 3]> ()
        [r] dy = com.microsoft.ReluGrad (dz, z)
        [f] dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1> (dy, x, s, m, v, axes) }}""",
    "SynchronizeBatchNormsPass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v, {X} dy) => ({X} y, {X} dx) {{
        axes = Constant <value_ints = [0, 2, 3]> ()
        [f] y, nm, nv, sm, si = bngrad.BatchNormalizationTraining
            <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 0> (x, s, b, m, v, axes)
        [b] dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1> (dy, x, s, sm, si, axes) }}""",
    "ReduceGradientsPass": """g (float[3,2] x, float[4,2] z) => (float loss, float[3,2] x_grad, float[4,2] z_grad)
        { [l] loss = ReduceSum <keepdims = 0> (x) [a] x_grad = Exp (x) [b] z_grad = Exp (z) }""",
    "FoldAffinePass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v, {P} p) => ({X} z) {{
        [f] y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, m, v)
        [a] a = Mul (y, p) [z] z = Add (a, p) }}""",
    "ImportTensorflowGradientsPass": """g (float[N,3] dy, float[N,3] y) => (float[N,3] dx)
        { [r] dx = tf.ReluGrad (dy, y) }""",
    "KeepDropoutPass": """g (float[N] x) => (float[N] y) {
        r = Constant <value_float = 0.5> () on = Constant <value = bool {1}> ()
        [n] s = Neg (x) [d] y = Dropout (s, r, on) }""",
    "BernoulliPass": """g (float[3] p) => (float[3] y) { [b] y = Bernoulli (p) }""",
    "MixedPrecisionPass": """g (float[N,3] x, float[3,4] w) => (float[N,4] z)
        { [p] y = MatMul (x, w) [r] z = Relu (y) }""",
    "SigmoidPass": """g (float[N] x) => (float[N] y) { [p] p = Sigmoid (x) [y] y = Log (p) }""",
    "StableLogsPass": """g (float[N] a, float[N] b) => (float[N] y)
        { [u] u = Exp (a) [v] v = Exp (b) [s] s = Add (u, v) [y] y = Log (s) }""",
    "MatrixVectorPass": """g (float[3,4] a, float[3] b) => (float[4] y)
        { [t] c = Transpose <perm = [1, 0]> (a) [m] y = MatMul (c, b) }""",
    "OrderByDepthPass": """g (float[N] x) => (float[N] y)
        { [a] u = Exp (x) [b] v = Exp (u) [c] w = Neg (x) [d] y = Mul (v, w) }""",
    "ReturnStatePass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v) => ({X} z) {{
        [f] y, fm, fv, f1, f2 = {STATISTICS}
        [h] z, hm, hv, h1, h2 = {STATISTICS} }}""",
    "ResolveAttributesPass": header(17, "f")
    + f"""g ({X} x, {C} s, {C} m, {C} v) => ({X} y) {{ y = f.F <mode = 1> (x, s, m, v) }}
        <domain: "f", opset_import: ["" : 17]> F <mode> (x, s, m, v) => (y)
        {{ y, nm, nv = BatchNormalization <training_mode: int = @mode> (x, s, s, m, v) }}""",
    "EmbedFunctionsPass": f"""g ({X} x, {C} s, {C} b, {C} m, {C} v) => ({X} y) {{
        axes = Constant <value_ints = [0, 2, 3]> ()
        [f] y, nm, nv, sm, sv = bngrad.BatchNormalizationTraining (x, s, b, m, v, axes) }}""",
    "InferTypesPass": "g (float[N,3] x) => (float[A,B] y) { t = Transpose (x) y = Exp (t) }",
    "RaiseOpsetPass": header(11) + "g (float[N,3] x) => (float[N,1] y) { y = ReduceSum <axes = [1]> (x) }",
}
"""A model that each pass changes; those without a header are of opset 17."""

NOTHING_TO_DO = f"""g ({X} x, {C} s, {C} b, {C} m, {C} v) => ({X} y) {{
    [f] u = BatchNormalization (x, s, b, m, v)
    [r] y = Relu (u) }}"""

ARGUMENTS = {
    "MixedPrecisionPass": (ir.DataType.FLOAT16,),
    "ResolveAttributesPass": (reads_attribute,),
    "ReduceGradientsPass": (("x_grad", "z_grad"), "loss"),
}
UNTYPED = ("InferTypesPass", "RaiseOpsetPass", "ResolveAttributesPass")
"""Those that run before types are inferred."""


def every_pass():
    for module in walk_packages(passes.__path__, f"{passes.__name__}."):
        import_module(module.name)
    classes, waiting = {}, [ir.passes.PassBase]
    while waiting:
        children = waiting.pop().__subclasses__()
        waiting += children
        classes |= {c.__name__: c for c in children if c.__module__.startswith("bngrad.") and not isabstract(c)}
    return classes


PASSES = every_pass()


def given(name, text):
    if not text.startswith("<"):
        text = header(17, "com.microsoft", "bngrad", "tf", "miopen", "aten") + text
    return ir.from_proto(proto(text)) if name in UNTYPED else model(text)


def run(name, before):
    """The model after the pass, and whether the pass reports that it changed it."""
    result = PASSES[name](*ARGUMENTS.get(name, ()))(before)
    return result.model, result.modified


def everything(of):
    return content(of), state_of(of), notes_of(of)


@pytest.mark.parametrize("name", PASSES)
def test_a_second_run_changes_nothing(name):
    assert name in MODELS, f"add a model that {name} changes"
    before = given(name, MODELS[name])
    original = everything(before)
    once, modified = run(name, before)
    assert modified
    after = everything(once)
    assert after != original
    twice, modified = run(name, once)
    assert everything(twice) == after
    assert not modified


@pytest.mark.parametrize("name", PASSES)
def test_a_model_without_anything_for_it_stays(name):
    before = given("", NOTHING_TO_DO)
    original = everything(before)
    after, modified = run(name, before)
    assert not modified
    assert everything(after) == original


def test_there_is_no_model_of_a_pass_that_is_gone():
    assert MODELS.keys() == PASSES.keys()


IMPORTS = [name for name, pass_class in PASSES.items() if issubclass(pass_class, RewritePass)]


@pytest.mark.parametrize("name", IMPORTS)
def test_an_opset_without_what_an_import_pass_writes(name):
    before = given(name, MODELS[name])
    before.graph.opset_imports[""] = PASSES[name].minimum - 1
    with pytest.raises(ir.passes.PreconditionError, match=f"{name} needs {PASSES[name].minimum}"):
        run(name, before)


def test_an_opset_without_what_the_functions_need():
    before = given("", MODELS["EmbedFunctionsPass"])
    before.graph.opset_imports[""] = MIN_OPSET - 1
    with pytest.raises(ir.passes.PreconditionError, match=f"the functions need {MIN_OPSET}"):
        run("EmbedFunctionsPass", before)


def test_nodes_that_are_not_sorted():
    before = given("", MODELS["OrderByDepthPass"])
    first, *others = before.graph
    before.graph.remove(others)
    before.graph.insert_before(first, others)
    with pytest.raises(ir.passes.PreconditionError, match=r"^b comes before a node whose result it reads$"):
        run("OrderByDepthPass", before)


UNDONE = {
    "BernoulliPass": "b is still a Bernoulli",
    "FoldAffinePass": "a still follows f",
    "FuseReluPass": "f can still be fused",
    "LowerTrainingPass": "a is still ReluGrad",
    "OrderByDepthPass": "the nodes are not in the order of their depth",
    "ReduceGradientsPass": "loss is not reduced",
    "RaiseOpsetPass": "the model imports ai.onnx 11; expected 15",
    "SynchronizeBatchNormsPass": "f is still BatchNormalizationTraining",
    "ResolveAttributesPass": "the function F still has attributes that a pass reads",
    "EmbedFunctionsPass": "the model does not import bngrad|bngrad.BatchNormalizationTraining has no function",
}
"""The message of a pass's postcondition about the model that it changes."""


@pytest.mark.parametrize("name", UNDONE)
def test_a_postcondition_tells_what_is_left(name):
    with pytest.raises(ir.passes.PostconditionError, match=rf"^({UNDONE[name]})$"):
        PASSES[name](*ARGUMENTS.get(name, ())).ensures(given(name, MODELS[name]))


def test_raising_says_that_a_name_of_the_default_domain_changed():
    before = given("RaiseOpsetPass", NOTHING_TO_DO)
    before.graph.opset_imports["ai.onnx"] = before.graph.opset_imports.pop("")
    after, modified = run("RaiseOpsetPass", before)
    assert modified
    assert "" in after.opset_imports
    assert not run("RaiseOpsetPass", after)[1]


def test_no_state_is_returned_from_a_function():
    text = f"""g ({X} x, {C} s, {C} b, {C} m, {C} v) => ({X} y) {{ y, n = f.F (x, s, b, m, v) }}
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        F (x, s, b, m, v) => (y, fm) {{ y, fm, fv, f1, f2 = {STATISTICS} }}"""
    before = given("ReturnStatePass", header(17, "f", "com.microsoft") + text)
    assert not run("ReturnStatePass", before)[1]
    assert state_of(before) == {}
    assert len(notes_of(before)) == 1


def test_a_note_is_added_once():
    before = given("ReturnStatePass", MODELS["ImportOnnxPass"])
    for _ in range(2):
        assert not run("ReturnStatePass", before)[1]
    assert len(notes_of(before)) == 1
