"""The nodes of the gradient that a Gradient of ``ai.onnx.preview.training`` stands for.

A Gradient names a value y of the graph around it, and the values ``xs`` and ``zs`` that y is a function of. Its
inputs are the values of these to differentiate at. If they are ``xs`` and ``zs`` themselves, the nodes before y
become those of the training graph, so that y is computed once, and its random numbers are drawn once. Else y is
computed again. What y depends on besides ``xs`` and ``zs`` is constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.loss_and_wrt import IndependentError
from bngrad.autodiff.prepare_forward import is_trained, name_nodes
from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.constant_value import new_initializer
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd, NodesBefore
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.nodes import PRODUCT, describe
from bngrad.graph.shapes import shape_of, zeros
from bngrad.graph.subgraphs import captured_values, detach, nodes_of, subgraphs
from bngrad.opset.gradient_names import gradient_name
from bngrad.options import ForwardOptions
from bngrad.passes import pipeline
from bngrad.passes.prepare.inline_functions import inline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from bngrad.autodiff.gradient_request import GradientRequest

_DOMAIN = "bngrad.gradient"
"""The domain of the functions that compute gradients, until they are inlined."""


def replace_gradient(model: ir.Model, request: GradientRequest, named: Collection[ir.Value]) -> None:
    """Replaces a Gradient, and with it the nodes before y if it differentiates where these compute y.

    Args:
        model: The model.
        request: The Gradient.
        named: The values that it and others name.
    """
    for _ in request.wrt:
        try:
            _replace(model, request, named)
        except IndependentError as error:
            _make_zeros(model, request, error.names)
        else:
            return
    model.graph.remove(request.node, safe=True)


def _make_zeros(model: ir.Model, request: GradientRequest, names: Collection[str]) -> None:
    """Replaces the gradients with respect to what y does not depend on, and leaves them out of the outputs."""
    node = request.node
    make = NodesBefore(node, Names(model), node.name or "Gradient")
    for x, operand, output in zip(request.xs, node.inputs, node.outputs, strict=False):
        if x in names and output.name and operand is not None:
            result = zeros(make, shape_of(make, operand), dtype_of(operand))
            result.shape, name = operand.shape, output.name
            ir.convenience.replace_all_uses_with([output], [result], replace_graph_outputs=True)
            output.name, result.name = "", name


def _replace(model: ir.Model, request: GradientRequest, named: Collection[ir.Value]) -> None:
    """Replaces a Gradient whose y depends on all of ``wrt``.

    Raises:
        IndependentError: y does not; nothing is changed.
    """
    node, graph = request.node, model.graph
    computed = request.nodes if request.is_at_named_values else []
    kept = {*_read_elsewhere(graph, {*computed, node}), *named}
    shared = [value for inner in computed for value in inner.outputs if value in kept]
    function, operands, results = _function(model, request, [str(value.name) for value in shared])
    model.functions[function.identifier()] = function
    call = ir.Node(function.domain, function.name, operands, num_outputs=len(results), name=node.name)
    for body in (body for inner in computed for body in subgraphs(inner)):
        detach(body)
    old = [*(value for value in node.outputs if value.name), *shared]
    for value, result in zip(call.outputs, results, strict=True):
        value.type, value.shape = result.type, result.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node, *computed], [call], old, call.outputs)
    graph.sort()  # what reads the values before y may come before the Gradient
    inline(model, lambda candidate: candidate is function)


def _read_elsewhere(graph: ir.Graph, nodes: Collection[ir.Node]) -> Iterator[ir.Value | None]:
    """Yields the outputs of a graph, and the values that its nodes read, without some nodes."""
    yield from graph.outputs
    for node in graph:
        if node not in nodes:
            yield from (*node.inputs, *captured_values(node))


def _function(
    model: ir.Model, request: GradientRequest, outputs: Collection[str]
) -> tuple[ir.Function, list[ir.Value], list[ir.Value]]:
    """Returns a function that computes gradients, its operands in the model, and its results.

    Args:
        model: The model; it gets the initializers that the function reads.
        request: The Gradient.
        outputs: Names of further values that the function computes.
    """
    needed = list(dict.fromkeys((request.y, *outputs)))
    part = _forward(model, request, needed)
    new_names = dict(zip(needed, (str(value.name) for value in part.graph.outputs), strict=True))
    frozen = [str(node.name) for node in nodes_of(part.graph) if is_of_onnx(node) and not is_trained(node)]
    try:
        options = ForwardOptions(loss=new_names[request.y], wrt=request.wrt, frozen=frozen)
        training = training_graph(part, options)
        result, _ = pipeline.for_target(
            training.model, target="stock", functions=False, fuse=False, recognize=False, in_place=True, last=False
        )
    except IndependentError:
        raise
    except ModelError as error:
        raise UnsupportedNodeError(f"{describe(request.node)} cannot be rewritten: {error}") from error
    graph = result.graph
    computed = {str(value.name): value for value in graph.outputs}
    names = [*(training.gradients[x] for x in request.wrt), *(new_names[name] for name in outputs)]
    results = [computed[name] for name in names]
    parameters = list(dict.fromkeys((*graph.inputs, *graph.initializers.values())))
    operands = [_operand(model, value, request) for value in parameters]
    for value in parameters:
        value.const_value = None
    graph.initializers.clear()
    graph.inputs[:], graph.outputs[:] = parameters, _own(results, NodesAtEnd(graph, Names(result), "copy"))
    return ir.Function(_DOMAIN, "Gradient", graph=graph, attributes=[]), operands, results


def _forward(model: ir.Model, request: GradientRequest, outputs: Sequence[str]) -> ir.Model:
    """Returns a model that computes outputs from the named values and the inputs of a model."""
    inputs = dict.fromkeys((*request.named, *model.graph.inputs))
    graph = ir.convenience.extract(model.graph, list(inputs), outputs)
    if not request.is_at_named_values:
        for value in graph.inputs[: len(request.named)]:
            value.const_value = None
            graph.initializers.pop(str(value.name), None)
    shapes = [None if operand is None else operand.shape for operand in request.node.inputs]
    if shapes != [value.shape for value in request.named]:
        for value, shape in zip(graph.inputs, shapes, strict=False):
            value.shape = shape
        for node in nodes_of(graph):
            for value in (*node.outputs, *(value for body in subgraphs(node) for value in body.inputs)):
                value.shape = None
    part = ir.Model(graph, ir_version=model.ir_version, functions=[f.clone() for f in model.functions.values()])
    part.metadata_props[PRODUCT] = "gradient"  # y may itself be computed from gradients
    name_nodes(part)
    names, taken = Names(part), {gradient_name(x) for x in request.wrt}
    for value in graph.outputs:
        if value.name in taken:  # a gradient of first order
            value.name = names.fresh(value.name)
    return part


def _operand(model: ir.Model, value: ir.Value, request: GradientRequest) -> ir.Value:
    """Returns the value in a model for an input or initializer of the training graph of a part of it."""
    name = str(value.name)
    if name in request.names:
        operand = request.node.inputs[request.names.index(name)]
        assert operand is not None, "a node without one is refused"  # noqa: S101
        return operand
    source = request.values.get(name)
    if source is not None and source.producer() is None and _is_same(value.const_value, source.const_value):
        return source
    if value.const_value is None:
        raise UnsupportedNodeError(
            f"{describe(request.node)} cannot be rewritten: it needs an input {name!r}, since other nodes "
            "read the running statistic of the batch norm; expected one that nothing else reads"
        )
    return new_initializer(model.graph, Names(model).fresh(name), value.const_value)


def _is_same(tensor: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Returns whether the value of an input, if it has one, is that of another."""
    if tensor is None or other is None or tensor is other:
        return tensor is None or tensor is other
    return (tensor.dtype, tensor.shape) == (other.dtype, other.shape) and tensor.tobytes() == other.tobytes()


def _own(values: Iterable[ir.Value], make: NodesAtEnd) -> list[ir.Value]:
    """Returns values that nodes compute, each once: copies of inputs, and of those that occur before."""
    results: list[ir.Value] = []
    for value in values:
        is_own = value.producer() is not None and value not in results
        copy = value if is_own else make.op("Identity", value)
        copy.type, copy.shape = value.type, value.shape
        results.append(copy)
    return results
