"""Gives a model the definitions of the ``bngrad`` ops that it uses, as model-local functions.

With them the model runs on any stock ONNX Runtime: as a registered custom op where there is one, else as the
function. The two may share domain and name; ORT prefers the custom op.

A function has one body for all its nodes, and a body computes in one type. So a model with any batch norm in
double gets bodies in double, which are right for the other types too, only slower.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, describe
from bngrad.opset.functions import CALLS, DOMAIN, FUNCTIONS, MIN_IR_VERSION, MIN_OPSET, VERSION, function_proto
from bngrad.opset.schemas import signature


class EmbedFunctionsPass(ir.passes.InPlacePass):
    """Imports the domain wherever it is used and, unless told not to, adds the functions of the ops in use.

    Requires: ai.onnx `MIN_OPSET` or newer, where it adds functions.
    Guarantees: the opset import of every graph and function that holds a ``bngrad`` node names the domain; each op
    in use has a function, which imports the model's own ai.onnx opset; one that is not in use any more goes.
    Refuses, with `UnsupportedNodeError`: BatchNormalizationStatistics of data in double and of other data in one
    model, for the type of its outputs is that of the computation.

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
        wanted = _used(model) if self.functions else set()
        for name in tuple(wanted):
            wanted.update(CALLS.get(name, ()))
        present = {key[1] for key in model.functions if key[0] == DOMAIN and key[1] in FUNCTIONS}
        before = {name: _serialized(model, name) for name in present}
        double = _computes_in_double(model)
        for name in present:
            del model.functions[DOMAIN, name, ""]
        for name in sorted(wanted):
            proto = function_proto(name, model.opset_imports[""], double=double)
            model.functions[DOMAIN, name, ""] = ir.serde.deserialize_function(proto)
        modified = _import_domain(model) or before != {name: _serialized(model, name) for name in wanted}
        if model.functions and model.ir_version < MIN_IR_VERSION:
            model.ir_version = MIN_IR_VERSION
            modified = True
        return ir.passes.PassResult(model, modified=modified)

    def ensures(self, model: ir.Model) -> None:
        """What uses the domain imports it, and the ops in use have functions, unless there are to be none."""
        used = _used(model)
        if used and DOMAIN not in model.opset_imports:
            raise ir.passes.PostconditionError(f"the model does not import {DOMAIN}")
        for name in sorted(used) if self.functions else ():
            if (DOMAIN, name, "") not in model.functions:
                raise ir.passes.PostconditionError(f"{DOMAIN}.{name} has no function")


def _serialized(model: ir.Model, name: str) -> bytes:
    function = ir.serde.serialize_function(model.functions[DOMAIN, name, ""])
    return bytes(function.SerializeToString(deterministic=True))


def _computes_in_double(model: ir.Model) -> bool:
    """Whether any node of ours has its data in double, or might: types within functions are not known."""
    types = {node: x.dtype for node in _own_nodes(model) if (x := _x(node)) is not None}
    in_double = [node for node, dtype in types.items() if dtype == ir.DataType.DOUBLE]
    others = [
        node
        for node, dtype in types.items()
        if dtype not in (None, ir.DataType.DOUBLE) and node.op_type == "BatchNormalizationStatistics"
    ]
    if in_double and others:
        raise UnsupportedNodeError(
            f"{describe(others[0])} has data in another type than {describe(in_double[0])}, which has double; "
            "a model can have one definition of an op: pass --no-functions and register the library"
        )
    given = (*model.graph.inputs, *model.graph.initializers.values())
    might = None in types.values() and not others and any(value.dtype == ir.DataType.DOUBLE for value in given)
    return bool(in_double) or might


def _x(node: ir.Node) -> ir.Value | None:
    return node.inputs[signature(node.op_type)[0].index("X")]


def _own_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in all_nodes(model) if node.domain == DOMAIN and node.op_type in FUNCTIONS]


def _used(model: ir.Model) -> set[str]:
    return {node.op_type for node in _own_nodes(model)}


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
