"""Adds the definitions of the ``bngrad`` ops that a model uses, as model-local functions.

With the functions, the model runs on any stock ONNX Runtime. A custom op and a function may have the same domain
and name: ORT runs the custom op if it is registered, and otherwise the function.

Collectives get no function. Their definitions are those of one rank, so each of several processes without the
library would train by itself, without an error. ORT refuses to load such a model where the library is not
registered.

A function has one body for all its calls, which computes in one type. If any batch norm of a model is in double,
the bodies compute in double, which is correct for the other types too, but slower.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, describe
from bngrad.io.domains import import_bngrad
from bngrad.opset import max_pool_grad
from bngrad.opset.functions import CALLS, DOMAIN, FUNCTIONS, MIN_IR_VERSION, MIN_OPSET, function_proto
from bngrad.opset.schemas import signature
from bngrad.opset.synchronized import COLLECTIVES

_DEFINED = frozenset({*FUNCTIONS, max_pool_grad.NAME})
_WITHOUT_FUNCTION = frozenset(function.name for function in COLLECTIVES)


class EmbedFunctionsPass(ir.passes.InPlacePass):
    """Imports the domain wherever it is used and, by default, adds the functions of the ops in use.

    Requires: ai.onnx `MIN_OPSET` or newer to add functions.
    Guarantees: every graph and function with a ``bngrad`` node imports the domain; each op in use except
    collectives has a function, which imports the model's ai.onnx opset; functions that are no longer used are
    removed.
    Refuses, with `UnsupportedNodeError`: a model with BatchNormalizationStatistics of data in double and of other
    data, because the type of its outputs is that of the computation.

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
        names = _used(model) - _WITHOUT_FUNCTION if self.functions else set()
        for name in tuple(names):
            names.update(CALLS.get(name, ()))
        present = {key[1] for key in model.functions if key[0] == DOMAIN and key[1] in _DEFINED}
        before = {name: _serialized(model, name) for name in present}
        double = _computes_in_double(model)
        for name in present:
            del model.functions[DOMAIN, name, ""]
        for name in sorted(names):
            model.functions[DOMAIN, name, ""] = _function(name, model.opset_imports[""], double=double)
        same = before.keys() == names and all(text == _serialized(model, name) for name, text in before.items())
        modified = import_bngrad(model) or not same
        if model.functions and model.ir_version < MIN_IR_VERSION:
            model.ir_version = MIN_IR_VERSION
            modified = True
        return ir.passes.PassResult(model, modified=modified)

    def ensures(self, model: ir.Model) -> None:
        """The model imports the domain if it uses it, and has the functions of the ops in use, if requested."""
        used = _used(model)
        if used and DOMAIN not in model.opset_imports:
            raise ir.passes.PostconditionError(f"the model does not import {DOMAIN}")
        for name in sorted(used - _WITHOUT_FUNCTION) if self.functions else ():
            if (DOMAIN, name, "") not in model.functions:
                raise ir.passes.PostconditionError(f"{DOMAIN}.{name} has no function")


def _function(name: str, opset: int, *, double: bool) -> ir.Function:
    if name == max_pool_grad.NAME:
        return ir.serde.deserialize_function(max_pool_grad.function_proto(opset))
    return ir.serde.deserialize_function(function_proto(name, opset, double=double))


def _serialized(model: ir.Model, name: str) -> bytes:
    function = ir.serde.serialize_function(model.functions[DOMAIN, name, ""])
    return bytes(function.SerializeToString(deterministic=True))


def _computes_in_double(model: ir.Model) -> bool:
    """Tests whether any ``bngrad`` node has data in double, or might have: types within functions are unknown."""
    types = {node: x.dtype for node in _bngrad_nodes(model) if (x := _x(node)) is not None}
    in_double = [node for node, dtype in types.items() if dtype == ir.DataType.DOUBLE]
    others = [
        node
        for node, dtype in types.items()
        if dtype not in (None, ir.DataType.DOUBLE) and node.op_type == "BatchNormalizationStatistics"
    ]
    if in_double and others:
        raise UnsupportedNodeError(
            f"{describe(others[0])} has data of another type than {describe(in_double[0])}, whose data is double; "
            "one function cannot define both: pass --no-functions and register the library"
        )
    inputs = (*model.graph.inputs, *model.graph.initializers.values())
    might = None in types.values() and not others and any(value.dtype == ir.DataType.DOUBLE for value in inputs)
    return bool(in_double) or might


def _x(node: ir.Node) -> ir.Value | None:
    """The data of a batch norm; None for an op that computes in the type of its inputs."""
    if node.op_type == max_pool_grad.NAME:
        return None
    inputs = signature(node.op_type)[0]
    return node.inputs[inputs.index("X")] if "X" in inputs else None


def _bngrad_nodes(model: ir.Model) -> list[ir.Node]:
    own = [node for key, function in model.functions.items() if key[0] == DOMAIN and key[2] for node in function]
    return [node for node in (*all_nodes(model), *own) if node.domain == DOMAIN and node.op_type in _DEFINED]


def _used(model: ir.Model) -> set[str]:
    return {node.op_type for node in _bngrad_nodes(model)}
