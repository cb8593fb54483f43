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


def names(given):
    return [node.name for node in given.graph]


def test_a_side_branch_comes_before_what_it_waits_for():
    given = model(CHAIN)
    assert OrderByDepthPass()(given).modified
    assert names(given) == ["a", "b", "e", "c", "d", "f"]
    assert not OrderByDepthPass()(given).modified


def test_what_a_subgraph_reads_counts():
    given = model(NESTED)
    assert OrderByDepthPass()(given).modified
    assert names(given) == ["a", "d", "b", "if"]


@pytest.mark.parametrize("text", [CHAIN, NESTED], ids=["chain", "nested"])
def test_results_stay(text, rng):
    given = model(text)
    OrderByDepthPass()(given)
    feeds = {"x": rng.standard_normal(5, np.float32), "w": np.ones(5, np.float32), "c": np.array(True)}
    feeds = {value.name: feeds[value.name] for value in given.graph.inputs}
    close(run(ir.to_proto(given), feeds), run(proto(text), feeds), 0)


def run_order(given, folder):
    """The names of the nodes in the order that ONNX Runtime runs them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(ir.to_proto(given).SerializeToString(), options)
    session.run(None, {"x": np.ones(2, np.float32), "w": np.ones(2, np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    return [event["name"].removesuffix("_kernel_time") for event in sorted(kernels, key=lambda event: event["ts"])]


def test_onnxruntime_runs_the_side_branch_late(tmp_path):
    """What the pass is for; how ONNX Runtime orders nodes is documented nowhere."""
    given = model(CHAIN)
    assert run_order(given, tmp_path) == ["a", "e", "b", "c", "d", "f"]
    OrderByDepthPass()(given)
    assert run_order(given, tmp_path) == ["a", "b", "c", "d", "e", "f"]
