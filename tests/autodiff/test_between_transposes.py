"""Every case between two transposes, which ONNX Runtime's optimizer moves through the nodes of its gradient."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from autodiff.gradient_cases import feeds_of, forward, in_standard_onnx
from autodiff.test_rules import TABLES
from bngrad.autodiff.training_graph import training_graph

Level = ort.GraphOptimizationLevel
ORT_ERRORS = (RuntimeException, Fail, InvalidArgument)
CASES = [case for cases in TABLES.values() for case in cases]


def permutation(rank):
    """[N, C, H, W] of [N, H, W, C]; the two dimensions of a matrix exchanged."""
    return [1, 0] if rank == 2 else [0, rank - 1, *range(1, rank - 1)]


def back(rank):
    return np.argsort(permutation(rank)).tolist()


def between_transposes(case, feeds):
    """The model of a case with what it is differentiated by, and its outputs, transposed; and the same feeds."""
    model, feeds = onnx.ModelProto(), dict(feeds)
    model.CopyFrom(forward(case))
    graph = model.graph
    front, behind = [], []
    for value in graph.input:
        rank, weight = feeds[value.name].ndim, value.name.removesuffix("_weight")
        if rank < 2 or not (value.name in case.wrt or weight in case.outputs):
            continue
        extents = value.type.tensor_type.shape.dim
        old = [onnx.TensorShapeProto.Dimension.FromString(extent.SerializeToString()) for extent in extents]
        for extent, place in zip(extents, back(rank), strict=False):
            extent.CopyFrom(old[place])
        feeds[value.name] = np.ascontiguousarray(feeds[value.name].transpose(back(rank)))
        if value.name in case.wrt:
            front.append(_transpose(graph, value.name, permutation(rank), range(len(graph.node))))
        else:
            weighing = [i for i, node in enumerate(graph.node) if value.name in node.input]
            behind.append(_transpose(graph, weight, back(rank), weighing))
    nodes = list(graph.node)
    del graph.node[:]
    first = next(i for i, node in enumerate(nodes) if node.name.startswith("weigh_"))
    graph.node.extend([*front, *nodes[:first], *behind, *nodes[first:]])
    onnx.checker.check_model(model)
    return model, feeds


def _transpose(graph, name, perm, readers):
    """A Transpose of a value, which some of the nodes read in its place."""
    for index in readers:
        node = graph.node[index]
        node.input[:] = [f"{name}_transposed" if read == name else read for read in node.input]
    return helper.make_node("Transpose", [name], [f"{name}_transposed"], f"transpose_{name}", perm=perm)


def run(model, feeds, names, level):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    return session.run(names, {name: array for name, array in feeds.items() if name in given})


def gradients_alone(training, case):
    """The training graph without the forward nodes that no gradient needs."""
    model = ir.from_proto(training)
    wanted = [value for value in model.graph.outputs if value.name in case.gradients]
    model.graph.outputs.clear()
    model.graph.outputs.extend(wanted)
    RemoveUnusedNodesPass()(model)
    return ir.to_proto(model)


def runs_forward(model, feeds):
    try:
        run(model, feeds, ["loss"], Level.ORT_ENABLE_ALL)
    except ORT_ERRORS:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_the_same_optimized(case):
    model, feeds = between_transposes(case, feeds_of(case, case.dims[0]))
    training = training_graph(ir.from_proto(model), loss="loss", wrt=case.wrt)[0]
    lowered = gradients_alone(in_standard_onnx(training), case)
    plain = run(lowered, feeds, case.gradients, Level.ORT_DISABLE_ALL)
    try:
        optimized = run(lowered, feeds, case.gradients, Level.ORT_ENABLE_ALL)
    except ORT_ERRORS:
        if not runs_forward(model, feeds):
            pytest.skip("ONNX Runtime's optimizer breaks the forward model")
        raise
    for name, got, want in zip(case.wrt, optimized, plain, strict=True):
        assert got.shape == want.shape == feeds[name].shape
        limit = case.float_limit * max(float(np.max(np.abs(want), initial=0.0)), 1e-30)
        assert np.max(np.abs(got - want), initial=0.0) <= limit
