"""DirectML's batch-norm gradient: the axes that its tensors determine, and every constraint on them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.passes.imports.directml import ImportDirectmlPass
from dialects import node_model
from directml_nodes import (
    ADVICE,
    GIVEN,
    INPUTS,
    NODE,
    OP,
    OUTPUTS,
    X,
    check,
    draw,
    gradients,
    of_shapes,
    refused,
)
from pass_models import axes_of, find, header, model

# ---- what is not known ----

KNOWN_BY = {
    "mean": {"parameters": ("[1,3,1,1]", "?", "?")},
    "variance": {"parameters": ("?", "[1,3,1,1]", "?")},
    "scale": {"parameters": ("?", "?", "[1,3,1,1]")},
    "scale-gradient": {"outputs": ("", "[1,3,1,1]", "")},
    "bias-gradient": {"outputs": ("", "", "[1,3,1,1]")},
    "each-something": {"parameters": ("[1,A,B,1]", "[D,3,E,1]", "[F,G,1,1]")},
    "the-name-of-an-extent-of-the-input": {"data": ("[N,C,H,W]", "?"), "parameters": ("[1,C,1,1]", "?", "?")},
    "the-name-of-an-extent-of-the-gradient": {"data": ("?", "[N,C,H,W]"), "parameters": ("?", "?", "[1,C,1,1]")},
    "extent-1-of-the-input": {"data": ("[A,3,1,1]", "?"), "parameters": ("[1,3,B,D]", "?", "?")},
}


@pytest.mark.parametrize("case", KNOWN_BY)
def test_where_the_axes_may_come_from(case):
    original = of_shapes(**KNOWN_BY[case])
    assert ImportDirectmlPass()(original).modified
    assert axes_of(find(original, "BatchNormalizationGrad")) == [0, 2, 3]


def test_a_named_extent_that_is_kept_may_turn_out_to_be_1(rng):
    original = of_shapes(("[N,C,H]", "[N,C,H]"), ("[1,C,1]", "[1,C,1]", "[1,C,1]"))
    for shape in ((4, 3, 2), (4, 1, 2), (1, 1, 1)):
        inputs = draw(shape, (0, 2), "float", rng)
        want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-3), strict=True))
        for value in original.graph.outputs:
            value.shape = ir.Shape([None] * 3)
        result = check(original, inputs, want, 1e-6)
        assert axes_of(find(result, "BatchNormalizationGrad")) == [0, 2]


def test_the_rank_of_the_data_need_not_be_known(rng):
    original = of_shapes(("?", "?"), ("[1,3,1]", "?", "?"), ("[a,b,c]", "[d,e,f]", "[g,h,i]"))
    inputs = draw((4, 3, 2), (0, 2), "float", rng)
    feeds = {"Mean": inputs["Mean"]}
    for name in set(INPUTS) - {"Mean"}:
        feeds |= {f"{name}_flat": inputs[name].ravel(), f"{name}_shape": np.array(inputs[name].shape)}
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=1e-3), strict=True))
    check(original, inputs, want, 1e-6, feeds)


UNKNOWN_AXES = {
    "nothing-known": ({}, "no parameter has a known shape, so the dimensions to sum over are unknown"),
    "only-the-data-known": (
        {"data": ("[4,3,2,2]", "[4,3,2,2]")},
        "no parameter has a known shape, so the dimensions to sum over are unknown",
    ),
    "another-name": (
        {"data": ("[N,C,H,W]", "?"), "parameters": ("[1,K,1,1]", "?", "?")},
        "its MeanTensor 'Mean' has shape [1, K, 1, 1], so it is unknown whether to sum over dimension 1",
    ),
    "no-name": (
        {"data": ("[?,?,?,?]", "?"), "parameters": ("[1,?,1,1]", "?", "?")},
        "its MeanTensor 'Mean' has shape [1, ?, 1, 1], so it is unknown whether to sum over dimension 1",
    ),
    "the-name-of-another-dimension": (
        {"data": ("[N,C,H,W]", "?"), "parameters": ("?", "[1,3,W,1]", "?")},
        "its VarianceTensor 'Variance' has shape [1, 3, W, 1], so it is unknown whether to sum over dimension 2",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN_AXES)
def test_unknown_axes_are_refused_with_what_to_do(case):
    shapes, reason = UNKNOWN_AXES[case]
    assert ADVICE in refused(of_shapes(**shapes), reason)


# ---- the constraints of the tensors ----

WRONG_SHAPES = {
    "parameters-of-rank-1": (
        ("[4,3,2,2]", "[4,3,2,2]", "[3]", "[3]", "[3]"),
        (
            "its MeanTensor 'Mean' has DimensionCount 1; expected 4 like its InputTensor 'Input': each dimension "
            "to sum over has size 1, as in [1, C, 1, 1]"
        ),
    ),
    "one-parameter-of-another-rank": (
        ("[4,3,2]", "[4,3,2]", "[1,3,1]", "[1,3,1]", "[3,1]"),
        "its ScaleTensor 'Scale' has DimensionCount 2; expected 3 like its InputTensor 'Input'",
    ),
    "data-of-two-ranks": (
        ("[4,3,2]", "[4,3]", "[1,3,1]", "[1,3,1]", "[1,3,1]"),
        "its InputGradientTensor 'InputGradient' has DimensionCount 2; expected 3 like its InputTensor 'Input'",
    ),
    "rank-0": (("",) * 5, "its InputTensor 'Input' has DimensionCount 0; expected 1 to 8"),
    "rank-9": (("[1,1,1,1,1,1,1,1,1]",) * 5, "its InputTensor 'Input' has DimensionCount 9; expected 1 to 8"),
    "data-of-two-sizes": (
        ("[4,3,2]", "[4,3,5]", "[1,3,1]", "[1,3,1]", "[1,3,1]"),
        (
            "its InputGradientTensor 'InputGradient' has shape [4, 3, 5]; expected [4, 3, 2] like its "
            "InputTensor 'Input'"
        ),
    ),
    "variance-of-another-size": (
        ("[4,3,2]", "[4,3,2]", "[1,3,1]", "[1,1,1]", "[1,3,1]"),
        "its VarianceTensor 'Variance' has shape [1, 1, 1]; expected [1, 3, 1] like its MeanTensor 'Mean'",
    ),
    "scale-of-another-size": (
        ("[N,3,2]", "[N,3,2]", "[1,3,M]", "[1,3,1]", "[1,3,2]"),
        "its ScaleTensor 'Scale' has shape [1, 3, 2]; expected [1, 3, 1] like its VarianceTensor 'Variance'",
    ),
    "neither-1-nor-that-of-the-data": (
        ("[4,3,2]", "[4,3,2]", "[2,3,1]", "[2,3,1]", "[2,3,1]"),
        "its MeanTensor 'Mean' has size 2 in dimension 0; expected 1 or 4 as for its InputTensor 'Input'",
    ),
    "parameters-wider-than-the-data": (
        ("[4,1,2]", "[4,1,2]", "[1,3,1]", "[1,3,1]", "[1,3,1]"),
        "its MeanTensor 'Mean' has size 3 in dimension 1; expected 1 as for its InputTensor 'Input'",
    ),
}


@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_wrong_shapes_are_refused(case):
    shapes, reason = WRONG_SHAPES[case]
    refused(of_shapes(shapes[:2], shapes[2:]), reason)


WRONG_OUTPUTS = {
    "OutputGradient-sizes": (
        ("[4,3,1]", "", ""),
        "its OutputGradientTensor 'OutputGradient' has shape [4, 3, 1]; expected [4, 3, 2] like its",
    ),
    "OutputScaleGradient-sizes": (
        ("", "[4,3,1]", ""),
        (
            "its OutputScaleGradientTensor 'OutputScaleGradient' has shape [4, 3, 1]; expected [1, 3, 1] "
            "like its MeanTensor 'Mean'"
        ),
    ),
    "OutputBiasGradient-rank": (
        ("", "", "[3]"),
        "its OutputBiasGradientTensor 'OutputBiasGradient' has DimensionCount 1; expected 3",
    ),
}


@pytest.mark.parametrize("case", WRONG_OUTPUTS)
def test_declared_outputs_are_tensors_too(case):
    outputs, reason = WRONG_OUTPUTS[case]
    refused(of_shapes(("[4,3,2]", "[4,3,2]"), ("[1,3,1]",) * 3, outputs), reason)


@pytest.mark.parametrize("dtype", ["double", "bfloat16", "int32"])
def test_other_types_are_refused(dtype):
    original = of_shapes(("[4,3]", "[4,3]"), ("[1,3]",) * 3)
    for value in original.graph.inputs:
        value.dtype = ir.DataType[dtype.upper()]
    refused(original, f"its InputTensor 'Input' is {dtype}; expected float or float16")


@pytest.mark.parametrize("name", INPUTS[1:] + OUTPUTS)
def test_all_tensors_have_one_type(name):
    original = of_shapes(("[4,3]", "[4,3]"), ("[1,3]",) * 3)
    value = next(v for v in (*original.graph.inputs, *original.graph.outputs) if v.name == name)
    value.dtype = ir.DataType.FLOAT16
    refused(original, f"its {name}Tensor '{name}' is float16; expected float like its InputTensor 'Input'")


# ---- the form of the node ----

MALFORMED = {
    "four-inputs": ({"inputs": 4}, "it has 4 inputs; expected 5: InputTensor, InputGradientTensor, MeanTensor"),
    "an-input-left-out": ({"left_out": "Scale"}, "it has 4 inputs; expected 5"),
    "four-outputs": ({"outputs": 4}, "it has 4 outputs; expected OutputGradientTensor, OutputScaleGradientTensor"),
    "no-epsilon": ({"attributes": {}}, "it has no Epsilon; expected one epsilon"),
    "two-epsilons": ({"attributes": {"Epsilon": 0.1, "epsilon": 0.1}}, "it has Epsilon and epsilon; expected one"),
    "epsilon-text": ({"attributes": {"Epsilon": "small"}}, "its Epsilon is of type string; expected a number"),
    "another-attribute": (
        {"attributes": {"Epsilon": 0.1, "Spatial": 1}},
        "it has an attribute 'Spatial'; expected only Epsilon",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_nodes_are_refused(case, rng):
    change, reason = MALFORMED[case]
    inputs = dict(list(draw((4, 3), (0,), "float", rng).items())[: change.get("inputs", 5)])
    if "left_out" in change:
        inputs[change["left_out"]] = None
    outputs = [*OUTPUTS, "more"][: change.get("outputs", 3)]
    refused(node_model(OP, inputs, outputs, **change.get("attributes", {"Epsilon": 0.1})), reason)


def test_an_epsilon_of_the_function_is_refused():
    text = f"""{header(17, "f")} g ({GIVEN}) => ({X} dx) {{ dx = f.Block<e = 0.001>({", ".join(INPUTS)}) }}
        <domain: "f", opset_import: ["" : 17]>
        Block <e> ({", ".join(INPUTS)}) => (a) {{ [foreign] a, b, d = {NODE.replace("0.001", "@e")} }}"""
    refused(model(text), "its Epsilon refers to a function attribute; expected a number: inline the function")


def test_one_refusal_leaves_the_others_as_they_were():
    refused(
        model(f"""g ({GIVEN}) => ({X} dx) {{
            [good] dx, a, b = {NODE}
            [foreign] x, d, e = {OP}({", ".join(INPUTS)}) }}"""),
        "it has no Epsilon",
    )
