"""Keeps ONNX Runtime from removing Dropout in training mode.

Its optimization EliminateDropout (seen in 1.32) removes a Dropout of an intermediate value if nothing reads the
mask, also in training mode. In a training graph the gradient reads the mask, but not where no gradient is needed
before the Dropout: after a frozen backbone, or after arithmetic on the data. ::

    y = Dropout(x, ratio, training_mode)
    =>  dropped, mask = Dropout(x, ratio, training_mode);  y = Where(mask, dropped, 0)
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_reader import is_off
from bngrad.graph.nodes import all_nodes, is_read, owner


class KeepDropoutPass(ir.passes.InPlacePass):
    """Reads the mask of every Dropout that may be in training mode and whose mask nothing reads.

    Guarantees: values and their names stay; no other such Dropout is left.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        nodes = [node for node in all_nodes(model) if _fits(node)]
        names = Names(model) if nodes else None
        for node in nodes:
            assert names is not None, "there is a node"  # noqa: S101
            _read_mask(node, names)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _fits(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "Dropout") or len(node.inputs) < 3 or is_off(node.inputs[2]):
        return False
    return is_read(node.outputs[0]) and not any(map(is_read, node.outputs[1:]))


def _read_mask(node: ir.Node, names: Names) -> None:
    y, graph = node.outputs[0], owner(node)
    node.resize_outputs(2)
    mask = node.outputs[1]
    mask.name = mask.name or names.fresh(f"{y.name}_mask")
    mask.dtype, mask.shape = ir.DataType.BOOL, y.shape
    # A constant of y's type, which need not be known.
    zero = ir.node(
        "Constant", [], {"value": ir.tensor(0.0, ir.DataType.FLOAT)}, name=names.fresh(f"{y.name}_zero")
    )
    typed = ir.node("CastLike", [zero.outputs[0], y], name=names.fresh(f"{y.name}_typed_zero"))
    kept = ir.node("Where", [mask, y, typed.outputs[0]], name=names.fresh(f"{y.name}_kept"))
    for new in (zero, typed):
        new.outputs[0].name = new.name
    result, name = kept.outputs[0], y.name
    result.type, result.shape = y.type, y.shape
    y.replace_all_uses_with(result, replace_graph_outputs=True)
    for new, index, value in ((typed, 1, y), (kept, 1, y)):
        new.replace_input_with(index, value)
    y.name = names.fresh(f"{name}_dropped")
    result.name = name
    graph.insert_after(node, [zero, typed, kept])
