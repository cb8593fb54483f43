"""Replaces ops that have no gradient rule by what they consist of.

onnx defines some of its ops by a function of other ops; `fused_ops` has those that ONNX Runtime's optimizer fuses.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from bngrad.autodiff.dependence import moving_values
from bngrad.autodiff.edges import reads, rule_of
from bngrad.autodiff.fused_ops import FUSED_OPS, UNKNOWN_FORM
from bngrad.autodiff.rules.without_rule import WITHOUT_RULE
from bngrad.graph.nodes import ORIGIN, describe, remove
from bngrad.graph.subgraphs import nodes_of, proto_subgraphs
from bngrad.opset.onnx_registry import schema_in
from bngrad.passes.base import Context
from bngrad.passes.lower.site import Site
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.inline_functions import inline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DOMAIN = "bngrad.expanded"
"""The domain of the functions, until they are inlined."""


def expand(model: ir.Model, wrt: Iterable[ir.Value]) -> None:
    """Replaces ops without a gradient rule between some values and the outputs, until no more can be.

    Ops that no function defines stay, and so do those whose function is of another opset than the model, or
    depends on types or sizes that are not known.

    Args:
        model: A model with inferred types, which are inferred anew; it is changed in place.
        wrt: The values that it will be differentiated with respect to.
    """
    wrt = list(wrt)
    while _split(model, wrt) or _inline(model, wrt):
        InferTypesPass()(model)


def _candidates(model: ir.Model, wrt: Iterable[ir.Value]) -> Iterator[ir.Node]:
    """Yields the nodes without a rule that depend on some values, or are in the body of another node."""
    graph, opset = model.graph, model.opset_imports.get("", 0)
    nodes = [node for node in nodes_of(graph) if rule_of(node) is None and _can_be_replaced(node, opset)]
    moving = moving_values(graph, wrt) if nodes else set()
    for node in nodes:
        if node.graph is not graph or any(value in moving for value in reads(node)):
            yield node


def _can_be_replaced(node: ir.Node, opset: int) -> bool:
    is_fused = (node.domain, node.op_type) in FUSED_OPS
    return is_fused or bool(not node.domain and function_versions(node.op_type, opset))


@cache
def function_versions(op_type: str, opset: int) -> Sequence[int]:
    """Returns the opsets, up to that of a model, for which onnx has a function of an op."""
    schema: Any = schema_in(op_type, opset)  # its stub lacks the functions
    if op_type in WITHOUT_RULE or opset > onnx.defs.onnx_opset_version() or schema is None:
        return []
    defined = schema.function_opset_versions or schema.context_dependent_function_opset_versions
    return [version for version in defined if version <= opset]


def _split(model: ir.Model, wrt: Iterable[ir.Value]) -> bool:
    """Splits the ops that ONNX Runtime fuses; returns whether there was one."""
    context = Context(model)
    fused = [node for node in _candidates(model, wrt) if (node.domain, node.op_type) in FUSED_OPS]
    for node in fused:
        site = Site(node, context)
        values = FUSED_OPS[node.domain, node.op_type](site)
        if isinstance(values, str):
            node.meta[UNKNOWN_FORM] = values
        elif values is not None:
            outputs = enumerate(values[: len(node.outputs)])
            site.replace({index: value for index, value in outputs if value is not None})
    remove(context.replaced)
    return bool(context.replaced)


def _inline(model: ir.Model, wrt: Iterable[ir.Value]) -> bool:
    """Inlines the functions by which onnx defines ops; returns whether there was one."""
    calls: dict[ir.Node, ir.Function] = {}
    for node in _candidates(model, wrt):
        if (function := _function(node, model.opset_imports[""], str(len(calls)))) is not None:
            calls[node] = function
    for node, function in calls.items():
        model.functions[function.identifier()] = function
        for inner in function.all_nodes():
            inner.meta[ORIGIN] = describe(node)
        node.domain, node.op_type, node.overload = function.identifier()
        node.version = None
    if calls:
        inline(model, lambda function: function.domain == _DOMAIN)
    return bool(calls)


def _function(node: ir.Node, opset: int, overload: str) -> ir.Function | None:
    """Returns the function by which onnx defines a node, with names of its own; None if there is none."""
    if node.domain or not (versions := function_versions(node.op_type, opset)):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    if schema.has_function:
        text = schema.get_function_with_opset_version(max(versions))
    elif any(value is not None and value.type is None for value in node.inputs):
        return None
    else:
        types = [onnx.TypeProto() if x is None else ir.serde.serialize_value(x).type for x in node.inputs]
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions), ir.to_proto(node).SerializeToString(), [proto.SerializeToString() for proto in types]
        )
    proto = onnx.FunctionProto.FromString(text)
    results = {name for inner in proto.node for name in inner.output}
    if not results.issuperset(list(proto.output)[: len(node.outputs)]):
        return None
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.type:
            node.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)
    del proto.output[len(node.outputs) :]
    proto.domain, proto.name, proto.overload = _DOMAIN, node.op_type, overload
    _rename(proto.node, str(node.name), {"", *proto.input, *proto.output})
    function = ir.serde.deserialize_function(proto)
    own = function.opset_imports[""]
    if not all(is_same_definition(inner.op_type, own, opset) for inner in function.all_nodes()):
        return None
    function.opset_imports[""] = opset
    return function


def is_same_definition(op_type: str, old: int, new: int) -> bool:
    """Returns whether an op is the same in two opsets, of which the newer may allow further types."""
    versions = [schema for opset in (old, new) if (schema := schema_in(op_type, opset)) is not None]
    if len(versions) < 2:
        return False
    before, after = (
        (schema.doc, _parameters(schema), {name: _text(value) for name, value in schema.attributes.items()})
        for schema in versions
    )
    types = [{c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints} for schema in versions]
    return before == after and all(types[0][name] <= types[1].get(name, set()) for name in types[0])


def _parameters(schema: onnx.defs.OpSchema) -> list[tuple[object, ...]]:
    parameters = [*schema.inputs, None, *schema.outputs]
    return [() if p is None else (p.name, p.type_str, p.option, p.is_homogeneous, p.min_arity) for p in parameters]


def _text(attribute: onnx.defs.OpSchema.Attribute) -> tuple[object, ...]:
    default = attribute.default_value.SerializeToString()
    return attribute.type, attribute.required, default, attribute.description


def _rename(nodes: Iterable[onnx.NodeProto], prefix: str, kept: set[str]) -> None:
    """Names the nodes and values of a function, and of the bodies in it, after the node that it defines."""

    def renamed(name: str) -> str:
        return name if name in kept else f"{prefix}/{name}"

    for node in nodes:
        node.name = f"{prefix}/{node.output[0]}"
        for names in (node.input, node.output):
            names[:] = map(renamed, names)
        for body in proto_subgraphs(node):
            for value in (*body.input, *body.output, *body.initializer, *body.value_info):
                value.name = renamed(value.name)
            _rename(body.node, prefix, kept)
