"""Raises a model to the oldest ai.onnx opset that supports the functions of ``bngrad``.

If the definitions of all its ops are the same there, only the version changes; otherwise onnx's version converter
is used. It does not know the ops that ORT's gradient builder and converters from other frameworks add to the
default domain. These ops do not depend on the opset, so they are moved to another domain during the conversion.
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
from bngrad.opset.onnx_registry import schema_in
from bngrad.passes.prepare.conversion_error import conversion_message
from bngrad.passes.prepare.infer_types import CONTRADICTS
from bngrad.passes.prepare.large_initializers import hide_initializers, is_large, restore_initializers
from bngrad.passes.prepare.old_batch_norms import (
    TRAINING_MODE_OPSET,
    put_in_inference_mode,
    restore_training_mode,
)
from bngrad.passes.prepare.old_ops import restore_semantics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HIDDEN_DOMAIN = "bngrad.hidden"
_MIN_IR_VERSION_OF_INITIALIZERS = 4
"""The first IR version in which an initializer need not be a graph input."""
_MIN_OPSET_OF_TYPES = 13
"""The first opset from which a new version of an op with the same signature computes the same."""
_CHANGED = ("Resize",)
"""The ops with the same signature that compute something else in a newer version."""
_ORT_OPS_IN_DEFAULT_DOMAIN = ("MaxPoolGrad", "AveragePoolGrad")


class RaiseOpsetPass(ir.passes.FunctionalPass):
    """Converts a model below an opset to that opset; other models are returned as copies that share their tensors.

    Functions of another opset import the model's, if the definitions of their ops are the same.
    Guarantees: the names of graph inputs, graph outputs, initializers and nodes and the metadata of nodes stay the
    same; the default domain is imported as "" and not by its other name, "ai.onnx".
    Refuses, with `ModelError`: a model that does not import the default domain; a model with functions, which
    onnx's version converter does not convert; a model that the converter rejects; and a model with an old op that
    no newer op computes (see `restore_semantics` and `put_in_inference_mode`).

    Args:
        minimum: The opset; by default the oldest with every op of bngrad's functions.
    """

    def __init__(self, minimum: int = MIN_OPSET) -> None:
        super().__init__()
        self.minimum = minimum

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        result = raise_opset(model.clone(), self.minimum)
        result.meta.update((key, model.meta[key]) for key in {CONTRADICTS} & model.meta.keys())
        modified = _imports(result) != _imports(model) or result.ir_version != model.ir_version
        return ir.passes.PassResult(result, modified=modified)

    def ensures(self, model: ir.Model) -> None:
        """The model imports the opset or a newer one, only as the domain ""."""
        version = model.opset_imports.get("", 0)
        if version < self.minimum or any("ai.onnx" in imports for imports in _imports(model)):
            raise ir.passes.PostconditionError(f"the model imports ai.onnx {version}; expected {self.minimum}")


def raise_opset(model: ir.Model, minimum: int = MIN_OPSET) -> ir.Model:
    """Like `RaiseOpsetPass`, but without a copy.

    Args:
        model: The model; it is changed, and must not be used afterwards.
        minimum: The opset.

    Returns:
        The model itself, or its conversion.

    Raises:
        ModelError: `RaiseOpsetPass` refuses the model.
    """
    version = default_opset(model)
    if version is None:
        raise ModelError(
            "the model does not import the ai.onnx opset, so its ops are undefined; expected "
            f"{minimum} or newer; the file may be truncated"
        )
    for imports in _imports(model):
        if "ai.onnx" in imports:
            imports[""] = imports.pop("ai.onnx")
    align_functions(model)
    _state_defaults(model)
    # The passes add initializers that are not graph inputs.
    model.ir_version = max(model.ir_version or 0, _MIN_IR_VERSION_OF_INITIALIZERS)
    if version >= minimum:
        return model
    if _has_same_definitions(model, version, minimum):
        for imports in _imports(model):
            imports[""] = minimum
        model.ir_version = max(model.ir_version or 0, MIN_IR_VERSION)
        return model
    if model.functions:
        name = next(iter(model.functions.values())).name
        raise ModelError(
            f"the model imports ai.onnx {version} and has functions (such as {name!r}), which onnx's version "
            f"converter does not support; export it with opset {minimum} or newer"
        )
    return _convert(model, version, minimum)


def _state_defaults(model: ir.Model) -> None:
    """States default attributes that onnx's shape inference fails without, or takes another value for."""
    for node in all_nodes(model):
        if (node.domain, node.op_type) == ("", "MeanVarianceNormalization") and "axes" not in node.attributes:
            node.attributes["axes"] = ir.AttrInt64s("axes", [0, 2, 3])
        elif (node.domain, node.op_type) == ("", "STFT") and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)


def _imports(model: ir.Model) -> list[dict[str, int]]:
    """Returns the opset imports of a model and of its functions."""
    return [model.opset_imports, *(function.opset_imports for function in model.functions.values())]


def _has_same_definitions(model: ir.Model, version: int, minimum: int) -> bool:
    """Tests whether two opsets have the same definitions of all ops of a model."""
    imports = {function.opset_imports.get("", version) for function in model.functions.values()}
    op_types = {node.op_type for node in all_nodes(model) if node.domain in ("", "ai.onnx")}
    return imports <= {version} and _same_definitions(op_types, version, minimum)


def align_functions(model: ir.Model) -> None:
    """Makes functions import the model's opset if the definitions of their ops are the same in both opsets.

    In a newer opset, they may take further types.

    onnx's inliner rejects a function of another opset, and onnx's checker rejects some ops in it.
    """
    version = default_opset(model)
    for function in model.functions.values():
        own = function.opset_imports.get("")
        if version is None or own in (None, version):
            continue
        op_types = {node.op_type for node in function.all_nodes() if node.domain == ""}
        if _same_definitions(op_types, own, version) or _more_types(op_types, own, version):
            function.opset_imports[""] = version


def _same_definitions(op_types: Iterable[str], version: int, other: int) -> bool:
    """Tests whether two opsets have the same definitions of these ops."""
    pairs = [(schema_in(op, version), schema_in(op, other)) for op in op_types if not _is_foreign(op)]
    return all(a is not None and b is not None and a.since_version == b.since_version for a, b in pairs)


def _more_types(op_types: Iterable[str], version: int, newer: int) -> bool:
    """Tests whether ops differ between two opsets only in further types that they take in the newer one."""
    pairs = [(schema_in(op, version), schema_in(op, newer)) for op in op_types if not _is_foreign(op)]
    return _MIN_OPSET_OF_TYPES <= version <= newer and all(
        a is not None
        and b is not None
        and (a.since_version == b.since_version or (a.name not in _CHANGED and not b.deprecated))
        and _signature(a) == _signature(b)
        and _types(a).keys() == _types(b).keys()
        and all(types <= _types(b)[name] for name, types in _types(a).items())
        for a, b in pairs
    )


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Returns the inputs, outputs and attributes of an op, in a form that can be compared."""
    parameters = [
        [(p.name, p.option, p.type_str, p.is_homogeneous) for p in group]
        for group in (schema.inputs, schema.outputs)
    ]
    attributes = {
        name: (attribute.type, attribute.required, str(attribute.default_value))
        for name, attribute in schema.attributes.items()
    }
    return *parameters, attributes


def _types(schema: onnx.defs.OpSchema) -> dict[str, set[str]]:
    return {entry.type_param_str: set(entry.allowed_type_strs) for entry in schema.type_constraints}


def _convert(model: ir.Model, version: int, minimum: int) -> ir.Model:
    old_batch_norms = version < TRAINING_MODE_OPSET <= minimum
    trained = put_in_inference_mode(model, version) if old_batch_norms else {}
    omitted = _name_omitted_outputs(model)
    initializers = dict(model.graph.initializers)
    inputs = [str(value.name) for value in model.graph.inputs]
    hide_initializers(model.graph, is_large)
    proto = ir.to_proto(with_small_tensors(model))
    proto.ir_version = max(proto.ir_version, MIN_IR_VERSION)
    _move_foreign_ops(proto.graph, "", _HIDDEN_DOMAIN)
    proto.opset_import.append(onnx.helper.make_opsetid(_HIDDEN_DOMAIN, 1))
    try:
        converted = onnx.version_converter.convert_version(proto, minimum)
    except Exception as error:
        raise ModelError(conversion_message(proto, error, minimum)) from error
    _move_foreign_ops(converted.graph, _HIDDEN_DOMAIN, "")
    result = ir.from_proto(converted)
    result.opset_imports.pop(_HIDDEN_DOMAIN, None)
    restore_initializers(result.graph, initializers, inputs)
    originals: dict[str | None, ir.Node] = {
        value.name: node for node in all_nodes(model) for value in node.outputs if value.name
    }
    restore_semantics(result, originals, version, minimum)
    restore_training_mode(result, trained)
    _restore_names_and_metadata(originals, result)
    for node in all_nodes(result):
        for value in node.outputs:
            if value.name in omitted:
                value.name = ""
    return result


def _name_omitted_outputs(model: ir.Model) -> set[str]:
    """Names the omitted outputs that precede other outputs of a node, and all those of a Split.

    The converter removes outputs without a name: it moves up the outputs after them, and splits into fewer pieces.

    Returns:
        The names.
    """
    names, new_names = Names(model), set()
    for node in all_nodes(model):
        for index, value in enumerate(node.outputs):
            keeps_position = node.op_type == "Split" or any(other.name for other in node.outputs[index + 1 :])
            if not value.name and keeps_position:
                value.name = names.fresh(f"{node.name or node.op_type}_{index}")
                new_names.add(value.name)
    return new_names


def _move_foreign_ops(graph: onnx.GraphProto, old_domain: str, new_domain: str) -> None:
    """Moves the foreign ops of a graph and its subgraphs from one domain to another."""
    for node in graph.node:
        if node.domain == old_domain and _is_foreign(node.op_type):
            node.domain = new_domain
        for subgraph in proto_subgraphs(node):
            _move_foreign_ops(subgraph, old_domain, new_domain)


def _is_foreign(op_type: str) -> bool:
    """Tests whether ONNX's default domain has no such op; `ort_dialect` may have registered one."""
    return op_type in _ORT_OPS_IN_DEFAULT_DOMAIN or not onnx.defs.has(op_type)


def _restore_names_and_metadata(originals: Mapping[str | None, ir.Node], after: ir.Model) -> None:
    """Restores names and metadata that the converter drops, for nodes that compute a value of the same name."""
    # The converter may give the name of a node that became several to one that computes another value.
    taken = {node.name for node in all_nodes(after)}
    for node in all_nodes(after):
        for value in node.outputs:
            if original := originals.get(value.name):
                if not node.name and original.name not in taken:
                    node.name = original.name
                node.metadata_props.update(original.metadata_props)
