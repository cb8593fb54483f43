"""A recognized batch norm is at least as exact as the primitives that it replaces."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import bngrad
from bench.bench_recognition import model_of

SLACK = 2
"""Units in the last place of the largest number of a tensor, where the primitives are exact by chance."""

DRAWS = 8

SHAPES = {"image": (4, 3, 5, 2), "sequence": (3, 2, 7), "matrix": (8, 3), "one sample": (1, 3, 4, 2)}
DATA = {"plain": (0.0, 1.0), "mean of 1000": (1000.0, 1.0), "tiny variance": (0.0, 1e-4)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("data", DATA)
def test_error_against_float64(shape, data):
    """Of one block: further ones amplify errors of both by chance."""
    proto = ir.to_proto(model_of(1, SHAPES[shape]))
    rewritten = bngrad.rewrite(proto)
    assert "Sqrt" not in {node.op_type for node in rewritten.graph.node}
    assert sum(node.domain == "bngrad" for node in rewritten.graph.node) == 2
    sessions, exactly = [bngrad.session(model) for model in (proto, rewritten)], in_float64(proto)
    for seed in range(DRAWS):
        feeds = drawn(proto, seed, *DATA[data])
        exact = exactly.run(None, {name: value.astype(np.float64) for name, value in feeds.items()})
        before, after = (session.run(None, feeds) for session in sessions)
        for output, true, old, new in zip(proto.graph.output, exact, before, after, strict=True):
            slack = SLACK * np.spacing(np.float32(np.abs(true).max()))
            assert np.abs(new - true).max() <= np.abs(old - true).max() + slack, output.name


def drawn(proto, seed, mean, deviation):
    random = np.random.default_rng(seed)
    feeds = {}
    for value in proto.graph.input:
        sizes = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(sizes).astype(np.float32)
    feeds["x"] = (feeds["x"] * deviation + mean).astype(np.float32)
    return feeds


def in_float64(proto):
    """The same primitives with all constants and values as float64."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return ReferenceEvaluator(model)
