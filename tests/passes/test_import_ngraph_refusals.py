"""nGraph's batch norms: what nGraph's own tests of types and shapes accept and reject, and malformed nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.passes.imports.ngraph import ImportNgraphPass
from dialects import node_model
from ngraph_nodes import (
    BACKPROP,
    BACKPROP_OUTPUTS,
    DATA,
    FORWARD,
    FORWARD_OUTPUTS,
    NCHW,
    NODE,
    SIGNATURE,
    refused,
)
from pass_models import find, header, proto

# ---- shapes and types that are not known: nGraph's type_prop tests ----


UNKNOWN = None


def tensor_type(dtype):
    return None if dtype is None else ir.TensorType(dtype)


def partial_model(shapes, op_type=BACKPROP, dtypes=None):
    """A node whose inputs have these shapes; None is an extent, or a rank, that is not known."""
    names = ["gamma", "beta", "input", "mean", "variance", "delta"][: 3 if op_type == FORWARD else 6]
    outputs = FORWARD_OUTPUTS if op_type == FORWARD else BACKPROP_OUTPUTS
    model = node_model(op_type, {name: np.ones(1, np.float32) for name in names}, outputs, eps=1e-3)
    for value in model.graph.inputs:
        shape = shapes.get(value.name)
        value.shape = None if shape is None else ir.Shape(shape)
        value.type = tensor_type((dtypes or {}).get(value.name, ir.DataType.FLOAT))
    return model


ALL_OF_C = dict.fromkeys(("gamma", "beta", "mean", "variance"), (3,))
_ = UNKNOWN
ACCEPTED = {  # The shapes given, and those inferred of input_delta and of gamma_delta.
    "all_rank_dynamic": ({}, None, (_,)),
    "input_rank_static_dynamic_ok": ({"input": (64, _, _, _)}, (64, _, _, _), (_,)),
    "delta_rank_static_dynamic_ok": ({"delta": (64, _, _, _)}, (64, _, _, _), (_,)),
    "delta_rank_static_dynamic_channels_known": ({"delta": (_, 5, _, _)}, (_, 5, _, _), (5,)),
    "input_and_delta_rank_dynamic_some_rank_static_dynamic_ok": ({"gamma": (_,), "mean": (_,)}, None, (_,)),
    "input_and_delta_rank_static_dynamic_some_static_ok": (
        {"input": (64, _, _, 224), "gamma": (3,), "mean": (3,), "delta": (_, 3, 448, 224)},
        (64, 3, 448, 224),
        (3,),
    ),
}
ALL = "gamma/beta/mean/variance"
REJECTED = {
    "et_check": ({**ALL_OF_C, "input": NCHW, "delta": NCHW}, "input element types do not match"),
    "shape_check": (
        {**ALL_OF_C, "beta": (4,), "input": NCHW, "delta": NCHW},
        f"shapes for {ALL} do not match ({{3}}/{{4}}/{{3}}/{{3}})",
    ),
    "delta_check": (
        {**ALL_OF_C, "input": NCHW, "delta": (4, 3, 2, 3)},
        (
            "shape of delta does not match the shape of the input data (input data shape: {4,3,2,2}, "
            "delta shape: {4,3,2,3})"
        ),
    ),
    "input_rank_static_dynamic_zero_channels": ({"input": (_, 0, _, _)}, "channel count must be at least 1"),
    "delta_rank_static_dynamic_zero_channels": ({"delta": (_, 0, _, _)}, "channel count must be at least 1"),
    "some_rank_static_dynamic_wrong_rank": (
        {"gamma": (_, _), "mean": (_, _)},
        f"shape for {ALL} ({{?,?}}) does not have rank 1",
    ),
    "some_rank_static_dynamic_inconsistent_rank": (
        {"gamma": (3, _), "mean": (_,)},
        f"shapes for {ALL} do not match ({{3,?}}/?/{{?}}/?)",
    ),
    "some_static_inconsistent_channel_count": (
        {"gamma": (3,), "mean": (4,)},
        f"shapes for {ALL} do not match ({{3}}/?/{{4}}/?)",
    ),
    "input_and_delta_some_static_inconsistent_channel_count": (
        {"input": (64, _, _, 224), "gamma": (3,), "mean": (3,), "delta": (_, 4, 448, 224)},
        f"input channel dimension (4) does not match shape for {ALL} ({{3}})",
    ),
    "input_and_delta_inconsistent_batch_size": (
        {"input": (64, 3, _, 224), "gamma": (3,), "mean": (3,), "delta": (128, 4, _, 224)},
        (
            "shape of delta does not match the shape of the input data (input data shape: {64,3,?,224}, "
            "delta shape: {128,4,?,224})"
        ),
    ),
    "input_and_delta_inconsistent_spatial_dims": (
        {"input": (_, 3, _, 224), "gamma": (3,), "mean": (3,), "delta": (_, 3, _, 448)},
        (
            "shape of delta does not match the shape of the input data (input data shape: {?,3,?,224}, "
            "delta shape: {?,3,?,448})"
        ),
    ),
}
MORE_REJECTED = {
    "rank-1": ({"input": (3,)}, "input argument must have rank of at least 2 (input argument shape: {3})"),
    "rank-1-unknown-extent": ({"delta": (_,)}, "input argument must have rank of at least 2"),
    "rank-differs": ({"input": (4, 3), "delta": (4, 3, 2)}, "shape of delta does not match"),
    "no-channels-in-gamma": ({"gamma": (0,)}, "channel count must be at least 1"),
    "kept-dimensions": (
        {"gamma": (1, 3, 1, 1), "input": NCHW},
        f"shape for {ALL} ({{1,3,1,1}}) does not have rank 1",
    ),
}


def known(shape):
    return None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)


@pytest.mark.parametrize("case", ACCEPTED)
def test_type_prop_accepted(case):
    shapes, data, channels = ACCEPTED[case]
    model = partial_model(shapes)
    assert ImportNgraphPass()(model).modified
    by_name = {value.name: value for value in model.graph.outputs}
    assert known(by_name["input_delta"].shape) == data
    for name in ("gamma_delta", "beta_delta"):
        # Where the channels are unknown, nGraph infers {?} and bngrad nothing.
        assert (known(by_name[name].shape) or (_,)) == channels
    assert {value.dtype for value in by_name.values()} == {ir.DataType.FLOAT}


@pytest.mark.parametrize("known_of", ["gamma", "delta", "variance"])
def test_the_type_of_any_input_is_that_of_all(known_of):
    dtypes = dict.fromkeys(("gamma", "beta", "input", "mean", "variance", "delta"))
    model = partial_model({}, dtypes={**dtypes, known_of: ir.DataType.DOUBLE})
    ImportNgraphPass()(model)
    assert {value.dtype for value in model.graph.outputs} == {ir.DataType.DOUBLE}
    _, x, *_ = find(model, "BatchNormalizationGrad").inputs
    assert x.dtype == ir.DataType.DOUBLE
    assert "CastLike" not in [node.op_type for node in model.graph]


@pytest.mark.parametrize("case", REJECTED)
def test_type_prop_rejected(case):
    shapes, reason = REJECTED[case]
    refused(partial_model(shapes, dtypes={"beta": ir.DataType.DOUBLE} if case == "et_check" else None), reason)


@pytest.mark.parametrize("case", MORE_REJECTED)
def test_shapes_that_ngraph_rejects_too(case):
    refused(partial_model(MORE_REJECTED[case][0]), MORE_REJECTED[case][1])


FORWARD_REJECTED = {
    "rank_less_than_2": (
        {"input": (10,), "gamma": (10,), "beta": (10,)},
        "input argument must have rank of at least 2",
    ),
    "zero_channel_check": (
        {"input": (4, 0, 2, 2), "gamma": (0,), "beta": (0,)},
        "channel count must be at least 1",
    ),
    "shape_check": ({"input": NCHW, "gamma": (4,), "beta": (3,)}, "shapes for gamma/beta do not match ({4}/{3})"),
    "wrong_rank": ({"gamma": (_, _), "beta": (_, _)}, "shape for gamma/beta ({?,?}) does not have rank 1"),
    "inconsistent_rank": ({"gamma": (3, _), "beta": (_,)}, "shapes for gamma/beta do not match"),
    "inconsistent_channel_count": ({"gamma": (3,), "beta": (4,)}, "shapes for gamma/beta do not match"),
    "inconsistent_input_channel_count": (
        {"input": (64, 4, _, 224), "gamma": (3,)},
        "input channel dimension (4) does not match shape for gamma/beta ({3})",
    ),
}


@pytest.mark.parametrize("case", FORWARD_REJECTED)
def test_type_prop_rejected_forward(case):
    refused(partial_model(FORWARD_REJECTED[case][0], FORWARD), FORWARD_REJECTED[case][1])


FORWARD_ACCEPTED = {
    "all_rank_dynamic": ({}, None, (_,)),
    "batch_size_known_ok": ({"input": (64, _, _, _)}, (64, _, _, _), (_,)),
    "channel_count_known_ok": ({"input": (_, 3, _, _)}, (_, 3, _, _), (3,)),
    "some_rank_static_dynamic_ok": ({"gamma": (_,)}, None, (_,)),
    "some_static_ok": ({"input": (64, _, _, 224), "gamma": (3,), "beta": (3,)}, (64, 3, _, 224), (3,)),
}


@pytest.mark.parametrize("case", FORWARD_ACCEPTED)
def test_type_prop_accepted_forward(case):
    shapes, data, channels = FORWARD_ACCEPTED[case]
    model = partial_model(shapes, FORWARD)
    assert ImportNgraphPass()(model).modified
    output, mean, variance = (known(value.shape) for value in model.graph.outputs)
    assert output == data
    assert (mean or (_,)) == (variance or (_,)) == channels


WRONG_TYPES = {
    "delta": (
        {"delta": ir.DataType.DOUBLE},
        "element type for input (float) does not match element type for delta (double)",
    ),
    "mean-double": (
        {"mean": ir.DataType.DOUBLE},
        (
            "input element types do not match (gamma float, beta float, input float, mean double, variance float, "
            "delta float)"
        ),
    ),
    "float-statistics-of-halves": (
        dict.fromkeys(("input", "delta", "gamma", "beta"), ir.DataType.FLOAT16),
        "input element types do not match",
    ),
    "integers": (
        dict.fromkeys(("gamma", "beta", "input", "mean", "variance", "delta"), ir.DataType.INT32),
        "its input 'gamma' is int32; expected one of float, double, float16, bfloat16",
    ),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_types_that_are_refused(case):
    refused(partial_model({}, dtypes=WRONG_TYPES[case][0]), WRONG_TYPES[case][1])


# ---- what is refused of the node's form ----


MALFORMED = {
    "five-inputs": ({"inputs": 5}, "it has 5 inputs; expected 6: gamma, beta, input, mean, variance, delta"),
    "seven-inputs": ({"inputs": 7}, "it has 7 inputs; expected 6"),
    "an-input-left-out": ({"left_out": "beta"}, "it has 5 inputs; expected 6"),
    "four-outputs": ({"outputs": 4}, "it has 4 outputs; expected input_delta, gamma_delta, beta_delta"),
    "no-epsilon": ({"attributes": {}}, "it has no eps; expected one epsilon"),
    "two-epsilons": ({"attributes": {"eps": 0.1, "epsilon": 0.1}}, "it has eps and epsilon; expected one epsilon"),
    "epsilon-text": ({"attributes": {"eps": "small"}}, "its eps is of type string; expected a number"),
    "attribute-of-another-system": (
        {"attributes": {"epsilon": 0.1, "feature_index": 3}},
        "it has an attribute 'feature_index'; expected only eps",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_nodes_are_refused(case):
    change, reason = MALFORMED[case]
    names = ["gamma", "beta", "input", "mean", "variance", "delta", "more"][: change.get("inputs", 6)]
    inputs = {name: np.ones(3, np.float32) for name in names}
    for name in ("input", "delta"):
        inputs[name] = np.ones((4, 3), np.float32)
    if "inputs" in change:
        inputs = {name: inputs[name] for name in names}
    if "left_out" in change:
        inputs[change["left_out"]] = None
    outputs = [*BACKPROP_OUTPUTS, "more_outputs"][: change.get("outputs", 3)]
    refused(node_model(BACKPROP, inputs, outputs, **change.get("attributes", {"eps": 0.1})), reason)


def test_an_epsilon_of_the_function_is_refused():
    text = f"""{header(17, "f")} g ({SIGNATURE}) => ({DATA} dx) {{
        dx = f.Block<e = 0.001>(gamma, beta, input, mean, variance, delta) }}
        <domain: "f", opset_import: ["" : 17]>
        Block <e> (gamma, beta, input, mean, variance, delta) => (a) {{
            [foreign] a, b, d = {NODE.replace("0.001", "@e")} }}"""
    refused(ir.from_proto(proto(text)), "its eps refers to a function attribute; expected a number")


def test_one_refusal_leaves_the_others_as_they_were():
    model = ir.from_proto(
        proto(f"""g ({SIGNATURE}) => ({DATA} dx) {{
            [good] dx, a, b = {NODE}
            [foreign] x, d, e = BatchNormTraining(gamma, beta, input) }}""")
    )
    refused(model, "it has no eps")
