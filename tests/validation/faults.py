"""Faults that a rewrite could have, injected into a correct one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.opset.functions import function_proto

if TYPE_CHECKING:
    from collections.abc import Callable

    Fault = Callable[[ir.Model, ir.Node], None]


def _swap_statistics(_model: ir.Model, node: ir.Node) -> None:
    mean, inv_std = node.inputs[3], node.inputs[4]
    node.replace_input_with(3, inv_std)
    node.replace_input_with(4, mean)


def _leave_frozen(_model: ir.Model, node: ir.Node) -> None:
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)


def _flip_sign(_model: ir.Model, node: ir.Node) -> None:
    _after_dx(node, "Neg", [])


def _scale_one_channel(_model: ir.Model, node: ir.Node) -> None:
    """A relative error of 1e-4 in one channel of dX."""
    channels = node.inputs[2].shape[0]
    factor = np.ones((channels, 1, 1), np.float32)
    factor[channels // 2] += 1e-4
    constant = ir.node("Constant", [], attributes={"value": ir.tensor(factor)}, name="injected_factor")
    constant.outputs[0].name = "injected_factor"
    node.graph.insert_before(node, constant)
    _after_dx(node, "Mul", [constant.outputs[0]])


def _after_dx(node: ir.Node, op_type: str, others: list[ir.Value]) -> None:
    """Puts an op behind dX, which takes its name."""
    right = node.outputs[0]
    wrong = ir.node(op_type, [right, *others], name="injected")
    right.replace_all_uses_with(wrong.outputs[0], replace_graph_outputs=True)
    wrong.replace_input_with(0, right)
    node.graph.insert_after(node, wrong)
    wrong.outputs[0].name, right.name = right.name, "injected_right_dX"
    wrong.outputs[0].type, wrong.outputs[0].shape = right.type, right.shape


def _miscount(function: ir.Function) -> None:
    """M one too small."""
    division = next(node for node in function if node.outputs[0].name == "M")
    unit = ir.node("Constant", [], attributes={"value": ir.tensor(np.float32(1))})
    wrong = ir.node("Sub", [None, unit.outputs[0]])
    division.outputs[0].replace_all_uses_with(wrong.outputs[0])
    wrong.replace_input_with(0, division.outputs[0])
    function.insert_after(division, [unit, wrong])


def _drop_xhat_term(function: ir.Function) -> None:
    """dX without the gradient through the variance: dbias / M instead of (dbias + xhat * dscale) / M."""
    through = next(node for node in function if node.outputs[0].name == "through_variance")
    (subtraction,) = through.outputs[0].consumers()
    subtraction.outputs[0].replace_all_uses_with(subtraction.inputs[0])


def _with_body(change: Callable[[ir.Function], None]) -> Fault:
    """A fault in the definition, injected into one node by giving it a definition of its own."""

    def plant(model: ir.Model, node: ir.Node) -> None:
        proto = function_proto("BatchNormalizationGrad", model.opset_imports[""])
        proto.domain, proto.name = "injected", "BatchNormalizationGrad"
        function = ir.serde.deserialize_function(proto)
        change(function)
        model.functions[function.identifier()] = function
        model.opset_imports["injected"] = 1
        node.domain = "injected"

    return plant


FAULTS: dict[str, Fault] = {
    "mean and inv_std swapped": _swap_statistics,
    "sign of dX": _flip_sign,
    "M off by one": _with_body(_miscount),
    "xhat term dropped": _with_body(_drop_xhat_term),
    "left frozen": _leave_frozen,
    "1e-4 in one channel": _scale_one_channel,
}
