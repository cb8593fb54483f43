"""Gives a model the definitions of the ``bngrad`` ops that it uses, as model-local functions.

With them the model runs on any stock ONNX Runtime: as a registered custom op where there is one, else as the
function. The two may share domain and name; ORT prefers the custom op.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.opset import DOMAIN, FUNCTIONS, MIN_IR_VERSION, MIN_OPSET, VERSION, function_proto
from bngrad.passes.nodes import all_nodes


class EmbedFunctionsPass(ir.passes.InPlacePass):
    """Imports the domain wherever it is used and, unless told not to, adds the functions of the ops in use.

    Guarantees: the opset import of every graph and function that holds a ``bngrad`` node names the domain; each op
    in use has a function, which imports the model's own ai.onnx opset. A function of ours that is there already
    stays, one that is not used any more goes.

    Args:
        functions: Whether to add the functions; without them the model runs only where the ops are registered.
    """

    def __init__(self, functions: bool = True) -> None:
        super().__init__()
        self.functions = functions

    def requires(self, model: ir.Model) -> None:
        """The model's opset has every op that the function bodies use."""
        version = model.opset_imports.get("", 0)
        if self.functions and _used(model) and version < MIN_OPSET:
            raise ir.passes.PreconditionError(
                f"the model imports ai.onnx {version}; the functions need {MIN_OPSET}"
            )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        used = _used(model)
        wanted = used if self.functions else set()
        present = {key for key in model.functions if key[0] == DOMAIN and key[1] in FUNCTIONS}
        for key in present:
            if key[1] not in wanted:
                del model.functions[key]
        missing = wanted - {key[1] for key in present}
        for name in sorted(missing):
            function = ir.serde.deserialize_function(function_proto(name, model.opset_imports[""]))
            model.functions[function.identifier()] = function
        imported = _import_domain(model)
        modified = imported or bool(missing) or {key[1] for key in present} != wanted
        if model.functions and model.ir_version < MIN_IR_VERSION:
            model.ir_version = MIN_IR_VERSION
            modified = True
        return ir.passes.PassResult(model, modified=modified)


def _used(model: ir.Model) -> set[str]:
    return {node.op_type for node in all_nodes(model) if node.domain == DOMAIN and node.op_type in FUNCTIONS}


def _import_domain(model: ir.Model) -> bool:
    """Adds the domain to the imports of what uses it; a model imports what its functions do."""
    users = [f for f in model.functions.values() if any(node.domain == DOMAIN for node in f.all_nodes())]
    scopes = [model.opset_imports, *(function.opset_imports for function in users)] if _used(model) else []
    missing = [imports for imports in scopes if DOMAIN not in imports]
    for imports in missing:
        imports[DOMAIN] = VERSION
        # The import passes put nodes of the default domain beside ours.
        imports.setdefault("", model.opset_imports[""])
    return bool(missing)
