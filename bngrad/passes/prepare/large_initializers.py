"""Hides initializers from onnx's functions by turning them into graph inputs meanwhile.

onnx's functions take a serialized model, which cannot exceed 2 GiB, and onnx-ir's serialization searches all
inputs for each initializer.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_LARGE_BYTES = 1024
"""Shapes and conversions of ops do not depend on initializers of more bytes."""


def is_large(initializer: ir.Value) -> bool:
    """Returns whether an initializer is so large that no shape and no conversion of an op depends on it."""
    return initializer.const_value is not None and initializer.const_value.nbytes > _LARGE_BYTES


@contextmanager
def hidden_initializers(graph: ir.Graph, hide: Callable[[ir.Value], bool]) -> Iterator[None]:
    """Turns initializers into graph inputs within a ``with`` block, and back at its end.

    Args:
        graph: The main graph of a model.
        hide: Selects the initializers.
    """
    initializers, inputs = dict(graph.initializers), list(graph.inputs)
    hide_initializers(graph, hide)
    try:
        yield
    finally:
        restore_initializers(graph, initializers, [str(value.name) for value in inputs])


def hide_initializers(graph: ir.Graph, hide: Callable[[ir.Value], bool]) -> None:
    """Turns the selected initializers into graph inputs of the same type and shape."""
    inputs = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and hide(value):
            del graph.initializers[name]
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(value.const_value.shape.numpy())
            if value not in inputs:
                graph.inputs.append(value)


def restore_initializers(graph: ir.Graph, initializers: Mapping[str, ir.Value], inputs: Sequence[str]) -> None:
    """Restores the initializers and inputs of a graph, in their order; new initializers are kept.

    Args:
        graph: The graph that `hide_initializers` changed, or a conversion of it.
        initializers: The original initializers with their tensors, by name.
        inputs: The names of the original inputs.
    """
    values = {str(value.name): value for value in (*graph.initializers.values(), *graph.inputs)}
    added = [name for name in graph.initializers if name not in initializers]
    graph.initializers.clear()
    for name in (*initializers, *added):
        if name in initializers:
            values[name].const_value = initializers[name].const_value
        graph.register_initializer(values[name])
    graph.inputs[:] = [values[name] for name in inputs]
