"""Nodes in the order of their depth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from bngrad.passes.optimize.order_by_depth import OrderByDepthPass
from pass_models import close, header, model, proto, run

CHAIN = (
    header(18)
    + """g (float[N] x, float[N] w) => (float[N] dx) {
    [a] y = Relu (x)
    [b] z = Exp (y)
    [c] dz = Mul (z, z)
    [d] dy = Mul (dz, z)
    [e] mask = Sign (y)
    [f] dx = Mul (dy, mask)
}"""
)
NESTED = (
    header(18)
    + """g (float[N] x, bool c) => (float[N] y) {
    [a] u = Relu (x)
    [b] v = Exp (u)
    [if] y = If (c) <
        then_branch = then () => (float[N] t) { [t] t = Neg (v) },
        else_branch = else () => (float[N] e) { [e] e = Identity (u) }
    >
    [d] z = Abs (x)
}"""
)


def names(ir_model):
    return [node.name for node in ir_model.graph]


def test_a_side_branch_comes_before_what_it_waits_for():
    ir_model = model(CHAIN)
    assert OrderByDepthPass()(ir_model).modified
    assert names(ir_model) == ["a", "b", "e", "c", "d", "f"]
    assert not OrderByDepthPass()(ir_model).modified


def test_what_a_subgraph_reads_counts():
    ir_model = model(NESTED)
    assert OrderByDepthPass()(ir_model).modified
    assert names(ir_model) == ["a", "d", "b", "if"]


@pytest.mark.parametrize("text", [CHAIN, NESTED], ids=["chain", "nested"])
def test_results_stay(text, rng):
    ir_model = model(text)
    OrderByDepthPass()(ir_model)
    feeds = {"x": rng.standard_normal(5, np.float32), "w": np.ones(5, np.float32), "c": np.array(True)}
    feeds = {value.name: feeds[value.name] for value in ir_model.graph.inputs}
    close(run(ir.to_proto(ir_model), feeds), run(proto(text), feeds), 0)


def run_order(ir_model, folder):
    """The names of the nodes in the order that ONNX Runtime runs them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(ir.to_proto(ir_model).SerializeToString(), options)
    session.run(None, {"x": np.ones(2, np.float32), "w": np.ones(2, np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    return [event["name"].removesuffix("_kernel_time") for event in sorted(kernels, key=lambda event: event["ts"])]


def test_onnxruntime_runs_the_side_branch_late(tmp_path):
    """The purpose of the pass; the order in which ONNX Runtime runs nodes is not documented."""
    ir_model = model(CHAIN)
    assert run_order(ir_model, tmp_path) == ["a", "e", "b", "c", "d", "f"]
    OrderByDepthPass()(ir_model)
    assert run_order(ir_model, tmp_path) == ["a", "b", "c", "d", "e", "f"]
