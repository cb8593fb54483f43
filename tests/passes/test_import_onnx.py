"""ONNX's own training-mode BatchNormalization -> bngrad's, and the hazards that this removes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.opset import reference
from bngrad.passes.imports.onnx import ImportOnnxPass
from bngrad.passes.pipeline import rewrite
from ort_values import DTYPES
from pairwise import pairwise
from pass_models import (
    AXES_OF_RANK,
    attributes_of,
    axes_of,
    close,
    content,
    dims,
    feeds_for,
    find,
    header,
    model,
    ops,
    proto,
    run,
)


def batch_norm(rank, dtype="float", attributes="epsilon = 0.001, momentum = 0.8, "):
    data, c = f"{dtype}[{dims(rank)}]", f"{dtype}[3]"
    return f"""g ({data} x, {c} scale, {c} bias, {c} mean, {c} var) => ({data} y, {c} new_mean, {c} new_var) {{
        [bn] y, new_mean, new_var = BatchNormalization<{attributes}training_mode = 1>
            (x, scale, bias, mean, var) }}"""


def imported(text, opset=17):
    result = model(text, opset)
    assert ImportOnnxPass()(result).modified
    after = content(result)
    assert not ImportOnnxPass()(result).modified
    assert content(result) == after
    return result


def rewritten(original):
    return ir.to_proto(rewrite(ir.from_proto(original)).model)


@pytest.mark.parametrize("rank", AXES_OF_RANK)
def test_a_known_rank_gives_constant_axes(rank):
    result = imported(batch_norm(rank))
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationTraining"]
    assert axes_of(find(result, "BatchNormalizationTraining")) == AXES_OF_RANK[rank]


@pairwise(rank=[2, 3, 4, 5], opset=[14, 15, 17, 20], dtype=["float", "double"])
def test_the_same_numbers_as_stock_ort_where_that_is_safe(rank, opset, dtype, rng):
    """Every output is one of the graph's: then ORT's kernel overwrites nothing."""
    original = proto(batch_norm(rank, dtype), opset)
    feeds = feeds_for(original, rng, DTYPES[dtype])
    want = run(original, feeds)
    for implementation in ("function", "native"):
        close(run(rewritten(original), feeds, implementation), want, 1e-5 if dtype == "float" else 1e-12)


def test_inputs_attributes_and_names():
    bn = find(imported(batch_norm(4)), "BatchNormalizationTraining")
    assert bn.name == "bn"
    assert [v.name for v in bn.inputs[:5]] == ["x", "scale", "bias", "mean", "var"]
    assert [v.name for v in bn.outputs[:3]] == ["y", "new_mean", "new_var"]
    assert all(v.name for v in bn.outputs)
    assert attributes_of(bn) == pytest.approx({"epsilon": 1e-3, "momentum": 0.8, "unbiased_running_var": 0})


def test_the_defaults_are_those_of_onnx(rng):
    original = proto(batch_norm(4, attributes=""))
    bn = find(imported(batch_norm(4, attributes="")), "BatchNormalizationTraining")
    assert attributes_of(bn) == pytest.approx({"epsilon": 1e-5, "momentum": 0.9, "unbiased_running_var": 0})
    feeds = feeds_for(original, rng)
    close(run(rewritten(original), feeds), run(original, feeds))


HAZARDS = {
    "running-outputs-left-out": "y, , = BatchNormalization<training_mode = 1>(x, p, q, m, var)",
    "one-running-output-left-out": "y, a, = BatchNormalization<training_mode = 1>(x, p, q, m, var)",
    "one-output": "y = BatchNormalization<training_mode = 1>(x, p, q, m, var)",
    "running-outputs-unused": "y, a, b = BatchNormalization<training_mode = 1>(x, p, q, m, var)",
}


@pytest.mark.parametrize("case", HAZARDS)
@pytest.mark.parametrize("implementation", ["function", "python", "native"])
def test_what_is_not_safe_on_stock_ort_is_after_the_rewrite(case, implementation, rng):
    text = f"""g (float[{dims(4)}] x, float[3] p, float[3] q, float[3] m, float[3] var) => (float[{dims(4)}] y)
        {{ {HAZARDS[case]} }}"""
    original = proto(text)
    feeds = feeds_for(original, rng)
    kept = {name: value.copy() for name, value in feeds.items()}
    got = run(rewritten(original), feeds, implementation)
    arguments = (feeds[name] for name in ("x", "p", "q", "m", "var"))
    want = reference.batch_normalization_training(*arguments, (0, 2, 3), 1e-5, 0.9, unbiased_running_var=False)
    close(got, {"y": want.Y})
    for name, value in kept.items():
        np.testing.assert_array_equal(feeds[name], value, err_msg=f"{name} was overwritten")


def test_equal_initializers_are_not_overwritten(rng):
    """scale and var are equal, as at the start of every training; stock ORT merges them, and writes into them."""
    original = proto(f"""g (float[{dims(4)}] x) => (float[{dims(4)}] y) <float[3] scale = {{1, 1, 1}},
        float[3] bias = {{0, 0, 0}}, float[3] mean = {{0, 0, 0}}, float[3] var = {{1, 1, 1}}> {{
        y, a, b = BatchNormalization<training_mode = 1>(x, scale, bias, mean, var) }}""")
    feeds = feeds_for(original, rng)
    ones, zeros = np.ones(3), np.zeros(3)
    want = reference.batch_normalization_training(
        feeds["x"], ones, zeros, zeros, ones, (0, 2, 3), 1e-5, 0.9, False
    ).Y
    from bngrad.runtime.session import session

    for implementation in ("function", "native"):
        again = session(rewritten(original), implementation)
        for _ in range(3):
            close({"y": again.run(["y"], feeds)[0]}, {"y": want})


UNKNOWN_RANK = """g (float[K] flat, int64[R] to, float[3] p, float[3] q, float[3] m, float[3] var)
    => (float[K] y, float[3] new_mean, float[3] new_var) {
    all = Constant<value = int64[1] {-1}>()
    x = Reshape(flat, to)
    [bn] Y, new_mean, new_var = BatchNormalization<training_mode = 1>(x, p, q, m, var)
    y = Reshape(Y, all)
}"""


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 2, 4), (2, 3, 2, 2, 3)], ids=str)
def test_an_unknown_rank_gives_the_same_numbers(shape, rng):
    original = proto(UNKNOWN_RANK)
    feeds = feeds_for(original, rng, K=int(np.prod(shape)))
    feeds["to"] = np.array(shape, np.int64)
    close(run(rewritten(original), feeds), run(original, feeds))


def test_a_function_and_a_branch(rng):
    original = proto(
        header(17, "f")
        + f"""g (bool c, float[{dims(4)}] x, float[3] p, float[3] m, float[3] var) => (float[{dims(4)}] y) {{
        y = If(c) <
            then_branch = t () => (float[{dims(4)}] u) {{
                u, a, b = BatchNormalization<training_mode = 1>(x, p, p, m, var) }},
            else_branch = e () => (float[{dims(4)}] v) {{ v = f.Block(x, p, p, m, var) }}>
    }}
    <domain: "f", opset_import: ["" : 17]>
    Block (x, scale, bias, mean, var) => (y) {{
        y, a, b = BatchNormalization<training_mode: int = 1>(x, scale, bias, mean, var)
    }}"""
    )
    result = rewritten(original)
    assert ops(ir.from_proto(result)).count("bngrad.BatchNormalizationTraining") == 2
    feeds = feeds_for(original, rng)
    arguments = [feeds[name] for name in ("x", "p", "p", "m", "var")]
    want = reference.batch_normalization_training(*arguments, (0, 2, 3), 1e-5, 0.9, unbiased_running_var=False)
    for condition in (True, False):
        feeds["c"] = np.array(condition)
        close(run(result, feeds), {"y": want.Y})


FROZEN = {
    "training-mode-0": "y = BatchNormalization<training_mode = 0>(x, p, p, p, p)",
    "no-training-mode": "y = BatchNormalization(x, p, p, p, p)",
    "another-domain": "y = com.microsoft.BatchNormalization<training_mode = 1>(x, p, p, p, p)",
    "another-op": "y = InstanceNormalization(x, p, p)",
}


@pytest.mark.parametrize("case", FROZEN)
def test_what_is_not_training_is_left_alone(case):
    result = model(f"g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{ {FROZEN[case]} }}")
    before = content(result)
    assert not ImportOnnxPass()(result).modified
    assert content(result) == before
    assert not is_training_batch_norm(result.graph[0])


def test_a_frozen_one_beside_one_in_training_stays():
    result = imported(f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
        z, a, b = BatchNormalization<training_mode = 1>(x, p, p, p, p)
        [frozen] y = BatchNormalization(z, p, p, p, p) }}""")
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationTraining", "BatchNormalization"]


REFUSED = {
    "integers": (
        batch_norm(4, "int32"),
        (
            "BatchNormalization node 'bn' (outputs y, new_mean, new_var) cannot be rewritten: its "
            "input 'x' is int32; expected one of float, double, float16, bfloat16"
        ),
    ),
    "float16-statistics-of-float": (
        batch_norm(4).replace("float[3] var", "float16[3] var"),
        "its input 'var' is float16; expected float",
    ),
    "double-statistics-of-float16": (
        batch_norm(4, "float16").replace("float16[3] var", "double[3] var"),
        "its input 'var' is double; expected float or float16",
    ),
    "rank-1": (
        batch_norm(4).replace(f"float[{dims(4)}]", "float[3]"),
        "its input 'scale' has shape [3]; expected [1]",
    ),
    "rank-9": (batch_norm(9), "its X has rank 9; expected 1 to 8 ([N, C, ...])"),
    "four-inputs": (batch_norm(4).replace(", mean, var)", ", mean)"), "it has 4 inputs; expected 5, all present"),
    "an-input-left-out": (
        batch_norm(4).replace(", mean, var)", ", , var)"),
        "it has 4 of 5 inputs; expected 5, all present",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_node_and_the_reason_and_changes_nothing(case):
    text, reason = REFUSED[case]
    result = model(text)
    before = content(result)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportOnnxPass()(result)
    assert "BatchNormalization node 'bn'" in str(error.value)
    assert reason in str(error.value)
    assert content(result) == before


OLD = {
    "per-activation-at-7": (
        7,
        "y = BatchNormalization<spatial = 0>(x, p, p, p, p)",
        "has spatial = 0, a scale for",
    ),
    "inference-at-9": (9, "y = BatchNormalization(x, p, p, p, p)", "the model has no batch norm in training mode"),
}


@pytest.mark.parametrize("case", OLD)
def test_the_training_mode_of_old_opsets_is_refused_not_taken_for_frozen(case):
    """Before opset 14 it was the number of outputs that said it."""
    opset, node, reason = OLD[case]
    original = proto(f"g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{ {node} }}", opset)
    with pytest.raises(ModelError) as error:
        rewrite(ir.from_proto(original))
    assert reason in str(error.value)
