"""nGraph's batch norms -> bngrad's: the results, wherever the node is."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.ngraph import ImportNgraphPass
from dialects import node_model, rewritten, run, worst_error
from ngraph_nodes import (
    BACKPROP,
    BACKPROP_OUTPUTS,
    DATA,
    FORWARD,
    FORWARD_OUTPUTS,
    NCHW,
    NODE,
    SIGNATURE,
    backprop,
    check,
    check_backprop,
    check_training,
    draw,
    forward_inputs,
    of_unknown_rank,
    training,
)
from ort_values import DTYPES, TOLERANCES
from pairwise import pairwise
from pass_models import attributes_of, axes_of, content, find, header, proto

ROOT = pathlib.Path(__file__).parents[2]


# ---- what is matched, and what it computes ----

SHAPES = {rank: (4, 3, 5, 2, 3, 2, 2, 1, 2, 1)[:rank] for rank in range(2, 11)}


@pairwise(rank=list(SHAPES), dtype=list(DTYPES), checked=["backprop", "training"])
def test_every_rank(rank, dtype, checked, rng):
    if checked == "backprop":
        node = find(check_backprop(SHAPES[rank], dtype, rng), "BatchNormalizationGrad")
        attributes = {"training_mode": 1}
    else:
        node = find(check_training(SHAPES[rank], dtype, rng), "BatchNormalizationTraining")
        attributes = {"epsilon": 1e-3, "momentum": 0, "unbiased_running_var": 0}
    assert axes_of(node) == ([0, *range(2, rank)] if rank <= 8 else [0, 2])
    assert attributes_of(node) == pytest.approx(attributes)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=9),
    dtype=st.sampled_from(list(DTYPES)),
    forward=st.booleans(),
    eps=st.sampled_from([1e-5, 1e-3, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_any_shape(shape, dtype, forward, eps, seed):
    inputs = draw(shape, dtype, np.random.default_rng(seed))
    if forward:
        inputs = forward_inputs(inputs)
        outputs, want = FORWARD_OUTPUTS, training(**inputs, eps=eps)
        model = node_model(FORWARD, inputs, outputs, eps=eps)
    else:
        outputs, want = BACKPROP_OUTPUTS, backprop(**inputs, eps=eps)
        model = node_model(BACKPROP, inputs, outputs, eps=eps)
    # What cancels in a small batch leaves the rounding of terms of about 1, or of 1 / sqrt(eps).
    check(model, inputs, dict(zip(outputs, want, strict=True)), 4 * TOLERANCES[dtype], terms=1 / np.sqrt(eps))


def test_the_older_name(rng):
    check_backprop((4, 3, 2), "float", rng, op_type="BatchNormBackprop")


@pytest.mark.parametrize("domain", ["", "ngraph", "com.intel.ngraph"])
def test_any_domain(domain, rng):
    result = check_backprop((4, 3, 2), "float", rng, domain=domain)
    assert result.opset_imports["bngrad"] == 1
    check_training((4, 3, 2), "float", rng, domain=domain)


@pytest.mark.parametrize("attribute", ["eps", "epsilon"])
@pytest.mark.parametrize("eps", [0.1, 1e-5, 0])
def test_either_name_of_epsilon_and_integers(attribute, eps, rng):
    check_backprop((4, 3, 2), "double", rng, attribute=attribute, eps=eps)
    check_training((4, 3, 2), "double", rng, attribute=attribute, eps=eps)


def test_epsilon_is_rounded_to_float32_as_in_the_kernels(rng):
    """A model that was never saved can hold an attribute in double."""
    inputs = draw((4, 3, 2), "double", rng)
    model = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=0.1)
    model.graph[0].attributes["eps"] = ir.Attr("eps", ir.AttributeType.FLOAT, 0.1)
    want = dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=0.1), strict=True))
    check(model, inputs, want, TOLERANCES["double"])


def test_epsilon_matters(rng):
    """A gradient that took the variance for inv_std, or forgot epsilon, would not pass here."""
    inputs = draw((4, 3, 2), "double", rng)
    near, far = (backprop(**inputs, eps=eps)[0] for eps in (1e-3, 0.5))
    assert worst_error(near, far) > 0.1


def test_an_offset_costs_no_digits(rng):
    inputs = draw((8, 3, 50), "float", rng, offset=1000.0)
    model = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=1e-3)
    want = dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=1e-3), strict=True))
    check(model, inputs, want, TOLERANCES["float"])


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0), (2, 3, 4, 0)], ids=str)
@pytest.mark.parametrize("static", [True, False], ids=["known", "unknown"])
def test_an_empty_batch_has_gradients_of_zero(shape, static, rng):
    inputs = draw(shape, "float", rng)
    model, feeds = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=1e-3), inputs
    if not static:
        model, feeds = of_unknown_rank(BACKPROP, inputs)
    result = run(rewritten(model, ImportNgraphPass()), feeds)
    assert result["input_delta"].shape == (shape if static else (0,))
    for name in ("gamma_delta", "beta_delta"):
        np.testing.assert_array_equal(result[name], np.zeros(3, np.float32))


@pytest.mark.parametrize("static", [True, False], ids=["known", "unknown"])
def test_an_empty_batch_has_no_statistics(static):
    """nGraph divides 0 by 0 there too."""
    inputs = {
        "gamma": np.ones(3, np.float32),
        "beta": np.ones(3, np.float32),
        "input": np.ones((0, 3), np.float32),
    }
    model, feeds = node_model(FORWARD, inputs, FORWARD_OUTPUTS, eps=1e-3), inputs
    if not static:
        model, feeds = of_unknown_rank(FORWARD, inputs)
    result = run(rewritten(model, ImportNgraphPass()), feeds)
    assert result["output"].shape == ((0, 3) if static else (0,))
    assert np.isnan(result["batch_mean"]).all()
    assert np.isnan(result["batch_variance"]).all()


def test_beta_is_never_read(rng):
    inputs = draw((4, 3, 2), "float", rng)
    model = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=1e-3)
    before = run(rewritten(model, ImportNgraphPass()), inputs)
    after = run(rewritten(model, ImportNgraphPass()), {**inputs, "beta": inputs["beta"] * np.nan})
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


def test_it_is_the_gradient_of_the_forward_node(rng):
    """By central differences of the loss sum(output * delta), with the statistics of the input."""
    inputs, step = draw((3, 2, 4), "double", rng), 1e-5
    _, inputs["mean"], inputs["variance"] = training(**forward_inputs(inputs), eps=1e-3)
    model = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=1e-3)
    got = run(rewritten(model, ImportNgraphPass()), inputs)

    def loss(name, index, by):
        moved = {key: value.copy() for key, value in forward_inputs(inputs).items()}
        moved[name].flat[index] += by
        return np.sum(training(**moved, eps=1e-3)[0] * inputs["delta"])

    for name in ("input", "gamma", "beta"):
        slopes = [(loss(name, i, step) - loss(name, i, -step)) / (2 * step) for i in range(inputs[name].size)]
        np.testing.assert_allclose(got[f"{name}_delta"].ravel(), slopes, rtol=0, atol=1e-8)


@pairwise(rank=[2, 3, 4, 7, 9], dtype=list(DTYPES), op_type=[BACKPROP, FORWARD])
def test_an_unknown_rank(rank, dtype, op_type, rng):
    inputs = draw(SHAPES[rank], dtype, rng)
    if op_type == BACKPROP:
        outputs, want, terms = BACKPROP_OUTPUTS, backprop(**inputs, eps=1e-3), 0.0
    else:
        outputs, want = FORWARD_OUTPUTS, training(**forward_inputs(inputs), eps=1e-3)
        terms = np.max(np.abs(inputs["input"]))  # of the batch_mean
    model, feeds = of_unknown_rank(op_type, inputs)
    flat = {name: value.ravel() for name, value in zip(outputs, want, strict=True)}
    result = check(model, feeds, flat, TOLERANCES[dtype], terms=terms)
    assert axes_of(next(node for node in result.graph if node.domain == "bngrad")) == [0, 2]


# ---- where the node is, and what is kept ----


def typed(text, dtype):
    return text.replace("float[", f"{dtype}[")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float", 1e-6), ("double", 1e-14), ("float16", 2e-3)])
def test_in_a_function(dtype, tolerance, rng):
    """Nothing is known of types there, so statistics in 16 bits are rounded once more."""
    text = f"""{header(17, "f")} g ({SIGNATURE}) => (dx, dgamma, dbeta, input_delta, gamma_delta, beta_delta) {{
        dx, dgamma, dbeta = {NODE}
        input_delta, gamma_delta, beta_delta = f.Block(gamma, beta, input, mean, variance, delta) }}
        <domain: "f", opset_import: ["" : 17]>
        Block (gamma, beta, input, mean, variance, delta) => (a, b, d) {{ a, b, d = {NODE} }}"""
    inputs = draw(NCHW, dtype, rng)
    want = dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=1e-3), strict=True))
    result = check(ir.from_proto(proto(typed(text, dtype))), {**inputs, "c": np.array(True)}, want, tolerance)
    (block,) = (function for key, function in result.functions.items() if key[0] == "f")
    assert [value.name for value in block.outputs] == ["a", "b", "d"]
    assert "BatchNormalizationGrad" in [node.op_type for node in block]


def test_in_a_branch(rng):
    model = ir.from_proto(
        proto(f"""g ({SIGNATURE}) => ({DATA} input_delta) {{
            input_delta = If(c) <
                then_branch = t () => ({DATA} u) {{ u, v, w = {NODE} }},
                else_branch = e () => ({DATA} z) {{ z = Identity(input) }}> }}""")
    )
    inputs = draw(NCHW, "float", rng)
    want = {"input_delta": backprop(**inputs, eps=1e-3)[0]}
    check(model, {**inputs, "c": np.array(True)}, want, 1e-6)
    check(model, {**inputs, "c": np.array(False)}, {"input_delta": inputs["input"]}, 0)


def test_names_texts_and_metadata_survive(rng):
    inputs = draw(NCHW, "float", rng)
    model = node_model(BACKPROP, inputs, BACKPROP_OUTPUTS, eps=1e-3)
    model.graph[0].doc_string = "about it"
    model.graph[0].metadata_props["from"] = "ngraph"
    ImportNgraphPass()(model)
    node = find(model, "BatchNormalizationGrad")
    assert (node.name, node.doc_string, node.metadata_props["from"]) == ("foreign", "about it", "ngraph")
    assert [value.name for value in node.outputs] == BACKPROP_OUTPUTS
    assert [value.name for value in node.inputs[:4]] == ["delta", "input", "gamma", "mean"]


@pytest.mark.parametrize("outputs", [["input_delta"], ["", "gamma_delta", ""], ["", "", "beta_delta"]], ids=str)
def test_unused_outputs(outputs, rng):
    inputs = draw(NCHW, "float", rng)
    want = dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=1e-3), strict=True))
    model = node_model(BACKPROP, inputs, outputs, eps=1e-3)
    result = check(model, inputs, {name: want[name] for name in outputs if name}, 1e-6)
    assert all(value.name for value in find(result, "BatchNormalizationGrad").outputs)


def test_idempotent(rng):
    model = node_model(BACKPROP, draw(NCHW, "float", rng), BACKPROP_OUTPUTS, eps=1e-3)
    assert ImportNgraphPass()(model).modified
    after = content(model)
    assert not ImportNgraphPass()(model).modified
    assert content(model) == after


@pytest.mark.parametrize("op_type", ["BatchNormInference", "BatchNormalization", "BatchNormTrainingGrad"])
def test_what_is_not_ours_is_left_alone(op_type):
    model = node_model(op_type, {"x": np.ones(1, np.float32)}, ["y"], domain="ngraph")
    before = content(model)
    assert not ImportNgraphPass()(model).modified
    assert content(model) == before


# ---- the documentation ----


def test_the_example_of_the_documentation(rng):
    text = (ROOT / "docs" / "reference" / "dialects" / "ngraph.md").read_text(encoding="utf-8")
    example = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]
    parsed = onnx.parser.parse_model(example)
    inputs = draw(NCHW, "float", rng)
    output, inputs["mean"], inputs["variance"] = training(**forward_inputs(inputs), eps=1e-3)
    want = {"output": output, **dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=1e-3), strict=True))}
    check(ir.from_proto(parsed), inputs, want, 1e-6)
