"""A step of a ResNet with a symbolic batch hardly computes with shapes: ONNX Runtime does that on the CPU."""

from __future__ import annotations

from collections import Counter

import onnx
import onnxruntime
import pytest

import bngrad
from digits_training import MODEL

COMPUTE_INTEGERS = {"ConstantOfShape", "Min", "NonZero", "Range", "ReduceProd", "Shape", "Size"}


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_nodes_that_read_shapes(layout, tmp_path):
    step = bngrad.training_step(MODEL, optimizer=bngrad.SGD(momentum=0.9), layout=layout)
    nodes = optimized(step.model, tmp_path / "optimized.onnx")
    counts = Counter(node.op_type for node in nodes if node.op_type in COMPUTE_INTEGERS)
    assert counts == {"Shape": 5}  # of the labels, of their classes, a pool and a Flatten


def optimized(model, path):
    """The nodes that ONNX Runtime runs where nothing is registered: functions inlined, constants folded."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(path).graph.node
