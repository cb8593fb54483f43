"""What every command takes for granted of a model, and a file from anywhere may not have.

onnx's checker would ask for more: that every op is known, which those of other systems are not.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from bngrad.errors import ModelError
from bngrad.graph.subgraphs import subgraphs

# Both register schemas with onnx: their inputs and attributes are looked at too.
from bngrad.opset import ort_dialect, schemas  # noqa: F401
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.opset.schemas import signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Scope = ir.Graph | ir.Function
    _FunctionName = tuple[str, str]

_BYTE = 8
_MOST_AXIS = 2**31 - 1
_MOST_ELEMENTS = 2**60 - 1
"""So that their bytes can be counted."""
_MOST_NODES = 10_000_000
"""That calls of functions may stand for: inference goes through each of them."""
_KINDS = ("float", "floats", "int", "ints", "string", "strings")


def require_well_formed(model: ir.Model, what: str) -> None:
    """Sees to it that a model is one that passes can walk through.

    Args:
        model: Any model.
        what: How a message calls it.

    Raises:
        ModelError: A node or an output reads a value that nothing before it makes; a function calls itself; a node
            lacks inputs that its op requires, or has an attribute of another type; or a tensor has other data than
            its type and shape say.
    """
    for problem in _problems(model):
        raise ModelError(f"{what} is not valid: {problem}")


def _problems(model: ir.Model) -> Iterator[str]:
    yield from _call_problems(model)
    yield from _import_problems(model)
    yield from _domain_problems(model)
    yield from _input_problems(model.graph)
    notes = [model.producer_name, model.producer_version, model.domain, model.doc_string]
    yield from _no_texts("it has the note", [*notes, *_entries(model.metadata_props)])
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    for scope in scopes:
        yield from _text_problems(scope)
        yield from _scope_problems(scope, set())
        imports = model.opset_imports if isinstance(scope, ir.Graph) else scope.opset_imports
        for node in ir.traversal.RecursiveGraphIterator(scope):
            yield from _tensor_problems(node)
            # A function of ours is the op that the schema is of.
            if node.domain == DOMAIN or node.op_identifier() not in model.functions:
                yield from _schema_problems(node, imports.get(node.domain, imports.get("ai.onnx", 1)))
            if isinstance(scope, ir.Graph):
                for attribute in node.attributes.values():
                    if attribute.is_ref():
                        yield f"{_named(node)} refers to an attribute of a function, and is in none"


def _call_problems(model: ir.Model) -> Iterator[str]:
    """Functions that cannot be put in the place of their calls, or make too much of a model."""
    called: dict[_FunctionName, Counter[_FunctionName]] = {}
    for key, function in model.functions.items():
        ops = Counter(_called_function(node.op_identifier()) for node in function.all_nodes())
        called.setdefault(_called_function(key), Counter()).update(ops)
    calls = {key: set(ops) & set(called) for key, ops in called.items()}
    try:
        order = [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        circle = " -> ".join(f"{domain}.{name}" if domain else name for domain, name in error.args[1])
        yield f"its functions call each other in a circle, {circle}; a function can call only others"
        return
    sizes: dict[_FunctionName, int] = {}
    for name in order:
        sizes[name] = sum(count * sizes.get(op, 1) for op, count in called[name].items())
    called_or_not = [_called_function(node.op_identifier()) for node in model.graph.all_nodes()] if order else []
    nodes = sum(sizes.get(name, 1) for name in called_or_not)
    if nodes > _MOST_NODES:
        yield f"its functions' nodes, one for each call, are {nodes}; expected {_MOST_NODES} at most"


def _called_function(key: ir.OperatorIdentifier) -> _FunctionName:
    """Which function inference takes for a call: it knows no overloads, and onnx has two names for its domain."""
    domain, name, _ = key
    return "" if domain == "ai.onnx" else domain, name


def _import_problems(model: ir.Model) -> Iterator[str]:
    """What is wrong with the domains and functions that nodes may name."""
    versions = {model.opset_imports[name] for name in ("", "ai.onnx") if name in model.opset_imports}
    if len(versions) > 1:
        yield f"it imports ai.onnx in two versions, {' and '.join(map(str, sorted(versions)))}; expected one"
    scopes: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for scope in scopes:
        for node in (scope.graph if isinstance(scope, ir.Model) else scope).all_nodes():
            version = scope.opset_imports.get(node.domain, 1)
            if node.domain == DOMAIN and version != VERSION:
                yield f"{_named(node)} is of {DOMAIN} version {version}; expected {VERSION}"
            elif node.domain == MICROSOFT and version < 1:
                yield f"{_named(node)} is of {MICROSOFT} version {version}; expected 1 or more"
    domains: list[object] = [domain for scope in scopes for domain in scope.opset_imports]
    names: list[object] = [name for key in model.functions for name in key]
    yield from _no_texts("it imports the domain", domains)
    yield from _no_texts("it has a function called", names)


def _domain_problems(model: ir.Model) -> Iterator[str]:
    """What a model has in our domain that is not ours: a function there is the definition of one of our ops."""
    for (domain, name, overload), function in model.functions.items():
        if domain != DOMAIN:
            continue
        if name not in FUNCTIONS or overload:
            full = f"{name} (overload {overload!r})" if overload else name
            yield f"its function {full} is in the domain {DOMAIN}, which has no such op; give it another domain"
            continue
        inputs, outputs, attributes = signature(name)
        got = len(function.inputs), len(function.outputs), sorted(function.attributes)
        if got != (len(inputs), len(outputs), sorted(attributes)):
            expected = f"({', '.join(inputs)}) -> ({', '.join(outputs)}) with {', '.join(attributes) or 'none'}"
            yield f"its function {DOMAIN}.{name} has not the inputs, outputs and attributes of that op: {expected}"
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in scope.all_nodes():
            if node.domain == DOMAIN and (node.op_type not in FUNCTIONS or node.overload):
                overload = f" with the overload {node.overload!r}" if node.overload else ""
                yield f"{_named(node)}{overload} is no op of {DOMAIN}; expected one of {', '.join(FUNCTIONS)}"


def _text_problems(scope: Scope) -> Iterator[str]:
    """Names and notes that are no text."""
    graphs: list[Scope] = [scope]
    for node in ir.traversal.RecursiveGraphIterator(scope):
        graphs += subgraphs(node)
        texts = [node.op_type, node.domain, node.name, node.overload, node.doc_string, *node.attributes]
        texts += [value.name for value in (*node.inputs, *node.outputs) if value is not None]
        texts += [attribute.ref_attr_name for attribute in node.attributes.values()]
        yield from _no_texts(f"{_named(node)} has the name", texts)
        yield from _no_texts(f"{_named(node)} has the entry", _entries(node.metadata_props))
    for graph in graphs:
        own: list[Scope | ir.Value] = [graph, *graph.inputs, *graph.outputs]
        own += graph.initializers.values() if isinstance(graph, ir.Graph) else ()
        yield from _no_texts("it has a graph with the name", [it.name for it in own])
        yield from _no_texts("it has a graph with the note", [it.doc_string for it in own])
        for it in own:
            yield from _no_texts("it has a graph with the entry", _entries(it.metadata_props))


def _entries(metadata: Mapping[str, str]) -> list[str]:
    return [*metadata, *metadata.values()]


def _no_texts(before: str, texts: Sequence[object]) -> Iterator[str]:
    """What protobuf hands on as bytes, for it cannot read it."""
    for text in texts:
        if text is not None and not isinstance(text, str):
            yield f"{before} {reprlib.repr(text)}, which is no UTF-8"


def _input_problems(graph: ir.Graph) -> Iterator[str]:
    for value in graph.inputs:
        if value.dtype == ir.DataType.UNDEFINED:
            yield f"its input {value.name!r} has no type"
        extents = [extent for extent in value.shape or () if isinstance(extent, int) and extent > 0]
        if prod(extents) > _MOST_ELEMENTS:
            yield f"its input {value.name!r} has the shape {value.shape}; expected fewer than 2^60 elements"


def _scope_problems(scope: Scope, made: set[ir.Node]) -> Iterator[str]:
    """What is wrong with the names and tensors of a graph and of those within; ``made`` are the nodes before."""
    if isinstance(scope, ir.Graph):
        for value in scope.initializers.values():
            if value.const_value is not None:
                yield from _unreadable(value.const_value, f"its initializer {value.name!r}")
    for node in scope:
        for read in node.inputs:
            if read is not None and not _is_given(read) and read.producer() not in made:
                yield f"{_named(node)} reads {read.name!r}, which nothing made before"
        for subgraph in subgraphs(node):
            yield from _scope_problems(subgraph, made)
        made.add(node)
    for value in scope.outputs:
        if not _is_given(value) and value.producer() not in made:
            yield f"nothing makes its output {value.name!r}"


def _tensor_problems(node: ir.Node) -> Iterator[str]:
    if node.domain in ("", "ai.onnx") and node.op_type == "Constant" and not _is_constant(node):
        yield f"{_named(node)} has the attributes {', '.join(node.attributes) or 'none'}; expected its value alone"
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.UNDEFINED:
            yield f"{_named(node)} has the attribute {attribute.name!r} of no type"
        # onnx cuts it to 32 bits, and what is left may be an axis that it does not look for.
        if attribute.name == "axis" and isinstance(attribute.value, int) and abs(attribute.value) > _MOST_AXIS:
            yield f"{_named(node)} has the axis {attribute.value}; expected one that its data has"
        # Of fewer onnx's inference reads in front of the indices, which ends the process.
        if attribute.name == "batch_dims" and isinstance(attribute.value, int) and attribute.value < 0:
            yield f"{_named(node)} has batch_dims {attribute.value}; expected 0 or more"
        # onnx's inference reads past the parts, which ends the process.
        outputs = len(node.outputs)
        if attribute.name == "num_outputs" and node.op_type == "Split" and attribute.value != outputs:
            yield f"{_named(node)} has num_outputs {attribute.value} and {outputs} outputs; expected as many"
        if attribute.type == ir.AttributeType.GRAPH and not len(attribute.value) and not attribute.value.outputs:
            yield f"the attribute {attribute.name!r} of {_named(node)} is an empty graph"
        if attribute.type == ir.AttributeType.TENSOR:
            yield from _unreadable(attribute.value, f"the attribute {attribute.name!r} of {_named(node)}")


def _is_constant(node: ir.Node) -> bool:
    """Whether a Constant has one value, of a kind that onnx-ir reads."""
    kinds = {"value": ir.AttributeType.TENSOR}
    kinds |= {f"value_{kind}": ir.AttributeType[kind.upper()] for kind in _KINDS}
    attributes = [*node.attributes.values()]
    return len(attributes) == 1 and kinds.get(attributes[0].name) == attributes[0].type


def _unreadable(tensor: ir.TensorProtocol, what: str) -> Iterator[str]:
    """Why the data of a tensor is not that of its type and shape; external data is looked at elsewhere."""
    yield from _no_texts(f"{what} has the name", [tensor.name])
    yield from _no_texts(f"{what} has the note", [tensor.doc_string])
    try:
        if any(extent < 0 for extent in tensor.shape.numpy()):
            yield f"{what} has a negative extent"
        elif tensor.dtype == ir.DataType.UNDEFINED:
            yield f"{what} has no type"
        elif _lacks_data(tensor):
            yield f"{what} has no data; expected {tensor.size} elements"
        elif (got := _packed_bytes(tensor)) not in (None, tensor.nbytes):
            yield f"{what} has {got} bytes of data; expected {tensor.nbytes}"
        elif not isinstance(tensor, ir.ExternalTensor):
            tensor.numpy()
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        yield f"{what} cannot be read: {' '.join(str(error).split())}"


def _lacks_data(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has elements and nothing says which: onnx-ir makes zeros of it, however many."""
    if not isinstance(tensor.raw, onnx.TensorProto) or tensor.raw.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return tensor.size > 0 and not any(field.name.endswith("_data") for field, _ in tensor.raw.ListFields())


def _packed_bytes(tensor: ir.TensorProtocol) -> int | None:
    """How many bytes of data a tensor has whose elements are less than one; onnx-ir takes any for enough."""
    of_no_size = tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    if not isinstance(tensor.raw, onnx.TensorProto) or of_no_size or tensor.dtype.bitwidth >= _BYTE:
        return None
    return len(tensor.raw.raw_data) or len(tensor.raw.int32_data)


def _schema_problems(node: ir.Node, version: int) -> Iterator[str]:
    schema = _schema(node, version)
    if schema is None:
        return
    count = len(node.inputs)
    if count > schema.max_input:
        yield f"{_named(node)} has {count} inputs; expected at most {schema.max_input}"
    if len(node.outputs) > schema.max_output:
        yield f"{_named(node)} has {len(node.outputs)} outputs; expected at most {schema.max_output}"
    for index, formal in enumerate(schema.inputs):
        if formal.option == OpSchema.FormalParameterOption.Single and (
            index >= count or node.inputs[index] is None
        ):
            yield f"{_named(node)} has no input {index}, which is required"
    for name, known in schema.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            if known.required:
                yield f"{_named(node)} has no attribute {name!r}, which is required"
        elif (want := ir.AttributeType(int(known.type))) != attribute.type:
            yield f"{_named(node)} has the attribute {name!r} of type {attribute.type.name}; expected {want.name}"


def _schema(node: ir.Node, version: int) -> Any | None:  # noqa: ANN401 - as onnx has it
    """What onnx knows of an op at a version of its domain; None if it knows nothing."""
    try:
        return onnx.defs.get_schema(node.op_type, max(1, min(version, 1 << 30)), node.domain)
    except onnx.defs.SchemaError:
        return None


def _named(node: ir.Node) -> str:
    return f"{node.op_type} node {node.name!r}"


def _is_given(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_initializer()
