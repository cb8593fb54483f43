"""Keeps the effect of `torch.no_grad` in an exported program, whose later stages drop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bngrad.errors import UnsupportedNodeError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node


def detach_no_grad(program: ExportedProgram) -> None:
    """Detaches the inputs of a program's blocks that ran without gradients.

    Args:
        program: The result of `torch.export.export`; it is changed.

    Raises:
        UnsupportedNodeError: A block writes in place to a tensor that has a gradient.
    """
    signature = program.graph_signature
    still = {*signature.inputs_to_buffers, *signature.user_inputs, *signature.inputs_to_lifted_tensor_constants}
    frozen = {
        name
        for name, parameter in signature.inputs_to_parameters.items()
        if not program.state_dict[parameter].requires_grad
    }
    _detach_blocks(program.graph_module, {str(name) for name in still} | frozen)


def _detach_blocks(owner: GraphModule, still: set[str]) -> None:
    """Detaches the arguments of each block, except for inputs without a gradient, which it may write to."""
    block_op = torch.ops.higher_order.wrap_with_set_grad_enabled
    for node in list(owner.graph.nodes):
        if node.op != "call_function" or node.target is not block_op:
            continue
        enabled, body, *arguments = node.args
        inner = getattr(owner, body.target)
        if enabled:
            _detach_blocks(inner, set())
            continue
        written = _written(inner.graph)
        for index, (argument, placeholder) in enumerate(zip(arguments, _placeholders(inner.graph), strict=True)):
            if not _is_float(argument) or (argument.op == "placeholder" and argument.name in still):
                continue
            if placeholder in written:
                raise UnsupportedNodeError(
                    f"{argument.name!r} is written in place under torch.no_grad ({_place(node)}), which cannot be "
                    "exported; expected an assignment of a new tensor"
                )
            with owner.graph.inserting_before(node):
                detached = owner.graph.call_function(torch.ops.aten.detach.default, (argument,))
            detached.meta = dict(argument.meta)
            node.update_arg(index + 2, detached)
    owner.recompile()


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _written(graph: Graph) -> set[Node]:
    """The nodes whose tensors the ops of a block write to."""
    written = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for index, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
                if isinstance(value, torch.fx.Node):
                    written.add(value)
    return written


def _is_float(node: Any) -> bool:  # noqa: ANN401 - an argument of a node
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _place(node: Node) -> str:
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return lines[-1] if lines else node.name
