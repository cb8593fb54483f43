"""The gradients of a ReLU and of the batch norm before it become one op, or stay two."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bngrad.passes.optimize.fuse_relu import FuseReluPass
from bngrad.passes.pipeline import rewrite
from pass_models import close, feeds_for, header, model, ops, proto, run

VALUES = "float[N,3,4] dz, float[N,3,4] z, float[N,3,4] x, float[3] scale, float[3] mean, float[3] inv_std"
RESULTS = "float[N,3,4] dx, float[3] dscale, float[3] dbias"
BACKWARD = """axes = Constant <value_ints = [0, 2]> ()
    [relu] dy = com.microsoft.ReluGrad (dz, z)
    [bn] dx, dscale, dbias =
        bngrad.BatchNormalizationGrad <training_mode = MODE> (dy, x, scale, mean, inv_std, axes)
"""


def graph(body, results=RESULTS):
    return header(17, "com.microsoft", "bngrad") + f"g ({VALUES}) => ({results}) {{ {body} }}"


@pytest.mark.parametrize("mode", [1, 0], ids=["training", "frozen"])
@pytest.mark.parametrize("implementation", ["function", "native", "python"])
def test_fused_computes_the_same(mode, implementation, rng):
    original = proto(graph(BACKWARD.replace("MODE", str(mode))))
    fused = rewrite(ir.from_proto(original)).model
    apart = rewrite(ir.from_proto(original), fuse=False).model
    assert [op for op in ops(fused) if "bngrad" in op] == ["bngrad.BatchNormalizationReluGrad"]
    assert [op for op in ops(apart) if "bngrad" in op] == ["bngrad.BatchNormalizationGrad"]
    feeds = feeds_for(original, rng)
    close(run(ir.to_proto(fused), feeds, implementation), run(ir.to_proto(apart), feeds, implementation), 1e-6)


def test_names_stay():
    ir_model = model(graph(BACKWARD.replace("MODE", "1")))
    assert FuseReluPass()(ir_model).modified
    (node,) = [node for node in ir_model.graph if node.domain == "bngrad"]
    assert (node.name, node.op_type) == ("bn", "BatchNormalizationReluGrad")
    assert [value.name for value in node.inputs] == ["dz", "z", "x", "scale", "mean", "inv_std", "axes"]
    assert not FuseReluPass()(ir_model).modified


LEFT_ALONE = {
    "another reader": (BACKWARD + "    other = Neg (dy)", f"{RESULTS}, float[N,3,4] other"),
    "an output of the graph": (BACKWARD, f"{RESULTS}, float[N,3,4] dy"),
    "another activation": (BACKWARD.replace("ReluGrad", "TanhGrad"), RESULTS),
    "a gradient of one input": (BACKWARD.replace("(dz, z)", "(dz)"), RESULTS),
    "a gradient of three inputs": (BACKWARD.replace("(dz, z)", "(dz, z, z)"), RESULTS),
    "another place in the node": (
        BACKWARD.replace("(dy, x, scale", "(x, dy, scale"),
        RESULTS,
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case):
    body, results = LEFT_ALONE[case]
    ir_model = model(graph(body.replace("MODE", "1"), results))
    before = ops(ir_model)
    assert not FuseReluPass()(ir_model).modified
    assert ops(ir_model) == before
