"""Training graphs of other systems, whose loss is that of a rank: over equal batches, gradients are averaged."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from emulated_ranks import Ranks
from pass_models import header, internal_and_grad, proto

FILES = pathlib.Path(__file__).parents[1] / "decomposed" / "files"
X, C, P = "float[N,3,4,4]", "float[3]", "float[1,3,1,1]"
MIOPEN = "bn_mode = 1, epsilon = 0.001"
GRAPHS = {
    "ONNX Runtime": internal_and_grad(4),
    "MIOpen": f"""g ({X} x, {X} dy, {P} s, {P} b, {P} m, {P} var)
        => ({X} y, {P} nm, {P} nv, {X} dx, {P} ds, {P} db) {{
        [f] y, nm, nv, sm, sv = miopen.miopenBatchNormalizationForwardTraining <{MIOPEN}, expAvgFactor = 0.1>
            (x, s, b, m, var)
        [g] dx, ds, db = miopen.miopenBatchNormalizationBackward <{MIOPEN}> (x, dy, s, sm, sv) }}""",
    "TensorFlow": f"""g (float[N,4,4,3] x, float[N,4,4,3] dy, {C} s, {C} b, {C} m, {C} var)
        => (float[N,4,4,3] y, {C} nm, {C} nv, float[N,4,4,3] dx, {C} ds, {C} db) {{
        [f] y, nm, nv, r1, r2, r3 = tf.FusedBatchNormV3 <is_training = 1, exponential_avg_factor = 0.1>
            (x, s, b, m, var)
        [g] dx, ds, db, e4, e5 = tf.FusedBatchNormGradV3 <is_training = 1> (dy, x, s, r1, r2, r3) }}""",
}
DATA = ("x", "dy", "y", "dx", "input", "target", "t", "output")


def feeds_of(graph, rng, rows):
    feeds = {}
    for value in graph.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else rows for dim in tensor.shape.dim]
        if tensor.elem_type == onnx.TensorProto.INT64:
            feeds[value.name] = rng.integers(0, 3, shape)
        else:
            drawn = rng.uniform(0.5, 2, shape) if "var" in value.name else rng.standard_normal(shape)
            feeds[value.name] = drawn.astype(np.float32)
    return feeds


def shards(feeds, ends):
    return [
        {name: value[start:end] if name in DATA else value for name, value in feeds.items()}
        for start, end in itertools.pairwise(ends)
    ]


@pytest.mark.parametrize("system", GRAPHS)
def test_a_batch_norm_and_its_gradient(system, rng):
    text = proto(header(17, "com.microsoft", "miopen", "tf") + GRAPHS[system])
    synced, whole = (ir.to_proto(rewrite(ir.from_proto(text), sync=sync).model) for sync in (True, False))
    feeds = feeds_of(text, rng, 5)
    (want,) = Ranks(1).run(whole, [feeds])
    results = Ranks(2).run(synced, shards(feeds, [0, 3, 5]))
    for name, value in want.items():
        parts = [result[name] for result in results]
        if name in DATA:
            got = np.concatenate(parts)
        else:  # the gradients of the rows of a rank add up; the statistics are those of the whole batch
            got = np.sum(parts, axis=0) if name.startswith("d") else parts[0]
        np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", ["joint_conv_bn_relu.onnxtxt", "jax_fast_n.onnx"])
def test_a_training_graph_in_primitives(name, rng):
    file = FILES / name
    original = onnx.parser.parse_model(file.read_text()) if file.suffix == ".onnxtxt" else onnx.load(file)
    synced, whole = (ir.to_proto(rewrite(ir.from_proto(original), sync=sync).model) for sync in (True, False))
    feeds = feeds_of(original, rng, 6)
    (want,) = Ranks(1).run(whole, [feeds])
    results = Ranks(2).run(synced, shards(feeds, [0, 3, 6]))
    for key, value in want.items():
        parts = [result[key] for result in results]
        if key.endswith("running_var_new"):
            continue  # PyTorch's graph itself multiplies by M / (M - 1), with the M of the rank
        got = np.concatenate(parts) if key in DATA else np.mean(parts, axis=0)
        np.testing.assert_allclose(got, value, rtol=2e-4, atol=2e-5, err_msg=key)


REFUSED = {
    "nGraph": f"""g ({C} s, {C} b, {X} x, {C} m, {C} v, {X} dy) => ({X} dx)
        {{ [f] dx, ds, db = BatchNormTrainingBackprop <eps = 0.001> (s, b, x, m, v, dy) }}""",
    "ATen": f"""g ({X} dy, {X} x, {C} s, {C} m, {C} v) => ({X} dx)
        {{ [f] dx, ds, db = aten.native_batch_norm_backward
            <train = 1, eps = 0.001, output_mask = [1, 1, 1]> (dy, x, s, , , m, v) }}""",
    "MIOpen without saved statistics": f"""g ({X} x, {X} dy, {P} s) => ({X} dx)
        {{ [f] dx, ds, db = miopen.miopenBatchNormalizationBackward <{MIOPEN}> (x, dy, s) }}""",
}


@pytest.mark.parametrize("system", REFUSED)
def test_a_gradient_without_its_forward_node_is_refused(system):
    text = proto(header(17, "miopen", "aten") + REFUSED[system])
    with pytest.raises(UnsupportedNodeError, match=r"node 'f' .*: its statistics .* are not those of a BatchNorm"):
        rewrite(ir.from_proto(text), sync=True)
