"""Inlines functions whose nodes a pass has to read.

An attribute of a node in a function may refer to an attribute of the function, whose value differs between calls.
No pass can interpret such a node, so the function is inlined, and each copy of the node has its own value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.nodes import all_nodes
from bngrad.io.well_formed import require_well_formed
from bngrad.passes.prepare.raise_opset import align_functions

if TYPE_CHECKING:
    from collections.abc import Callable


def inline(model: ir.Model, criteria: Callable[[ir.Function], bool] | None = None) -> None:
    """Replaces calls of functions by the functions' bodies.

    Args:
        model: The model; it is changed in place.
        criteria: Selects the functions; by default all.

    Raises:
        ModelError: A function is incompatible with the model or with a call.
    """
    align_functions(model)
    try:
        InlinePass(criteria)(model)
    except (ValueError, ir.passes.PassError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        what = " ".join(str(reason).split())
        raise ModelError(
            f"the model's functions cannot be inlined: {what}; export it without functions"
        ) from error
    # A call may omit an input that the function's nodes require.
    require_well_formed(model, "the model with its functions inlined")


class ResolveAttributesPass(ir.passes.InPlacePass):
    """Inlines every function in which an attribute that later passes read refers to an attribute of the function.

    Guarantees: no such attribute is left. Other functions and their calls stay.
    Refuses, with `ModelError`: a function that imports a domain in another version than the model.

    Args:
        reads: Whether later passes read the attribute of this name of a node.
    """

    def __init__(self, reads: Callable[[ir.Node, str], bool]) -> None:
        super().__init__()
        self._reads = reads

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        to_inline = self._functions_to_inline(model)
        if not to_inline:
            return ir.passes.PassResult(model, modified=False)
        inline(model, lambda function: function.identifier() in to_inline)
        for key in to_inline & model.functions.keys():  # functions that are never called
            del model.functions[key]
        for node in all_nodes(model):
            _drop_unused_statistics(node)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """No attribute that later passes read refers to an attribute of a function."""
        for _, name, _ in self._functions_to_inline(model):
            raise ir.passes.PostconditionError(f"the function {name} still has attributes that a pass reads")

    def _functions_to_inline(self, model: ir.Model) -> set[ir.OperatorIdentifier]:
        """Returns the functions to inline, including callers that pass on an attribute of their own."""
        keys: set[ir.OperatorIdentifier] = set()
        while True:
            new = {
                key
                for key, function in model.functions.items()
                if key not in keys
                for node in function.all_nodes()
                for name, attribute in node.attributes.items()
                if attribute.is_ref() and (node.op_identifier() in keys or self._reads(node, name))
            }
            if not new:
                return keys
            keys |= new


def _drop_unused_statistics(node: ir.Node) -> None:
    """Removes unused statistics outputs of a BatchNormalization in inference mode, where they are not allowed."""
    if (node.domain, node.op_type) != ("", "BatchNormalization") or is_training_batch_norm(node):
        return
    if not any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        node.resize_outputs(1)
