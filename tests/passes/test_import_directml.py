"""DirectML's batch-norm gradient -> bngrad's: every set of summed dimensions, wherever the node is."""

from __future__ import annotations

import itertools
import pathlib
import re

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.directml import ImportDirectmlPass
from dialects import node_model, rewritten, run, worst_error
from directml_nodes import (
    ADVICE,
    GIVEN,
    INPUTS,
    NODE,
    OP,
    OUTPUTS,
    X,
    check,
    check_node,
    draw,
    gradients,
    refused,
)
from ort_values import TOLERANCES
from pairwise import pairwise
from pass_models import attributes_of, axes_of, content, find, header, model, ops, proto

ROOT = pathlib.Path(__file__).parents[2]


# ---- what is matched, and what it computes ----

SUBSETS = [subset for k in range(5) for subset in itertools.combinations(range(4), k)]


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("summed", SUBSETS, ids=str)
def test_any_subset_of_dimensions_is_summed_over(summed, dtype, rng):
    result = check_node((2, 3, 4, 5), summed, dtype, rng)
    node = find(result, "BatchNormalizationGrad")
    assert axes_of(node) == list(summed)
    assert attributes_of(node) == {"training_mode": 0}


@pairwise(rank=range(1, 9), dtype=["float", "float16"], summed=["none", "first", "all-but-1", "all"])
def test_every_dimension_count(rank, dtype, summed, rng):
    shape = (4, 3, 2, 3, 2, 2, 1, 2)[:rank]
    sets = {"none": (), "first": (0,), "all-but-1": (d for d in range(rank) if d != 1), "all": range(rank)}
    check_node(shape, tuple(sets[summed]), dtype, rng)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    dims=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8),
    dtype=st.sampled_from(["float", "float16"]),
    epsilon=st.sampled_from([0.0, 1e-5, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_any_subset(dims, dtype, epsilon, seed):
    summed = tuple(d for d, (_, is_summed) in enumerate(dims) if is_summed)
    inputs = draw([extent for extent, _ in dims], summed, dtype, np.random.default_rng(seed))
    original = node_model(OP, inputs, OUTPUTS, Epsilon=epsilon)
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=epsilon), strict=True))
    # A sum that cancels leaves the rounding of terms of about 1.
    check(original, inputs, want, 2 * TOLERANCES[dtype], terms=1.0)


def test_a_dimension_of_extent_1_in_input_and_mean_is_summed_over_and_changes_nothing(rng):
    result = check_node((1, 3, 1, 5), (0, 2), "float", rng)
    assert axes_of(find(result, "BatchNormalizationGrad")) == [0, 2]
    inputs = draw((1, 3, 1, 5), (), "float", rng)
    assert inputs["Mean"].shape == inputs["Input"].shape
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-3), strict=True))
    result = check(node_model(OP, inputs, OUTPUTS, Epsilon=1e-3), inputs, want, 1e-6)
    assert axes_of(find(result, "BatchNormalizationGrad")) == [0, 2]


def test_nothing_to_sum_over_needs_no_squeeze(rng):
    result = check_node((2, 3), (), "float", rng)
    assert not {"Squeeze", "Unsqueeze"} & set(ops(result))


def test_the_statistics_are_constants(rng):
    """OutputGradient is not that of training: a constant gradient of the output comes through."""
    inputs = draw((8, 3, 5), (0, 2), "float", rng)
    inputs["InputGradient"][:] = 2
    got = run(rewritten(node_model(OP, inputs, OUTPUTS, Epsilon=1e-3), ImportDirectmlPass()), inputs)
    frozen = np.broadcast_to(2 * inputs["Scale"] / np.sqrt(inputs["Variance"] + 1e-3), (8, 3, 5))
    np.testing.assert_allclose(got["OutputGradient"], frozen, rtol=1e-6)


def test_it_is_the_gradient_with_frozen_statistics(rng):
    """By central differences of the loss sum(Y * InputGradient), Mean and Variance held."""
    inputs, step = draw((3, 2, 4), (0, 2), "float", rng), 1e-3
    got = run(rewritten(node_model(OP, inputs, OUTPUTS, Epsilon=1e-3), ImportDirectmlPass()), inputs)
    held = {name: value.astype(np.float64) for name, value in inputs.items()} | {"Bias": np.zeros((1, 2, 1))}

    def loss(name, index, by):
        moved = {key: value.copy() for key, value in held.items()}
        moved[name].flat[index] += by
        xhat = (moved["Input"] - moved["Mean"]) / np.sqrt(moved["Variance"] + np.float64(np.float32(1e-3)))
        return np.sum((xhat * moved["Scale"] + moved["Bias"]) * moved["InputGradient"])

    for name, output in (("Input", 0), ("Scale", 1), ("Bias", 2)):
        slopes = [(loss(name, i, step) - loss(name, i, -step)) / (2 * step) for i in range(held[name].size)]
        np.testing.assert_allclose(got[OUTPUTS[output]].ravel(), slopes, rtol=1e-5, atol=1e-5)


def test_statistics_of_float16_are_computed_in_float(rng):
    """A variance of 1e-7 is 1.2e-7 in float16; 1 / sqrt of it has all its digits in float."""
    inputs = draw((4, 3), (0,), "float16", rng)
    inputs["Variance"][:] = 1e-7
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-7), strict=True))
    check(node_model(OP, inputs, OUTPUTS, Epsilon=1e-7), inputs, want, TOLERANCES["float16"])


NAMES = {
    "desc": ("DML_BATCH_NORMALIZATION_GRAD", ""),
    "operator-type": ("DML_OPERATOR_BATCH_NORMALIZATION_GRAD", ""),
    "desc-in-a-domain": ("DML_BATCH_NORMALIZATION_GRAD", "directml"),
    "operator-type-in-a-domain": ("DML_OPERATOR_BATCH_NORMALIZATION_GRAD", "com.microsoft.dml"),
    "onnx-name": ("BatchNormalizationGrad", "com.microsoft.dml"),
}


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("spelled", ["Epsilon", "epsilon"])
def test_names(case, spelled, rng):
    op_type, domain = NAMES[case]
    check_node((4, 3, 2), (0, 2), "float", rng, op_type=op_type, domain=domain, spelled=spelled)


@pytest.mark.parametrize("epsilon", [0, 1])
def test_an_integer_epsilon(epsilon, rng):
    check_node((4, 3, 2), (0, 2), "float", rng, epsilon=epsilon)


def test_epsilon_matters(rng):
    """A gradient that took the variance for inv_std, or forgot epsilon, would not pass here."""
    inputs = draw((4, 3, 2), (0, 2), "float", rng)
    near, far = (gradients(**inputs, Epsilon=epsilon)[0] for epsilon in (1e-3, 0.5))
    assert worst_error(near, far) > 0.1


OTHERS = {
    "ort": ("BatchNormalizationGrad", "com.microsoft"),
    "another-domain": ("BatchNormalizationGrad", "directml"),
    "of-training": ("DML_BATCH_NORMALIZATION_TRAINING_GRAD", ""),
    "forward": ("DML_BATCH_NORMALIZATION", ""),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_ours_is_left_alone(case):
    op_type, domain = OTHERS[case]
    original = node_model(op_type, {"x": np.ones(1, np.float32)}, ["y"], domain=domain)
    before = content(original)
    assert not ImportDirectmlPass()(original).modified
    assert content(original) == before


# ---- where the node is, and what is kept ----


def test_in_a_function_that_says_the_shapes(rng):
    """A function's inputs have no types; the values in it may, from IR version 10 on."""
    function = proto(f"""{header(17, "f", ir_version=10)}
        g ({X} Input, {X} InputGradient) => (dx, dscale, dbias) {{
            dx, dscale, dbias = f.Block(Input, InputGradient) }}
        <domain: "f", opset_import: ["" : 17]>
        Block (Input, InputGradient) => (a, b, d) {{
            Flat = Constant<value_floats = [0.5, 1.0, 2.0]>()
            axes = Constant<value_ints = [0, 2, 3]>()
            Mean = Unsqueeze(Flat, axes)
            a, b, d = {NODE.replace("Variance", "Mean").replace("Scale", "Mean")} }}""")
    mean = onnx.helper.make_tensor_value_info("Mean", onnx.TensorProto.FLOAT, [1, 3, 1, 1])
    function.functions[0].value_info.append(mean)
    original = ir.from_proto(function)
    inputs = {name: rng.standard_normal((4, 3, 2, 2)).astype(np.float32) for name in INPUTS[:2]}
    constant = np.float32([0.5, 1, 2]).reshape(1, 3, 1, 1)
    values = gradients(**inputs, Mean=constant, Variance=constant, Scale=constant, Epsilon=1e-3)
    want = dict(zip(("dx", "dscale", "dbias"), values, strict=True))
    result = check(original, inputs, want, 1e-6)
    (block,) = (function for key, function in result.functions.items() if key[0] == "f")
    assert [value.name for value in block.outputs] == ["a", "b", "d"]


def test_in_a_function_that_says_nothing():
    names = ", ".join(INPUTS)
    text = f"""{header(17, "f")} g ({GIVEN}) => ({X} dx) {{ dx = f.Block({names}) }}
        <domain: "f", opset_import: ["" : 17]>
        Block ({names}) => (a) {{ [foreign] a, b, d = {NODE} }}"""
    assert ADVICE in refused(model(text), "no parameter has a known shape")
    inlined = onnx.inliner.inline_local_functions(proto(text))
    assert ImportDirectmlPass()(model_of(inlined)).modified


def model_of(inlined):
    return ir.from_proto(onnx.shape_inference.infer_shapes(inlined))


def test_in_a_branch(rng):
    original = model(f"""g (bool c, {GIVEN}) => ({X} OutputGradient) {{
        OutputGradient = If(c) <
            then_branch = t () => ({X} u) {{ u, v, w = {NODE} }},
            else_branch = e () => ({X} z) {{ z = Identity(Input) }}> }}""")
    inputs = draw((4, 3, 2, 2), (0, 2, 3), "float", rng)
    for condition, want in ((True, gradients(**inputs, Epsilon=1e-3)[0]), (False, inputs["Input"])):
        check(original, inputs, {"OutputGradient": want}, 1e-6, {**inputs, "c": np.array(condition)})


def test_names_texts_and_metadata_survive(rng):
    original = node_model(OP, draw((4, 3), (0,), "float", rng), OUTPUTS, Epsilon=1e-3)
    original.graph[0].doc_string = "about it"
    original.graph[0].metadata_props["from"] = "DirectML"
    ImportDirectmlPass()(original)
    node = find(original, "BatchNormalizationGrad")
    assert (node.name, node.doc_string, node.metadata_props["from"]) == ("foreign", "about it", "DirectML")
    assert [value.name for value in node.inputs[:2]] == ["InputGradient", "Input"]
    assert [value.name for value in original.graph.outputs] == OUTPUTS


@pytest.mark.parametrize(
    "outputs", [["OutputGradient"], ["", "OutputScaleGradient", ""], ["", "", "OutputBiasGradient"]], ids=str
)
def test_unused_outputs(outputs, rng):
    inputs = draw((4, 3, 2), (0, 2), "float", rng)
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-3), strict=True))
    original = node_model(OP, inputs, outputs, Epsilon=1e-3)
    check(original, inputs, {name: want[name] for name in outputs if name}, 1e-6)


def test_idempotent(rng):
    original = node_model(OP, draw((4, 3), (0,), "float", rng), OUTPUTS, Epsilon=1e-3)
    assert ImportDirectmlPass()(original).modified
    after = content(original)
    assert not ImportDirectmlPass()(original).modified
    assert content(original) == after


# ---- the documentation ----


def test_the_example_of_the_documentation(rng):
    text = (ROOT / "docs" / "reference" / "dialects" / "directml.md").read_text(encoding="utf-8")
    example = ir.from_proto(onnx.parser.parse_model(re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]))
    inputs = draw((4, 3, 2, 2), (0, 2, 3), "float", rng)
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-5), strict=True))
    check(example, inputs, want, 1e-6)
