"""Ops that onnx's version converter takes for unchanged although their meaning changed.

========== ========== =======================================================================================
op         below      meant
========== ========== =======================================================================================
Hardmax    opset 13   one maximum over all dimensions from ``axis`` on, 1 by default; then one of ``axis`` alone
Upsample   opset 10   coordinates x / scale (``asymmetric``); ``nearest`` rounds down
Resize     opset 11   the same; ``nearest`` rounds down where a scale enlarges, and up where it reduces
========== ========== =======================================================================================

The converter makes Resize of Upsample, and leaves out the attributes, whose defaults are ``half_pixel`` and
``round_prefer_floor``. What the old ops round is what ONNX Runtime's kernels do (upsample.h, ResizeNearestMode::
SIMPLE); ONNX did not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.constant_value import constant_value
from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes, describe, owner

if TYPE_CHECKING:
    from collections.abc import Mapping

_HARDMAX, _RESIZE = 13, 11
"""The opsets that brought the new meaning."""


def keep_meaning(model: ir.Model, originals: Mapping[str | None, ir.Node], version: int, target: int) -> None:
    """Corrects what the version converter made of old ops.

    Args:
        model: What it made; it is changed.
        originals: The nodes that it was given, by the names of their outputs.
        version: The opset of these.
        target: That of the model.

    Raises:
        ModelError: A Resize below opset 11 rounds down in one dimension and up in another, or nothing says how.
    """
    names = Names(model)
    for node in list(all_nodes(model)):
        if node.domain == "" and node.op_type == "Hardmax" and version < _HARDMAX <= target:
            _flatten(node, names)
        elif node.domain == "" and node.op_type == "Resize" and version < _RESIZE <= target:
            # Below opset 10 it was an Upsample, whose output the converter may have renamed.
            rounding = "floor" if version < _RESIZE - 1 else _rounding(originals[node.outputs[0].name])
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", rounding)):
                node.attributes[name] = ir.AttrString(name, value)


def _flatten(node: ir.Node, names: Names) -> None:
    """Hardmax<axis>(x) => Reshape(Hardmax<axis = -1>(Flatten<axis>(x)), Shape(x))."""
    x, y = node.inputs[0], node.outputs[0]
    axis = node.attributes.get_int("axis", 1)
    shape = ir.node("Shape", [x], name=names.fresh(f"{y.name}_shape"))
    flat = ir.node("Flatten", [x], {"axis": axis}, name=names.fresh(f"{y.name}_flat"))
    hard = ir.node("Hardmax", [*flat.outputs], {"axis": -1}, name=node.name)
    back = ir.node(
        "Reshape", [*hard.outputs, *shape.outputs], {"allowzero": 1}, name=names.fresh(f"{y.name}_reshape")
    )
    for made in (shape, flat, hard):
        made.outputs[0].name = names.fresh(f"{y.name}_{made.op_type.lower()}")
    graph = owner(node)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [shape, flat, hard, back], [y], back.outputs)


def _rounding(resize: ir.Node) -> str:
    """The nearest_mode of a Resize of opset 10."""
    read = resize.inputs[1] if len(resize.inputs) > 1 else None
    if resize.attributes.get_string("mode", "nearest") != "nearest":
        return "floor"
    tensor = None if read is None else constant_value(read)
    if tensor is None:
        raise ModelError(
            f"{describe(resize)} of opset 10 has scales that are not constant, and rounds down where they enlarge "
            "and up where they reduce; expected constant scales, or a model of opset 11 or newer"
        )
    scales = tensor.numpy()
    if (scales < 1).any() and (scales > 1).any():
        raise ModelError(
            f"{describe(resize)} of opset 10 enlarges and reduces (scales {scales.tolist()}), and rounds down in "
            "the one and up in the other; expected one of both, or a model of opset 11 or newer"
        )
    return "ceil" if (scales < 1).any() else "floor"
