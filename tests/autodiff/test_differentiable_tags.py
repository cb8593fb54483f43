"""The inputs that onnx tags as differentiable, of every op of the newest opset, and our gradients of them."""

from __future__ import annotations

import onnx
import pytest

from bngrad.autodiff.expansion import function_versions
from bngrad.autodiff.rules import RULES
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.opset.functions import NEWEST_OPSET

OPSET = min(onnx.defs.onnx_opset_version(), NEWEST_OPSET)
FLOATS = {f"tensor({dtype.name.lower()})" for dtype in SUPPORTED_DTYPES}
ZERO = {("Hardmax", "input"): "the output is piecewise constant"}
"""The tagged inputs whose gradient is 0, with the reasons."""


def tagged(op):
    """The places and names of the float inputs of an op that onnx tags."""
    schema = onnx.defs.get_schema(op, OPSET)
    kind = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
    inputs = enumerate(() if schema.deprecated else schema.inputs)
    return [(i, x.name) for i, x in inputs if x.differentiation_category == kind and FLOATS & x.types]


OPS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and onnx.defs.has(s.name, OPSET)})
TAGGED = [(op, index, name) for op in OPS for index, name in tagged(op)]


def test_onnx_tags_inputs():
    assert len({op for op, _, _ in TAGGED}) > 100


@pytest.mark.skipif(OPSET < NEWEST_OPSET, reason=f"this onnx has no ops of opset {NEWEST_OPSET}")
def test_the_tagged_inputs_without_a_gradient():
    """There are none, but those whose gradient is 0."""
    refused, zero = set(), set()
    for op, index, name in TAGGED:
        rule = RULES.get(("", op))
        if rule is None:
            # The gradient of a function is that of its nodes; test_expansion.py tests those of onnx.
            refused |= set() if function_versions(op, OPSET) else {(op, name)}
        elif not rule.differentiates(index):
            (zero if index in rule.zero else refused).add((op, name))
    assert refused == set()
    assert zero == ZERO.keys()
