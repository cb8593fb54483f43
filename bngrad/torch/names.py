"""Gives the values of an exported model the names that users know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.torch.dynamic_shapes import BATCH
from bngrad.torch.forward import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from bngrad.torch.example import Example
    from bngrad.torch.sizes import Sizes


def name_values(
    model: ir.Model,
    module: torch.nn.Module,
    example: Example,
    outputs: Sequence[str],
    sizes: Sizes | None = None,
) -> None:
    """Names inputs, outputs, parameters, buffers and symbolic sizes.

    A tensor that the module has under several names becomes one initializer, under the first, as in
    `named_parameters`. Outputs that no node computes are removed: they are inputs, or were not changed.

    Args:
        model: The exported model; it is changed.
        module: The exported module.
        example: Its arguments.
        outputs: Names for its outputs.
        sizes: The names of symbolic sizes; by default, there is one, that of the batch.
    """
    graph = model.graph
    new_names: dict[ir.Value, str] = dict(zip(graph.inputs, example.names, strict=True))
    initializers = _merged(graph, module)
    new_names |= initializers
    for value, name in zip(list(graph.outputs), outputs, strict=True):
        if value.producer() is not None and value in new_names:  # it is an output under another name, too
            copy = ir.node("Identity", [value])
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            graph.append(copy)
            new_names[copy.outputs[0]] = name
        elif value.producer() is not None:
            new_names[value] = name
    graph.outputs[:] = [value for value in new_names if value.producer() is not None]
    graph.initializers.clear()
    _rename(model, new_names)
    for value in initializers:
        graph.initializers[new_names[value]] = value
    _name_sizes(graph, _batch_symbol(graph) if sizes is None else sizes.symbols)
    for value, names in zip(graph.inputs, sizes.axes if sizes is not None else (), strict=False):
        if value.shape is not None:  # a dimension may be a function of others, and have a name nonetheless
            value.shape = ir.Shape([names.get(axis, dimension) for axis, dimension in enumerate(value.shape)])


def _merged(graph: ir.Graph, module: torch.nn.Module) -> dict[ir.Value, str]:
    """The initializers, with the names of parameters and buffers; several of one tensor become one."""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first: dict[int, str] = {}
    canonical = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    kept: dict[str, ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        canonical_name = canonical.get(name, name)
        if canonical_name in kept:
            value.replace_all_uses_with(kept[canonical_name], replace_graph_outputs=True)
        else:
            kept[canonical_name] = value
    return {value: user_name(name) if name in canonical else name for name, value in kept.items()}


def _rename(model: ir.Model, new_names: dict[ir.Value, str]) -> None:
    names = Names(model)
    taken = set(new_names.values())
    for node in model.graph:
        for value in node.outputs:
            if value not in new_names and value.name in taken:
                value.name = names.fresh(f"{value.name}_value")
    for value, name in new_names.items():
        value.name = name
        if value.const_value is not None:
            value.const_value.name = name


def _batch_symbol(graph: ir.Graph) -> dict[str, str]:
    """The name of PyTorch's symbol for the size of the batch."""
    sizes = [value.shape[0] for value in graph.inputs if value.shape]
    symbols = [str(size.value) for size in sizes if not isinstance(size, int)]
    symbol = next((name for name in symbols if not name.isdecimal()), None)
    return {} if symbol is None else {symbol: BATCH}


def _name_sizes(graph: ir.Graph, names: Mapping[str, str]) -> None:
    """Renames symbols, which PyTorch numbers, in all shapes.

    A dynamic size that the module fixes is a symbol whose name is the number.
    """
    whole = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names) or r"(?!)")
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(dimension, whole, names) for dimension in value.shape])


def _renamed(
    dimension: int | ir.SymbolicDim, symbols: re.Pattern[str], names: Mapping[str, str]
) -> int | str | None:
    if isinstance(dimension, int) or dimension.value is None:
        return dimension if isinstance(dimension, int) else None
    name = str(dimension.value)
    return int(name) if name.isdecimal() else symbols.sub(lambda match: names[match[0]], name)
