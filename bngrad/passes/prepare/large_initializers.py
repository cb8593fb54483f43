"""Initializers that an ONNX function need not see are mere inputs while it runs.

onnx's functions take a serialized model, of 2 GiB at most; and onnx-ir, which serializes it, looks for each
initializer among all inputs.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_LARGE = 1024
"""Of an initializer, in bytes."""


def is_large(initializer: ir.Value) -> bool:
    """Whether an initializer is larger than any that a shape, or the conversion of an op, depends on."""
    return initializer.const_value is not None and initializer.const_value.nbytes > _LARGE


@contextmanager
def set_aside(graph: ir.Graph, unneeded: Callable[[ir.Value], bool]) -> Iterator[None]:
    """Makes inputs of initializers, and initializers of those inputs again in the end.

    Args:
        graph: The main graph of a model.
        unneeded: Of which initializers.
    """
    initializers, inputs = dict(graph.initializers), list(graph.inputs)
    become_inputs(graph, unneeded)
    try:
        yield
    finally:
        restore(graph, initializers, [str(value.name) for value in inputs])


def become_inputs(graph: ir.Graph, unneeded: Callable[[ir.Value], bool]) -> None:
    """Makes inputs of initializers, with their types."""
    inputs = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and unneeded(value):
            del graph.initializers[name]
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(value.const_value.shape.numpy())
            if value not in inputs:
                graph.inputs.append(value)


def restore(graph: ir.Graph, initializers: Mapping[str, ir.Value], inputs: Sequence[str]) -> None:
    """Gives a graph the initializers and inputs that it had, in their order; initializers that are new stay.

    Args:
        graph: The graph that `become_inputs` changed, or what became of it.
        initializers: What it had before, with the tensors, by name.
        inputs: The names of what it had.
    """
    values = {str(value.name): value for value in (*graph.initializers.values(), *graph.inputs)}
    added = [name for name in graph.initializers if name not in initializers]
    graph.initializers.clear()
    for name in (*initializers, *added):
        if name in initializers:
            values[name].const_value = initializers[name].const_value
        graph.register_initializer(values[name])
    graph.inputs[:] = [values[name] for name in inputs]
