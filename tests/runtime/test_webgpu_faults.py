"""Nodes that the plugin for WebGPU computes wrong are refused, where it is known that they are such."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.runtime.webgpu_faults import require_right

RIGHT = {
    "last two": ("float[1,2,4,5] x", '<mode = "linear"> (x, , s)', "float[4] s = {1, 1, 2, 3}"),
    "sizes": ("float[1,2,4,5] x", '<mode = "linear"> (x, , , s)', "int64[4] s = {1, 2, 8, 9}"),
    "axes": ("float[1,2,4,5] x", '<mode = "linear", axes = [-2, 3]> (x, , s)', "float[2] s = {2, 2}"),
    "nearest": ("float[1,4,5,2] x", '<mode = "nearest"> (x, , s)', "float[4] s = {1, 2, 2, 1}"),
    "an axis that stays": ("float[1,2,4] x", '<mode = "linear", axes = [0, 2]> (x, , s)', "float[2] s = {1, 2}"),
    "unknown sizes": ("float[1,2,4,5] x, int64[4] s", '<mode = "linear"> (x, , , s)', ""),
}
IF = """(c) <then_branch = t () => (float z) { z = Resize <mode = "linear"> (x, , s) },
    else_branch = e () => (float w) { w = Identity (x) }>"""
WRONG = {
    "channels last": ("float[1,4,5,2] x", '<mode = "linear"> (x, , s)', "float[4] s = {1, 2, 2, 1}", "1 of 4"),
    "sizes": ("float[1,4,5,2] x", '<mode = "linear"> (x, , , s)', "int64[4] s = {1, 8, 5, 2}", "1 of 4"),
    "axes": ("float[1,4,5,2] x, float[2] s", '<mode = "linear", axes = [1, 2]> (x, , s)', "", "1 of 4"),
    "three": ("float[1,2,3,4,5] x", '<mode = "linear"> (x, , s)', "float[5] s = {1, 1, 2, 2, 2}", "2 of 5"),
    "in a branch": (
        "float[1,4,5,2] x, bool c",
        IF,
        "float[4] s = {1, 2, 2, 1}",
        "1 of 4",
    ),
}


def model_of(inputs, node, constant):
    constants = f"<{constant}>" if constant else ""
    op = "If" if "then_branch" in node else "Resize"
    text = f"<ir_version: 8, opset_import: ['' : 18]> g ({inputs}) => (float y) {constants} {{ y = {op} {node} }}"
    return ir.from_proto(onnx.parser.parse_model(text.replace("'", '"')))


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_right(case):
    require_right(model_of(*case))


@pytest.mark.parametrize(("inputs", "node", "constant", "axis"), WRONG.values(), ids=WRONG)
def test_wrong(inputs, node, constant, axis):
    message = rf"Resize node .* resizes axis {axis}, which the plugin for WebGPU computes wrong"
    with pytest.raises(UnsupportedNodeError, match=message):
        require_right(model_of(inputs, node, constant))
