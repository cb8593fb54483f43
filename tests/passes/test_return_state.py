"""State that ORT's training ops update in place, returned by the rewritten graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from pass_models import close, feeds_for, header, proto, run

# What onnxruntime.training's generate_artifacts writes: nothing reads the new running statistics.
ARTIFACT = """g (float[N,2,4] X, float[N,2,4] dY, float[2] s, float[2] b, float[2] mu, float[2] var,
    float[2] buffer, bool[1] lazy_reset_grad)
    => (float[N,2,4] Y, bool[1] done) {
    [bn] Y, rm, rv, sm, sv = com.microsoft.BatchNormInternal<training_mode = 1, epsilon = 0.00001, momentum = 0.9>
        (X, s, b, mu, var)
    [grad] dX, s_grad, b_grad = com.microsoft.BatchNormalizationGrad<epsilon = 0.00001>(dY, X, s, sm, sv)
    [acc] done = com.microsoft.InPlaceAccumulatorV2
        (buffer, s_grad, lazy_reset_grad) }"""
STATISTICS = {"mu": "rm", "var": "rv"}
BUFFER = {"buffer": "buffer_new"}


def rewritten(text, **options):
    answer = rewrite(ir.from_proto(proto(text)), **options)
    return ir.to_proto(answer.model), answer


def outputs(model):
    return [value.name for value in model.graph.output]


@pytest.mark.parametrize(("target", "state"), [("stock", {**STATISTICS, **BUFFER}), ("training", STATISTICS)])
def test_state_becomes_outputs(target, state):
    model, answer = rewritten(ARTIFACT, target=target)
    assert answer.state == state
    assert outputs(model) == ["Y", "done", *state.values()]
    assert [value.name for value in model.graph.input] == [value.name for value in proto(ARTIFACT).graph.input]
    again = rewrite(ir.from_proto(model), target=target).model
    assert [value.name for value in again.graph.outputs] == outputs(model)


def _batch_norm(x, dy, epsilon=1e-5):
    mean, var = x.mean((0, 2)), x.var((0, 2))
    xhat = (x - mean[:, None]) / np.sqrt(var[:, None] + epsilon)
    return mean, var, (dy * xhat).sum((0, 2))


@pytest.mark.parametrize("implementation", ["function", "native"])
def test_steps_that_feed_the_state_back(implementation, rng):
    """Two steps that accumulate, then one that begins anew."""
    model, answer = rewritten(ARTIFACT)
    feeds = feeds_for(model, rng)
    mean, var = feeds["mu"].astype(np.float64), feeds["var"].astype(np.float64)
    total = feeds["buffer"].astype(np.float64)
    for reset in (False, False, True):
        feeds["X"], feeds["dY"] = (rng.standard_normal((3, 2, 4)).astype(np.float32) for _ in "xy")
        feeds["lazy_reset_grad"] = np.array([reset])
        got = run(model, feeds, implementation)
        batch_mean, batch_var, gradient = _batch_norm(*(feeds[n].astype(np.float64) for n in ("X", "dY")))
        mean, var = 0.9 * mean + 0.1 * batch_mean, 0.9 * var + 0.1 * batch_var
        total = gradient if reset else total + gradient
        assert got["done"].tolist() == [True]
        state = {name: got[output] for name, output in answer.state.items()}
        close(state, {"mu": mean, "var": var, "buffer": total})
        feeds.update(state)


def test_an_accumulator_computes_what_the_training_build_does(oracle, rng):
    text = """g (float[2,3] buffer, float[2,3] x, bool[1] reset) => (bool[1] done, float[2,3] sum) {
        gradient = Neg(x)
        done, sum = com.microsoft.InPlaceAccumulatorV2(buffer, gradient, reset) }"""
    model, answer = rewritten(text)
    assert answer.state == {"buffer": "sum"}
    assert outputs(model) == ["done", "sum"]
    for reset in (False, True):
        feeds = {**feeds_for(model, rng), "reset": np.array([reset])}
        feeds["buffer"][0, 0] = np.nan
        close(run(model, feeds), oracle.run(proto(text), feeds))


ACCUMULATORS = {
    "scalar": ("float buffer, float x, bool[1] reset", "buffer, x, reset", 3.0),
    "no-reset": ("float[2] buffer, float[2] x", "buffer, x", [3, 3]),
    "float16-gradient": ("float[2] buffer, float16[2] x, bool[1] reset", "buffer, x, reset", [3, 3]),
    "double": ("double[2] buffer, double[2] x, bool reset", "buffer, x, reset", [3, 3]),
}


@pytest.mark.parametrize("case", ACCUMULATORS)
def test_forms_of_an_accumulator(case):
    inputs, arguments, want = ACCUMULATORS[case]
    model, answer = rewritten(
        f"g ({inputs}) => (bool[1] done) {{ done = com.microsoft.InPlaceAccumulatorV2({arguments}) }}"
    )
    assert answer.state == {"buffer": "buffer_new"}
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value for dim in tensor.shape.dim]
        feeds[value.name] = np.full(shape, {"buffer": 1, "x": 2, "reset": 0}[value.name], dtype)
    got = run(model, feeds)["buffer_new"]
    assert got.shape == feeds["buffer"].shape
    assert got.dtype == feeds["buffer"].dtype
    np.testing.assert_array_equal(got, want)


def test_initializers_become_inputs_with_defaults(rng):
    """A statistic that is not an input of the artifact changes only inside ORT's session."""
    text = ARTIFACT.replace(", float[2] mu, float[2] var", "").replace(
        "{\n", "<float[2] mu = {1, 2}, float[2] var = {3, 4}> {\n", 1
    )
    model, answer = rewritten(text)
    assert answer.state == {**STATISTICS, **BUFFER}
    assert {"mu", "var"} < {value.name for value in model.graph.input}
    feeds = {**feeds_for(model, rng), "lazy_reset_grad": np.array([True])}
    del feeds["mu"], feeds["var"]
    mean, _, _ = _batch_norm(feeds["X"], feeds["dY"])
    np.testing.assert_allclose(run(model, feeds)["rm"], 0.9 * np.array([1, 2]) + 0.1 * mean, rtol=1e-5)


def test_a_shared_statistic_is_updated_by_one_node_after_the_other(rng):
    model, answer = rewritten("""g (float[N,2] x, float[2] p, float[2] mu, float[2] var) => (float[N,2] z) {
        y, m1, v1, a, b = com.microsoft.BatchNormInternal<momentum = 0.5>(x, p, p, mu, var)
        z, , , c, d = com.microsoft.BatchNormInternal<momentum = 0.5>(y, p, p, mu, var) }""")
    assert answer.state == {"mu": "m1_new", "var": "v1_new"}
    feeds = feeds_for(model, rng)
    got = run(model, feeds)
    # The second batch norm's input has the mean p.
    want = 0.5 * (0.5 * feeds["mu"] + 0.5 * feeds["x"].mean(0)) + 0.5 * feeds["p"]
    np.testing.assert_allclose(got["m1_new"], want, rtol=1e-4, atol=1e-6)


def test_a_statistic_that_a_graph_hands_on_itself_is_returned_once():
    _, answer = rewritten("""g (float[N,2] x, float[2] p, float[2] mu, float[2] var) => (float[N,2] z) {
        y, m1, v1, a, b = com.microsoft.BatchNormInternal(x, p, p, mu, var)
        z, m2, v2, c, d = com.microsoft.BatchNormInternal(y, p, p, m1, v1) }""")
    assert answer.state == {"mu": "m2", "var": "v2"}


UNMOVED = {
    "function": (
        """g (float[N,2] x, float[2] p, float[2] q) => (float[N,2] y) { y = f.Block(x, p, q) }
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        Block (x, p, q) => (y) { [bn] y, m, v, a, b = com.microsoft.BatchNormInternal(x, p, p, q, q) }""",
        "com.microsoft.BatchNormInternal node 'bn' (outputs y, m, v, a, b)",
    ),
    "onnx": (
        """g (float[N,2] x, float[2] p, float[2] q) => (float[N,2] y) {
            [bn] y, m, v = BatchNormalization<training_mode = 1>(x, p, p, q, q) }""",
        "BatchNormalization node 'bn' (outputs y, m, v)",
    ),
}


@pytest.mark.parametrize("case", UNMOVED)
def test_state_that_stays_inside_is_named(case):
    text, node = UNMOVED[case]
    answer = rewrite(ir.from_proto(proto(header(17, "f", "com.microsoft") + text)))
    assert answer.state == {}
    (note,) = answer.notes
    assert note == (
        f"ONNX Runtime updates the running statistics of {node} in place; the rewritten op does not: "
        "to use the new ones, make them graph outputs"
    )


REFUSED = {
    "in-a-branch": (
        """g (bool c, float[2] buffer, float[2] x, bool[1] reset) => (bool[1] done) {
            done = If(c) <
                then_branch = t () => (bool[1] u) { u = com.microsoft.InPlaceAccumulatorV2(buffer, x, reset) },
                else_branch = e () => (bool[1] v) { v = Identity(reset) }> }""",
        (
            "com.microsoft.InPlaceAccumulatorV2 node (outputs u) cannot be rewritten: it is in a subgraph or a "
            "function, which cannot return the new value of its buffer; expected it in the main graph"
        ),
    ),
    "one-buffer-for-two": (
        """g (float[2] buffer, float[2] x, bool[1] reset) => (bool[1] done, bool[1] too) {
            [a] done = com.microsoft.InPlaceAccumulatorV2(buffer, x, reset)
            [b] too = com.microsoft.InPlaceAccumulatorV2(buffer, x, reset) }""",
        (
            "com.microsoft.InPlaceAccumulatorV2 node 'a' (outputs done) cannot be rewritten: its buffer 'buffer' "
            "is updated by another node too; expected a buffer for each (and 1 more)"
        ),
    ),
    "no-gradient": (
        "g (float[2] buffer) => (bool[1] done) { [acc] done = com.microsoft.InPlaceAccumulatorV2(buffer) }",
        (
            "com.microsoft.InPlaceAccumulatorV2 node 'acc' (outputs done) cannot be rewritten: it lacks an input; "
            "expected an accumulation buffer and a gradient"
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, message = REFUSED[case]
    with pytest.raises(UnsupportedNodeError) as error:
        rewrite(ir.from_proto(proto(text)))
    assert str(error.value) == message
