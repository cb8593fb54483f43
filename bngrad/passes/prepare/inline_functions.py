"""Functions whose nodes a pass has to read: their bodies take the place of their calls.

An attribute of a node in a function may be the function's own, which each call gives another value. No pass can
say what such a node does, so the function is inlined, and every call's node has its own values.
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
    """Puts the bodies of functions in the place of their calls.

    Args:
        model: The model; it is changed.
        criteria: Which functions; all by default.

    Raises:
        ModelError: A function and the model, or a call of it, do not go together.
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
    # A call may leave out what the function's nodes require.
    require_well_formed(model, "the model with its functions inlined")


class ResolveAttributesPass(ir.passes.InPlacePass):
    """Inlines every function in which a node that is to be read has an attribute of the function's.

    Guarantees: no such node has one. Other functions stay, and so do their calls.
    Refuses, with `ModelError`: a function that imports a domain in another version than the model.

    Args:
        reads: Whether an attribute of a node, by its name, is one that later passes read.
    """

    def __init__(self, reads: Callable[[ir.Node, str], bool]) -> None:
        super().__init__()
        self._reads = reads

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        open_functions = self._open(model)
        if not open_functions:
            return ir.passes.PassResult(model, modified=False)
        inline(model, lambda function: function.identifier() in open_functions)
        for key in open_functions & model.functions.keys():  # nothing calls them
            del model.functions[key]
        for node in all_nodes(model):
            _leave_out_statistics(node)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """No node that is to be read has an attribute of a function's."""
        for _, name, _ in self._open(model):
            raise ir.passes.PostconditionError(f"the function {name} still has attributes that a pass reads")

    def _open(self, model: ir.Model) -> set[ir.OperatorIdentifier]:
        """The functions to inline; a caller that hands its own attribute on is one, too."""
        found: set[ir.OperatorIdentifier] = set()
        while True:
            new = {
                key
                for key, function in model.functions.items()
                if key not in found
                for node in function.all_nodes()
                for name, attribute in node.attributes.items()
                if attribute.is_ref() and (node.op_identifier() in found or self._reads(node, name))
            }
            if not new:
                return found
            found |= new


def _leave_out_statistics(node: ir.Node) -> None:
    """Leaves one output of a BatchNormalization that is in inference mode, in which it has no other."""
    if (node.domain, node.op_type) != ("", "BatchNormalization") or is_training_batch_norm(node):
        return
    if not any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        node.resize_outputs(1)
