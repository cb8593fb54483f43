"""The attributes and the ai.onnx opsets that lowerings were written for; others are refused."""

from __future__ import annotations

from unittest.mock import patch

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.node_reader import attribute_refusal
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.passes.lower import LOWERINGS, lower_training
from bngrad.passes.lower.lower_training import LowerTrainingPass
from bngrad.passes.lower.lowering import lowering
from bngrad.passes.pipeline import rewrite

KEYS = {key[1]: key for key in LOWERINGS}


def lower(op_type, **attributes):
    """A model of one node, of which nothing is known but its attributes."""
    domain, _ = KEYS[op_type]
    node = helper.make_node(op_type, ["x"], ["y"], "node", domain=domain, **attributes)
    graph = helper.make_graph([node], "g", [], [])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return LowerTrainingPass()(ir.from_proto(helper.make_model(graph, opset_imports=imports)))


def test_an_op_has_one_lowering():
    with pytest.raises(ValueError, match=r"^com.microsoft.ReluGrad has two lowerings$"):
        lowering("ReluGrad")(lambda site: [site.x(0)])


@pytest.mark.parametrize("op_type", KEYS)
def test_an_unknown_attribute_is_refused(op_type):
    with pytest.raises(UnsupportedNodeError, match=rf"{op_type} node .*attribute 'new'; expected (none|only)"):
        lower(op_type, new=1)


ACCEPTED = [
    ("AveragePoolGrad", {"auto_pad": "VALID", "ceil_mode": 1, "count_include_pad": 1, "dilations": [2, 2]}),
    ("ConvGrad", {"auto_pad": "NOTSET", "group": 2, "kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    ("ConvTransposeGrad", {"auto_pad": "SAME_UPPER", "output_padding": [1, 1], "output_shape": [9, 9]}),
    ("DropoutGrad", {"seed": 3}),
    ("GeluGrad", {"approximate": "none"}),
    ("LayerNormalizationGrad", {"axis": 1, "epsilon": 1e-3, "stash_type": 1}),
    ("LeakyReluGrad", {"alpha": 0.2}),
    ("MaxPoolGrad", {"auto_pad": "SAME_LOWER", "ceil_mode": 0, "storage_order": 0}),
    ("ReluGrad", {}),
    ("ResizeGrad", {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1, "extrapolation_value": 0.0}),
    ("SoftmaxCrossEntropyLossGrad", {"ignore_index": -1, "reduction": "sum"}),
]


@pytest.mark.parametrize(("op_type", "attributes"), ACCEPTED)
def test_what_the_builder_writes_is_accepted(op_type, attributes):
    node = ir.node(op_type, [], attributes)
    assert attribute_refusal(node, LOWERINGS[KEYS[op_type]].attributes) is None


BAD_VALUES = [
    ("AveragePoolGrad", "auto_pad", "SAME", "expected one of NOTSET, SAME_UPPER, SAME_LOWER, VALID"),
    ("AveragePoolGrad", "ceil_mode", 2, "expected one of 0, 1"),
    ("AveragePoolGrad", "count_include_pad", -1, "expected one of 0, 1"),
    ("ConvGrad", "auto_pad", "same_upper", "expected one of NOTSET"),
    ("ConvTransposeGrad", "auto_pad", "FULL", "expected one of NOTSET"),
    ("GeluGrad", "approximate", "tanh", "expected none"),
    ("MaxPoolGrad", "storage_order", 1, "expected 0"),
    ("ResizeGrad", "exclude_outside", 2, "expected one of 0, 1"),
    ("ResizeGrad", "nearest_mode", "up", "expected one of round_prefer_floor"),
    ("Scale", "scale_down", 2, "expected one of 0, 1"),
    ("SoftmaxCrossEntropyLossGrad", "reduction", "all", "expected one of none, sum, mean"),
]


@pytest.mark.parametrize(("op_type", "name", "value", "expected"), BAD_VALUES)
def test_an_unsupported_value_is_refused(op_type, name, value, expected):
    with pytest.raises(UnsupportedNodeError, match=rf"{op_type} node .*it has {name} = {value!r}; {expected}"):
        lower(op_type, **{name: value})


def test_an_attribute_of_another_type_is_refused():
    with pytest.raises(UnsupportedNodeError, match=r"attribute 'ceil_mode' STRING; expected INT"):
        lower("AveragePoolGrad", ceil_mode="1")


def test_a_newer_opset_is_refused():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>
        g (float[2] dy, float[2] y) => (float[2] dx) { [back] dx = com.microsoft.ReluGrad (dy, y) }""")
    rewrite(ir.from_proto(model))
    with (
        patch.object(lower_training, "NEWEST_OPSET", 19),
        pytest.raises(UnsupportedNodeError, match=r"'back'.*imports ai.onnx 20; expected 19 or older"),
    ):
        rewrite(ir.from_proto(model))


def test_somebody_has_looked_at_the_newest_opset():
    """A newer onnx may redefine what rules and lowerings emit: compare before raising the number."""
    assert onnx.defs.onnx_opset_version() <= NEWEST_OPSET
