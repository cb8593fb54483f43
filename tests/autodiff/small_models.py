"""Small forward models of any kind, and their training graphs."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir

from autodiff.gradient_cases import in_standard_onnx
from bngrad.autodiff.training_graph import training_graph
from bngrad.validation.float64 import evaluate

X = np.array([0.5, -1.5, 2.0], np.float32)
"""The feeds of models of one float[3] x."""

SUM = "loss = ReduceSum <keepdims = 0> (y)"
"""The loss of models that compute y."""

BRANCHES = """y = If(c) <then_branch = t () => (float[3] p) { p = Exp(x) },
    else_branch = e () => (float[3] q) { q = Neg(x) }>"""
"""Nodes in bodies that do not have x as an input."""


def model(inputs, body, *, initializers="", outputs="float loss", opset=18, functions=""):
    initializers = f"<{initializers}>" if initializers else ""
    domains = f'"" : {opset}, "com.microsoft" : 1, "local" : 1'
    graph = f"g ({inputs}) => ({outputs}) {initializers} {{ {body} }}"
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]>\n{graph}{functions}")


def summed(inputs, body, **options):
    """A model whose loss is the sum of y."""
    return model(inputs, f"{body} {SUM}", **options)


def differentiated(forward, **options):
    return training_graph(ir.from_proto(forward), **options).model


def output_names(training):
    return [value.name for value in training.graph.outputs]


def gradients(forward, feeds, **options):
    """All outputs of the training graph, in float64."""
    return evaluate(in_standard_onnx(differentiated(forward, **options)), feeds)
