"""Checks of the invariants that all commands rely on.

onnx's checker is stricter: it rejects ops without a schema, which models from other frameworks have.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from bngrad.errors import ModelError
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.io.tensor_problems import data_problems, invalid_texts

# Both register schemas with onnx, so that their ops are checked too.
from bngrad.opset import batched_conv, conv_grad, depthwise, group_updates, ort_dialect, overloaded, schemas  # noqa: F401
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.opset.schemas import signature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    Scope = ir.Graph | ir.Function

_MAX_AXIS = 2**31 - 1
_MAX_ELEMENTS = 2**60 - 1
"""Limit of the number of elements, so that the number of bytes does not overflow."""
_CONSTANT_KINDS = ("float", "floats", "int", "ints", "string", "strings")


def require_well_formed(model: ir.Model, description: str) -> None:
    """Checks that passes can process a model.

    Args:
        model: The model.
        description: The name of the model in the error message.

    Raises:
        ModelError: A node or an output reads a value that no earlier node produces; a node lacks required inputs
            or has an attribute of a wrong type; or the data of a tensor do not match its type and shape.
    """
    for problem in _problems(model):
        raise ModelError(f"{description} is not valid: {problem}")


def _problems(model: ir.Model) -> Iterator[str]:
    yield from _import_problems(model)
    yield from _domain_problems(model)
    yield from _input_problems(model.graph)
    notes = [model.producer_name, model.producer_version, model.domain, model.doc_string]
    yield from invalid_texts("it has the note", [*notes, *_entries(model.metadata_props)])
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    for scope in scopes:
        yield from _text_problems(scope)
        yield from _scope_problems(scope, set())
        imports = model.opset_imports if isinstance(scope, ir.Graph) else scope.opset_imports
        for node in nodes_of(scope):
            yield from _tensor_problems(node)
            # A function in our domain is the definition of the op of that name, so the op's schema applies.
            if node.domain == DOMAIN or node.op_identifier() not in model.functions:
                yield from _schema_problems(node, imports.get(node.domain, imports.get("ai.onnx", 1)))
            if isinstance(scope, ir.Graph):
                for attribute in node.attributes.values():
                    if attribute.is_ref():
                        yield f"{describe(node)} refers to an attribute of a function, but is not in a function"


def _import_problems(model: ir.Model) -> Iterator[str]:
    """Checks the opset imports and the names of functions."""
    versions = {model.opset_imports[name] for name in ("", "ai.onnx") if name in model.opset_imports}
    if len(versions) > 1:
        yield f"it imports ai.onnx in two versions, {' and '.join(map(str, sorted(versions)))}; expected one"
    scopes: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for scope in scopes:
        for node in (scope.graph if isinstance(scope, ir.Model) else scope).all_nodes():
            version = scope.opset_imports.get(node.domain, 1)
            if node.domain == DOMAIN and version != VERSION:
                yield f"{describe(node)} has opset {DOMAIN} {version}; expected {VERSION}"
            elif node.domain == MICROSOFT and version < 1:
                yield f"{describe(node)} has opset {MICROSOFT} {version}; expected 1 or newer"
    domains: list[object] = [domain for scope in scopes for domain in scope.opset_imports]
    names: list[object] = [name for key in model.functions for name in key]
    yield from invalid_texts("it imports the domain", domains)
    yield from invalid_texts("it has a function called", names)


def _domain_problems(model: ir.Model) -> Iterator[str]:
    """Checks the functions and nodes in our domain: a function must be the definition of one of our ops."""
    for (domain, name, overload), function in model.functions.items():
        if domain != DOMAIN:
            continue
        op = _signature(name, overload)
        if op is None:
            full = f"{name} (overload {overload!r})" if overload else name
            yield f"its function {full} is in the domain {DOMAIN}, which has no such op; use another domain"
            continue
        inputs, outputs, attributes = op
        if conv_grad.CHANNELS_LAST not in function.attributes:
            attributes = [attribute for attribute in attributes if attribute != conv_grad.CHANNELS_LAST]
        # A call of an overload omits the same outputs at the end.
        same_op = overload or name in depthwise.GRADS
        outputs = list(outputs)[: len(function.outputs)] if same_op else outputs
        got = len(function.inputs), len(function.outputs), sorted(function.attributes)
        if name in group_updates.SIGNATURES:  # its last input and output are any number of tensors
            got = min(got[0], len(inputs)), min(got[1], len(outputs)), got[2]
        if got != (len(inputs), len(outputs), sorted(attributes)):
            expected = f"({', '.join(inputs)}) -> ({', '.join(outputs)}) with {', '.join(attributes) or 'none'}"
            yield f"its function {DOMAIN}.{name} does not have the signature of that op; expected {expected}"
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in scope.all_nodes():
            if node.domain == DOMAIN and _signature(node.op_type, node.overload) is None:
                overload = f" with the overload {node.overload!r}" if node.overload else ""
                ops = ", ".join(FUNCTIONS)
                yield f"{describe(node)}{overload} is not an op of {DOMAIN}; expected one of {ops}"


def _signature(name: str, overload: str) -> tuple[Collection[str], ...] | None:
    """The inputs, outputs and attributes of the op that a function defines; None if there is no such op."""
    if name in overloaded.SIGNATURES and bool(overload) != (name in overloaded.WITHOUT_OVERLOAD):
        return overloaded.SIGNATURES[name]
    for signatures in (depthwise.SIGNATURES, batched_conv.SIGNATURES):
        if name in signatures and not overload:
            return signatures[name]
    return signature(name) if name in FUNCTIONS and not overload else None


def _text_problems(scope: Scope) -> Iterator[str]:
    """Checks that all names, notes and metadata of a graph are text."""
    graphs: list[Scope] = [scope]
    for node in nodes_of(scope):
        graphs += subgraphs(node)
        texts = [node.op_type, node.domain, node.name, node.overload, node.doc_string, *node.attributes]
        texts += [value.name for value in (*node.inputs, *node.outputs) if value is not None]
        texts += [attribute.ref_attr_name for attribute in node.attributes.values()]
        yield from invalid_texts(f"{describe(node)} has the name", texts)
        yield from invalid_texts(f"{describe(node)} has the entry", _entries(node.metadata_props))
    for graph in graphs:
        items: list[Scope | ir.Value] = [graph, *graph.inputs, *graph.outputs]
        items += graph.initializers.values() if isinstance(graph, ir.Graph) else ()
        yield from invalid_texts("it has a graph with the name", [item.name for item in items])
        yield from invalid_texts("it has a graph with the note", [item.doc_string for item in items])
        for item in items:
            yield from invalid_texts("it has a graph with the entry", _entries(item.metadata_props))


def _entries(metadata: Mapping[str, str]) -> list[str]:
    return [*metadata, *metadata.values()]


def _input_problems(graph: ir.Graph) -> Iterator[str]:
    for value in graph.inputs:
        if value.dtype == ir.DataType.UNDEFINED:
            yield f"its input {value.name!r} has no type"
        sizes = [size for size in value.shape or () if isinstance(size, int) and size > 0]
        if prod(sizes) > _MAX_ELEMENTS:
            yield f"its input {value.name!r} has shape {value.shape}; expected fewer than 2^60 elements"


def _scope_problems(scope: Scope, preceding: set[ir.Node]) -> Iterator[str]:
    """Checks the order of the nodes and the tensors of a graph and its subgraphs, given the preceding nodes."""
    if isinstance(scope, ir.Graph):
        for value in scope.initializers.values():
            if value.const_value is not None:
                yield from data_problems(value.const_value, f"its initializer {value.name!r}")
    for node in scope:
        for source in node.inputs:
            if source is not None and not _is_given(source) and source.producer() not in preceding:
                yield f"{describe(node)} reads {source.name!r}, which no preceding node produces"
        for subgraph in subgraphs(node):
            yield from _scope_problems(subgraph, preceding)
        preceding.add(node)
    for value in scope.outputs:
        if not _is_given(value) and value.producer() not in preceding:
            yield f"no node produces its output {value.name!r}"


def _tensor_problems(node: ir.Node) -> Iterator[str]:
    if node.domain in ("", "ai.onnx") and node.op_type == "Constant" and not _is_constant(node):
        names = ", ".join(node.attributes) or "none"
        yield f"{describe(node)} has the attributes {names}; expected only its value"
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.UNDEFINED:
            yield f"{describe(node)} has the attribute {attribute.name!r} without a type"
        # onnx truncates it to 32 bits, which may give an axis out of range that it does not check.
        if attribute.name == "axis" and isinstance(attribute.value, int) and abs(attribute.value) > _MAX_AXIS:
            yield f"{describe(node)} has axis {attribute.value}, which is out of range"
        # Otherwise onnx's shape inference reads before the start of the indices and crashes.
        if attribute.name == "batch_dims" and isinstance(attribute.value, int) and attribute.value < 0:
            yield f"{describe(node)} has batch_dims {attribute.value}; expected 0 or more"
        # Otherwise onnx's shape inference reads past the end of the outputs and crashes.
        count = len(node.outputs)
        if attribute.name == "num_outputs" and node.op_type == "Split" and attribute.value != count:
            yield f"{describe(node)} has num_outputs {attribute.value} but {count} outputs; expected equal numbers"
        if attribute.type == ir.AttributeType.GRAPH and not len(attribute.value) and not attribute.value.outputs:
            yield f"the attribute {attribute.name!r} of {describe(node)} is an empty graph"
        if attribute.type == ir.AttributeType.TENSOR:
            yield from data_problems(attribute.value, f"the attribute {attribute.name!r} of {describe(node)}")


def _is_constant(node: ir.Node) -> bool:
    """Tests whether a Constant has exactly one value, of a kind that onnx-ir supports."""
    kinds = {"value": ir.AttributeType.TENSOR}
    kinds |= {f"value_{kind}": ir.AttributeType[kind.upper()] for kind in _CONSTANT_KINDS}
    attributes = [*node.attributes.values()]
    return len(attributes) == 1 and kinds.get(attributes[0].name) == attributes[0].type


def _schema_problems(node: ir.Node, version: int) -> Iterator[str]:
    """Checks the inputs, outputs and attributes of a node against the schema of its op."""
    schema = _schema(node, version)
    if schema is None:
        return
    count = len(node.inputs)
    if count > schema.max_input:
        yield f"{describe(node)} has {count} inputs; expected at most {schema.max_input}"
    if len(node.outputs) > schema.max_output:
        yield f"{describe(node)} has {len(node.outputs)} outputs; expected at most {schema.max_output}"
    for index, formal in enumerate(schema.inputs):
        if formal.option == OpSchema.FormalParameterOption.Single and (
            index >= count or node.inputs[index] is None
        ):
            yield f"{describe(node)} has no input {index}, which is required"
    for name, definition in schema.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            if definition.required:
                yield f"{describe(node)} has no attribute {name!r}, which is required"
        elif (expected := ir.AttributeType(int(definition.type))) != attribute.type:
            got = attribute.type.name
            yield f"{describe(node)} has the attribute {name!r} of type {got}; expected {expected.name}"


def _schema(node: ir.Node, version: int) -> Any | None:  # noqa: ANN401 - onnx does not annotate its result
    """Returns the schema of an op at a version of its domain; None if onnx has none."""
    try:
        return onnx.defs.get_schema(node.op_type, max(1, min(version, 1 << 30)), node.domain)
    except onnx.defs.SchemaError:
        return None


def _is_given(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_initializer()
