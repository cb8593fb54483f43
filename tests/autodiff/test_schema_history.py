"""The definitions of ops in onnx and ONNX Runtime, compared with those that the gradient rules support.

A test that fails with a newer onnx names a definition that nobody has compared with the rule yet: read what is new
in it, mend the rule or leave the version out, and then add it to the table.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from unittest.mock import patch

import onnx
import pytest

from autodiff.small_models import SUM, differentiated, model, output_names
from bngrad.autodiff.prepare_forward import OPSET
from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules import RULES
from bngrad.autodiff.rules.without_rule import WITHOUT_RULE
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT

FLOATS = {f"tensor({dtype.name.lower()})" for dtype in SUPPORTED_DTYPES}
OF_ORT = {"AveragePoolGrad", "MaxPoolGrad", "SimplifiedLayerNormalization"}
"""In the default domain because bngrad registers them: ONNX Runtime's builder or optimizer writes them."""
REFUSED = {("Dropout", 1), ("MaxRoiPool", 1), ("Resize", 1), ("Resize", 2), ("RoiAlign", 1)}
"""Float inputs that must be constant; test_refusals.py tests them."""
OTHER_TYPES = {"If": (0,), "Loop": (0, 1), "DequantizeLinear": (0, 2)}
"""Inputs of other types than float, beside which all inputs, and what bodies or roundings read, have gradients."""
CONSTANTS = {"MatMulNBits": 4}
"""The number of inputs of an op of ONNX Runtime that must be constant."""
NEWEST = onnx.defs.onnx_opset_version() >= NEWEST_OPSET


def history():
    """The definitions of each op of the default domain, ascending."""
    by_name = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name not in OF_ORT:
            by_name[schema.name].append(schema)
    return {name: sorted(schemas, key=lambda schema: schema.since_version) for name, schemas in by_name.items()}


HISTORY = history()
ONNX_RULES = {op: rule for (domain, op), rule in RULES.items() if domain == ""}
LOADED = [op for op in ONNX_RULES if NEWEST or op in HISTORY]


def known(op):
    """The definitions that a model can have once it is raised to `OPSET`, deprecated ones aside."""
    schemas = HISTORY[op]
    oldest = max((s.since_version for s in schemas if s.since_version <= OPSET), default=0)
    return [schema for schema in schemas if schema.since_version >= oldest and not schema.deprecated]


def test_no_op_has_a_rule_and_a_reason_for_none():
    assert not ONNX_RULES.keys() & WITHOUT_RULE.keys()
    if NEWEST:
        assert sorted((ONNX_RULES.keys() | WITHOUT_RULE.keys()) - HISTORY.keys()) == []


def test_an_op_has_one_rule():
    with pytest.raises(ValueError, match=r"^\.Relu has two gradient rules$"):
        gradient("Relu")(lambda back: [back.dY])


@pytest.mark.parametrize("op", LOADED)
def test_versions(op):
    versions = [schema.since_version for schema in known(op)]
    assert list(ONNX_RULES[op].versions)[: None if NEWEST else len(versions)] == versions


@pytest.mark.parametrize("op", LOADED)
def test_attributes(op):
    attributes = {name for schema in known(op) for name in schema.attributes}
    # The gradient of a batch norm in training mode is that of BatchNormInternal.
    rule = ONNX_RULES[op]
    assert attributes <= set(rule.attributes)
    if NEWEST:
        assert attributes == set(rule.attributes)


@pytest.mark.parametrize("op", LOADED)
def test_every_float_input_has_a_gradient_or_none_by_mathematics(op):
    rule = ONNX_RULES[op]
    for schema in known(op):
        floats = {index for index, parameter in enumerate(schema.inputs) if FLOATS & parameter.types}
        assert floats == {
            index
            for index in range(len(schema.inputs))
            if rule.differentiates(index) or index in rule.zero or (op, index) in REFUSED
        } - set(OTHER_TYPES.get(op, ()))
        if rule.inputs is None and op not in ("If", "DequantizeLinear"):
            assert schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    assert not set(rule.inputs or ()) & set(rule.zero)


@pytest.mark.parametrize("op", sorted(HISTORY.keys() - ONNX_RULES.keys()))
def test_what_is_said_of_ops_without_a_rule(op):
    schema = HISTORY[op][-1]
    inputs, outputs = (any(FLOATS & p.types for p in part) for part in (schema.inputs, schema.outputs))
    reason = WITHOUT_RULE.get(op)
    assert (reason == "deprecated") == schema.deprecated
    if reason == "no float output":
        assert not outputs
    elif reason == "no float input":
        assert not inputs
    elif reason is None:
        assert inputs
        assert outputs


@pytest.mark.parametrize(
    "op", [op for domain, op in RULES if domain == MICROSOFT and op != BATCH_NORM_INTERNAL[1]]
)
def test_attributes_of_ops_of_ort(op):
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    (schema,) = (s for s in ort.get_all_operator_schema() if (s.domain, s.name) == (MICROSOFT, op))
    rule = RULES[MICROSOFT, op]
    assert set(schema.attributes) == set(rule.attributes)
    assert rule.versions == (schema.since_version,)
    assert len(schema.inputs) == len(rule.inputs) + CONSTANTS.get(op, 0)


# name: (nodes that make y of a float[3] x, opset, what is patched: op and versions or attributes, message)
REFUSALS = {
    "a newer version": (
        "y = Reshape (x, s)",
        21,
        ("Reshape", "versions", (14, 19)),
        r"Reshape node 'y' .*: its op has a new definition in ai.onnx 21, .*version 14 or 19: .* an older opset$",
    ),
    "a version that is too old": (
        "y = Reshape (x, s)",
        18,
        ("Reshape", "versions", (19, 21)),
        "new definition in ai.onnx 14, .*; expected version 19 or 21: export the model with a newer opset$",
    ),
    "a new attribute": (
        "y = Softmax <axis = 0> (x)",
        18,
        ("Softmax", "attributes", {}),
        "Softmax node 'y' .* cannot be differentiated: it has the attribute 'axis'; expected none$",
    ),
    "an attribute of an op of ORT": (
        "y = com.microsoft.QuickGelu <alpha = 1.0, beta = 2.0> (x)",
        18,
        None,
        "QuickGelu node 'y' .*: it has the attribute 'beta'; expected only alpha$",
    ),
    "a value": (
        "m = Gemm <transB = 2> (w, w) y = Mul (m, x)",
        18,
        None,
        "Gemm node 'm' .*: it has transB = 2; expected one of 0, 1$",
    ),
}


def test_an_opset_that_nobody_has_compared_with_the_rules():
    forward = model("float[3] x", f"y = Relu (x) {SUM}", opset=NEWEST_OPSET + 1)
    message = rf"Relu node 'y' .*: the model imports ai.onnx {NEWEST_OPSET + 1}; expected \d+ or older"
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(forward, wrt=["x"])


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    body, opset, change, message = REFUSALS[name]
    forward = model("float[3] x, float[3, 3] w, int64[1] s", f"{body} {SUM}", opset=opset)
    wrt = ["w"] if "w," in body else ["x"]
    if change is not None:
        # The versions and attributes that the rule supports are not refused.
        assert f"{wrt[0]}_grad" in output_names(differentiated(forward, wrt=wrt))
    with patched(*change) if change else patched("Abs", "zero", ()):
        with pytest.raises(UnsupportedNodeError, match=message):
            differentiated(forward, wrt=wrt)
        # Nodes that are not between x and the loss may be anything.
        beside = model(
            "float[3] x, float[3, 3] w, int64[1] s", f"{body} loss = ReduceSum <keepdims = 0> (x)", opset=opset
        )
        assert output_names(differentiated(beside, wrt=["x"])) == ["loss", "x_grad"]


def patched(op, field, value):
    """Another rule for an op."""
    return patch.dict(RULES, {("", op): replace(RULES["", op], **{field: value})})
