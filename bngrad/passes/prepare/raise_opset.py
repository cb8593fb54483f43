"""Raises a model to the oldest ai.onnx opset that the functions of ``bngrad`` can be embedded at.

Where no op has another definition there, its number is all that changes; else onnx's version converter does the
work. It does not know the ops that ORT's gradient builder, and converters from other frameworks, put into the
default domain, so those are hidden from it in a domain of their own meanwhile; they are the same at every opset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes, default_opset
from bngrad.graph.subgraphs import proto_subgraphs
from bngrad.io.external_data import with_small_tensors
from bngrad.opset.functions import MIN_IR_VERSION, MIN_OPSET
from bngrad.passes.prepare.large_initializers import become_inputs, is_large, restore
from bngrad.passes.prepare.old_ops import keep_meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HIDDEN = "bngrad.hidden"
_INITIALIZERS_ALONE = 4
_ORT_OPS_IN_DEFAULT_DOMAIN = ("MaxPoolGrad", "AveragePoolGrad")


class RaiseOpsetPass(ir.passes.FunctionalPass):
    """Converts a model below an opset to that one; any other is returned as a copy that shares its tensors.

    Args:
        minimum: The opset; by default the oldest that has every op of our functions.

    Functions of another opset get the model's, where that changes nothing.
    Guarantees: names of graph inputs and outputs, initializers and nodes, and nodes' metadata, are as before; the
    default domain is imported as "", which a model may also call "ai.onnx".
    Refuses, with `ModelError`: a model that onnx's version converter refuses, or that has an old op which no newer
    one computes (see `keep_meaning`), one with functions of its own, which
    the converter does not convert, and one that does not import the default domain.
    """

    def __init__(self, minimum: int = MIN_OPSET) -> None:
        super().__init__()
        self.minimum = minimum

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        version = default_opset(model)
        if version is None:
            raise ModelError(
                "the model does not import the ai.onnx opset, so nothing says what its ops mean; expected "
                f"{self.minimum} or newer (or the file is truncated)"
            )
        before, model = model, model.clone()
        for imports in _imports(model):
            if "ai.onnx" in imports:
                imports[""] = imports.pop("ai.onnx")
        align_functions(model)
        # What is made of a model has initializers that are no inputs, an idea of this version.
        model.ir_version = max(model.ir_version or 0, _INITIALIZERS_ALONE)
        if version >= self.minimum:
            changed = _imports(model) != _imports(before) or model.ir_version != before.ir_version
            return ir.passes.PassResult(model, modified=changed)
        if _means_the_same(model, version, self.minimum):
            for imports in _imports(model):
                imports[""] = self.minimum
            model.ir_version = max(model.ir_version or 0, MIN_IR_VERSION)
            return ir.passes.PassResult(model, modified=True)
        if model.functions:
            name = next(iter(model.functions.values())).name
            raise ModelError(
                f"the model imports ai.onnx {version} and has functions (such as {name!r}), which the version "
                f"converter leaves alone; export it with opset {self.minimum} or newer"
            )
        return ir.passes.PassResult(_convert(model, version, self.minimum), modified=True)

    def ensures(self, model: ir.Model) -> None:
        """The model imports the opset or a newer one, as the domain "" alone."""
        version = model.opset_imports.get("", 0)
        if version < self.minimum or any("ai.onnx" in imports for imports in _imports(model)):
            raise ir.passes.PostconditionError(f"the model imports ai.onnx {version}; expected {self.minimum}")


def _imports(model: ir.Model) -> list[dict[str, int]]:
    """The opset imports of a model and of its functions."""
    return [model.opset_imports, *(function.opset_imports for function in model.functions.values())]


def _means_the_same(model: ir.Model, version: int, minimum: int) -> bool:
    """Whether no op that a model has was defined anew between two opsets: then the number is all that changes."""
    imports = {function.opset_imports.get("", version) for function in model.functions.values()}
    op_types = {node.op_type for node in all_nodes(model) if node.domain in ("", "ai.onnx")}
    return imports <= {version} and _are_the_same(op_types, version, minimum)


def align_functions(model: ir.Model) -> None:
    """Has functions import the model's own opset where none of their ops was defined anew between the two.

    onnx's inliner refuses a function of another opset, and onnx's checker some ops in one.
    """
    version = default_opset(model)
    for function in model.functions.values():
        own = function.opset_imports.get("")
        if version is None or own in (None, version):
            continue
        op_types = {node.op_type for node in function.all_nodes() if node.domain == ""}
        if _are_the_same(op_types, own, version):
            function.opset_imports[""] = version


def _are_the_same(op_types: Iterable[str], one: int, other: int) -> bool:
    """Whether two opsets define ops alike."""
    return all(
        onnx.defs.has(op, one)
        and onnx.defs.has(op, other)
        and onnx.defs.get_schema(op, one).since_version == onnx.defs.get_schema(op, other).since_version
        for op in op_types
        if not _is_foreign(op)
    )


def _convert(model: ir.Model, version: int, minimum: int) -> ir.Model:
    left_out = _name_outputs_left_out(model)
    initializers = dict(model.graph.initializers)
    inputs = [str(value.name) for value in model.graph.inputs]
    become_inputs(model.graph, is_large)
    proto = ir.to_proto(with_small_tensors(model))
    proto.ir_version = max(proto.ir_version, MIN_IR_VERSION)
    _move(proto.graph, "", _HIDDEN)
    proto.opset_import.append(onnx.helper.make_opsetid(_HIDDEN, 1))
    try:
        converted = onnx.version_converter.convert_version(proto, minimum)
    except Exception as error:
        what = str(error).strip().splitlines()[0]
        raise ModelError(
            f"the model imports ai.onnx {version} and cannot be raised to {minimum}: {what}; export it with "
            f"opset {minimum} or newer"
        ) from error
    _move(converted.graph, _HIDDEN, "")
    result = ir.from_proto(converted)
    result.opset_imports.pop(_HIDDEN, None)
    restore(result.graph, initializers, inputs)
    originals: dict[str | None, ir.Node] = {
        value.name: node for node in all_nodes(model) for value in node.outputs if value.name
    }
    keep_meaning(result, originals, version, minimum)
    _keep_names_and_metadata(originals, result)
    for node in all_nodes(result):
        for value in node.outputs:
            if value.name in left_out:
                value.name = ""
    return result


def _name_outputs_left_out(model: ir.Model) -> set[str]:
    """Names outputs that a node leaves out in front of others, and every piece of a Split.

    The converter moves up those behind an output without a name, and makes a Split of fewer pieces.

    Returns:
        The names.
    """
    names, given = Names(model), set()
    for node in all_nodes(model):
        for index, value in enumerate(node.outputs):
            counted = node.op_type == "Split" or any(other.name for other in node.outputs[index + 1 :])
            if not value.name and counted:
                value.name = names.fresh(f"{node.name or node.op_type}_{index}")
                given.add(value.name)
    return given


def _move(graph: onnx.GraphProto, source: str, target: str) -> None:
    for node in graph.node:
        if node.domain == source and _is_foreign(node.op_type):
            node.domain = target
        for subgraph in proto_subgraphs(node):
            _move(subgraph, source, target)


def _is_foreign(op_type: str) -> bool:
    """Whether the default domain has no such op, or has it only because `ort_dialect` says so."""
    return op_type in _ORT_OPS_IN_DEFAULT_DOMAIN or not onnx.defs.has(op_type)


def _keep_names_and_metadata(originals: Mapping[str | None, ir.Node], after: ir.Model) -> None:
    """The converter drops some nodes' names and all metadata; the names of their outputs say which is which."""
    # A node that became several may have left its name to one that makes something else.
    taken = {node.name for node in all_nodes(after)}
    for node in all_nodes(after):
        for value in node.outputs:
            if original := originals.get(value.name):
                if not node.name and original.name not in taken:
                    node.name = original.name
                node.metadata_props.update(original.metadata_props)
