"""Tests that BatchNormalizationReluGrad equals the gradients of a ReLU and a batch norm in sequence."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from bngrad.errors import InputError
from bngrad.opset import (
    reference,
    schemas,  # noqa: F401 - the checker must know the ops
)
from bngrad.opset.axes import parameter_shape
from bngrad.opset.functions import DOMAIN, VERSION
from bngrad.passes.embed_functions import EmbedFunctionsPass
from op_models import EXTENTS, subsets
from ort_values import DTYPES, IMPLEMENTATIONS, TypedSession
from pairwise import pairwise
from typed_ops import TYPE_NAMES, assert_accurate, typed_feeds, typed_model

RELU_GRAD, GRAD = "BatchNormalizationReluGrad", "BatchNormalizationGrad"
FLOAT = ("float", "float", "float")
MODE_NAMES = {"training": 1, "frozen": 0}
MODES = pytest.mark.parametrize("training", MODE_NAMES.values(), ids=MODE_NAMES)
PATTERNS = [(EXTENTS[:rank], axes) for rank in range(1, 5) for axes in subsets(rank)]
SMALL = [((4, 3, 5), (0, 2)), ((4, 3, 2, 2), (0, 1, 2)), ((6, 4), (0,))]
PATTERNS += [(EXTENTS[:6], (0, 2, 3, 4, 5)), ((4, 3, 5), (-1, 0))]


def with_relu(feeds, rng):
    """Returns Z, the output of a ReLU, half of which is 0."""
    z = np.maximum(rng.standard_normal(feeds["X"].shape), 0)
    return {**feeds, "Z": z.astype(feeds["Z"].dtype)}


def two_steps(feeds, training):
    """Returns the reference: the gradient of a ReLU, then that of a batch norm."""
    rest = {name: feeds[name] for name in ("X", "scale", "mean", "inv_std", "axes")}
    dy = np.zeros(feeds["dZ"].shape)
    active = feeds["Z"] > 0
    dy[active] = feeds["dZ"][active]
    return reference.batch_normalization_grad(dy, **rest, training_mode=bool(training))


# ---- the reference ----


@MODES
@pytest.mark.parametrize(("shape", "axes"), PATTERNS, ids=str)
def test_the_reference_is_one_gradient_after_the_other(shape, axes, training, rng):
    feeds = with_relu(typed_feeds(RELU_GRAD, ("double",) * 3, shape, axes, rng), rng)
    got = reference.batch_normalization_relu_grad(**feeds, training_mode=bool(training))
    for actual, other in zip(got, two_steps(feeds, training), strict=True):
        np.testing.assert_array_equal(actual, other)


def forward(x, scale, bias, axes, statistics):
    mean, inv_std = statistics or reference.batch_normalization_statistics(x, axes, 0.1)
    xhat = (x - np.expand_dims(mean, axes)) * np.expand_dims(inv_std, axes)
    return np.maximum(xhat * np.expand_dims(scale, axes) + np.expand_dims(bias, axes), 0)


@MODES
@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3, 5), (0, 2)), ((4, 3, 2, 2), (0, 1, 2)), ((6, 4), (0,))], ids=str
)
def test_the_reference_is_the_central_differences_of_the_forward_pass(shape, axes, training, rng):
    x, dz = rng.standard_normal((2, *shape))
    scale, bias, mean = rng.standard_normal((3, *parameter_shape(shape, axes)))
    inv_std = rng.uniform(0.5, 2, scale.shape)
    statistics = None if training else (mean, inv_std)
    if training:
        mean, inv_std = reference.batch_normalization_statistics(x, axes, 0.1)
    z = forward(x, scale, bias, axes, statistics)
    got = reference.batch_normalization_relu_grad(dz, z, x, scale, mean, inv_std, axes, bool(training))
    step, values = 1e-6, {"x": x, "scale": scale, "bias": bias}
    for (name, at), gradient in zip(values.items(), got, strict=True):
        for index in np.ndindex(at.shape):
            sides = []
            for sign in (1, -1):
                moved = at.copy()
                moved[index] += sign * step
                arguments = {**values, name: moved}
                sides.append(np.sum(dz * forward(**arguments, axes=axes, statistics=statistics)))
            np.testing.assert_allclose((sides[0] - sides[1]) / (2 * step), gradient[index], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["dZ", "Z"])
def test_the_reference_refuses_another_shape(name, rng):
    feeds = typed_feeds(RELU_GRAD, ("double",) * 3, (2, 3, 4), (0, 2), rng)
    with pytest.raises(InputError) as error:
        reference.batch_normalization_relu_grad(**{**feeds, name: feeds[name][:1]}, training_mode=True)
    expected = f"{name} has shape [1, 3, 4]; expected [2, 3, 4] for X of shape [2, 3, 4] and axes [0, 2]"
    assert str(error.value) == expected


# ---- the function ----

LAYOUTS = {
    "NCHW": ((4, 3, 5, 6), (0, 2, 3)),
    "NHWC": ((4, 5, 6, 3), (0, 1, 2)),
    "NC": ((16, 3), (0,)),
    "per-activation": ((8, 3, 2, 2), (0,)),
    "mixed": ((3, 8, 2, 7), (1, 3)),
    "all": ((4, 5, 6), (0, 1, 2)),
    "negative": ((4, 3, 5), (-1, 0)),
    "empty": ((0, 3, 5), (0, 2)),
}


@pairwise(types=TYPE_NAMES, training=MODE_NAMES, implementation=IMPLEMENTATIONS)
def test_the_function_in_every_type(types, training, implementation, rng):
    run = TypedSession(typed_model(RELU_GRAD, types, training_mode=training), implementation)
    for shape, axes in LAYOUTS.values():
        feeds = with_relu(typed_feeds(RELU_GRAD, types, shape, axes, rng), rng)
        assert_accurate(RELU_GRAD, types, run(feeds), feeds, {"training_mode": training})


@pairwise(types=TYPE_NAMES, training=MODE_NAMES, implementation=IMPLEMENTATIONS)
def test_it_is_bit_for_bit_the_gradient_of_the_masked_dz(types, training, implementation, rng):
    feeds = with_relu(typed_feeds(RELU_GRAD, types, (4, 3, 5, 6), (0, 2, 3), rng), rng)
    got = TypedSession(typed_model(RELU_GRAD, types, training_mode=training), implementation)(feeds)
    dy = np.where(feeds["Z"] > 0, feeds["dZ"], np.zeros((), DTYPES[types[0]]))
    rest = {name: array for name, array in feeds.items() if name not in ("dZ", "Z")}
    want = TypedSession(typed_model(GRAD, types, training_mode=training), implementation)({"dY": dy, **rest})
    for name, value in want.items():
        np.testing.assert_array_equal(got[name].astype(np.float64), value.astype(np.float64), err_msg=name)


EDGES = {"zero": 0.0, "negative-zero": -0.0, "negative": -1.0, "nan": np.nan, "minus-infinity": -np.inf}


@pairwise(edge=list(EDGES), dtype=list(DTYPES), bad=[0.5, np.nan, np.inf], implementation=IMPLEMENTATIONS)
def test_where_z_is_not_positive_nothing_comes_through(edge, dtype, bad, implementation, rng):
    """This includes NaN, because dZ is selected and not multiplied."""
    types = (dtype,) * 3
    feeds = with_relu(typed_feeds(RELU_GRAD, types, (4, 3, 5), (0, 2), rng), rng)
    feeds["Z"][0], feeds["dZ"][0] = EDGES[edge], bad
    want = two_steps(
        {name: a if name == "axes" else a.astype(np.float64) for name, a in feeds.items()}, training=1
    )
    assert all(np.isfinite(value).all() for value in want)
    got = TypedSession(typed_model(RELU_GRAD, types, training_mode=1), implementation)(feeds)
    assert_accurate(RELU_GRAD, types, got, feeds, {"training_mode": 1})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("types", [(t, t, t) for t in DTYPES], ids="-".join)
def test_the_smallest_positive_z_lets_all_through(types, implementation, rng):
    dtype = DTYPES[types[0]]
    feeds = typed_feeds(RELU_GRAD, types, (4, 3, 5), (0, 2), rng)
    smallest = np.ones(1, f"u{dtype.itemsize}").view(dtype)
    assert smallest[0] > 0
    feeds["Z"][:] = smallest
    run = TypedSession(typed_model(RELU_GRAD, types, training_mode=0), implementation)
    got = run(feeds)
    feeds["Z"][:] = np.inf
    for name, value in run(feeds).items():
        np.testing.assert_array_equal(got[name].astype(np.float64), value.astype(np.float64), err_msg=name)


# ---- a model that carries its functions, one of which calls the other ----


def relu_model(opset=17, *, element_type=onnx.TensorProto.FLOAT, subgraph=False):
    data = [helper.make_tensor_value_info(n, element_type, ["N", 3, 4]) for n in ("dZ", "Z", "X")]
    parameters = [helper.make_tensor_value_info(n, element_type, [3]) for n in ("scale", "mean", "inv_std")]
    outputs = [helper.make_tensor_value_info("dX", element_type, ["N", 3, 4])]
    outputs += [helper.make_tensor_value_info(n, element_type, [3]) for n in ("dscale", "dbias")]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[0, 2])
    inputs = [value.name for value in data + parameters]
    node = helper.make_node(
        RELU_GRAD, [*inputs, "axes"], [v.name for v in outputs], name="bn", domain=DOMAIN, training_mode=1
    )
    nodes = [axes, node]
    if subgraph:
        branch = helper.make_graph([node], "branch", [], outputs)
        condition = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("t", 9, [], [True]))
        choice = helper.make_node(
            "If", ["yes"], [v.name for v in outputs], name="if", then_branch=branch, else_branch=branch
        )
        nodes = [axes, condition, choice]
    graph = helper.make_graph(nodes, "relu", data + parameters, outputs)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, VERSION)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


@pairwise(dtype=["float", "double"], opset=[15, 17, 18, 21], subgraph={"graph": False, "branch": True})
def test_a_model_with_only_this_op_carries_both_functions(dtype, opset, subgraph, rng):
    element_type = helper.np_dtype_to_tensor_dtype(DTYPES[dtype])
    model = relu_model(opset, element_type=element_type, subgraph=subgraph)
    assert EmbedFunctionsPass()(model).modified
    assert {name for _, name, _ in model.functions} == {RELU_GRAD, GRAD}
    assert not EmbedFunctionsPass()(model).modified
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    types = (dtype,) * 3
    feeds = with_relu(typed_feeds(RELU_GRAD, types, (2, 3, 4), (0, 2), rng), rng)
    without_axes = {name: array for name, array in feeds.items() if name != "axes"}
    assert_accurate(RELU_GRAD, types, TypedSession(proto)(without_axes), feeds, {"training_mode": 1})


def test_both_functions_go_when_the_op_does():
    model = relu_model()
    EmbedFunctionsPass()(model)
    (node,) = (n for n in model.graph if n.op_type == RELU_GRAD)
    for value, other in zip(node.outputs, ("X", "scale", "scale"), strict=True):
        (replacement,) = (v for v in model.graph.inputs if v.name == other)
        value.replace_all_uses_with(replacement, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    assert EmbedFunctionsPass()(model).modified
    assert not model.functions


def test_without_functions_the_model_has_none():
    model = relu_model()
    EmbedFunctionsPass(functions=False)(model)
    assert not model.functions
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
