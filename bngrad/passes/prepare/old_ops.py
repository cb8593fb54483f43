"""Restores the semantics of ops that onnx's version converter does not adapt although their definition changed.

========== ========== ========================================================================================
op         below      old semantics
========== ========== ========================================================================================
Hardmax    opset 13   one maximum over all dimensions from ``axis`` on (default 1), instead of along ``axis``
Upsample   opset 10   coordinates x / scale (``asymmetric``); ``nearest`` rounds down
Resize     opset 11   the same; ``nearest`` rounds down if the scale enlarges, and up if it reduces
========== ========== ========================================================================================

The converter turns Upsample into Resize without attributes, whose defaults are ``half_pixel`` and
``round_prefer_floor``. ONNX did not define the rounding of the old ops; this is the rounding of ONNX Runtime's
kernels (upsample.h, ResizeNearestMode::SIMPLE).
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

_HARDMAX_CHANGED, _RESIZE_CHANGED, _SCAN_CHANGED = 13, 11, 9
"""The opsets that introduced the new semantics."""


def restore_semantics(
    model: ir.Model, originals: Mapping[str | None, ir.Node], version: int, converted_version: int
) -> None:
    """Corrects old ops after the version converter.

    Args:
        model: The converted model; it is changed in place.
        originals: The nodes before the conversion, by the names of their outputs.
        version: The opset before the conversion.
        converted_version: The opset of the converted model.

    Raises:
        ModelError: A Resize below opset 11 rounds down in one dimension and up in another, or its scales are
            unknown; or there is a Scan of opset 8, whose inputs have a batch dimension.
    """
    names = Names(model)
    for node in list(all_nodes(model)):
        if node.domain == "" and node.op_type == "Hardmax" and version < _HARDMAX_CHANGED <= converted_version:
            _flatten_input(node, names)
        elif node.domain == "" and node.op_type == "Scan" and version < _SCAN_CHANGED <= converted_version:
            raise ModelError(
                f"{describe(node)} of opset 8 has a batch dimension, which no newer Scan has; expected a model of "
                "opset 9 or newer"
            )
        elif node.domain == "" and node.op_type == "Resize" and version < _RESIZE_CHANGED <= converted_version:
            # Below opset 10 the node was an Upsample, whose output the converter may have renamed.
            is_upsample = version < _RESIZE_CHANGED - 1
            rounding = "floor" if is_upsample else _nearest_mode(originals[node.outputs[0].name])
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", rounding)):
                node.attributes[name] = ir.AttrString(name, value)


def _flatten_input(node: ir.Node, names: Names) -> None:
    """Rewrites Hardmax<axis>(x) as Reshape(Hardmax<axis = -1>(Flatten<axis>(x)), Shape(x))."""
    x, y = node.inputs[0], node.outputs[0]
    axis = node.attributes.get_int("axis", 1)
    shape = ir.node("Shape", [x], name=names.fresh(f"{y.name}_shape"))
    flat = ir.node("Flatten", [x], {"axis": axis}, name=names.fresh(f"{y.name}_flat"))
    hardmax = ir.node("Hardmax", [*flat.outputs], {"axis": -1}, name=node.name)
    reshape = ir.node(
        "Reshape", [*hardmax.outputs, *shape.outputs], {"allowzero": 1}, name=names.fresh(f"{y.name}_reshape")
    )
    for new in (shape, flat, hardmax):
        new.outputs[0].name = names.fresh(f"{y.name}_{new.op_type.lower()}")
    made_nodes = [shape, flat, hardmax, reshape]
    ir.convenience.replace_nodes_and_values(owner(node), node, [node], made_nodes, [y], reshape.outputs)


def _nearest_mode(resize: ir.Node) -> str:
    """Returns the nearest_mode that a Resize of opset 10 corresponds to."""
    scales_input = resize.inputs[1] if len(resize.inputs) > 1 else None
    if resize.attributes.get_string("mode", "nearest") != "nearest":
        return "floor"
    tensor = None if scales_input is None else constant_value(scales_input)
    if tensor is None:
        raise ModelError(
            f"{describe(resize)} of opset 10 has scales that are not constant, so its rounding is unknown; "
            "expected constant scales, or a model of opset 11 or newer"
        )
    scales = tensor.numpy()
    if (scales < 1).any() and (scales > 1).any():
        raise ModelError(
            f"{describe(resize)} of opset 10 both enlarges and reduces (scales {scales.tolist()}), which need "
            "different rounding; expected only one of them, or a model of opset 11 or newer"
        )
    return "ceil" if (scales < 1).any() else "floor"
