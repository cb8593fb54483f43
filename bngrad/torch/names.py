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
        module: What was exported.
        example: Its arguments.
        outputs: Names for its outputs.
        sizes: The names of symbolic sizes; by default, there is one, that of the batch.
    """
    graph = model.graph
    wanted: dict[ir.Value, str] = dict(zip(graph.inputs, example.names, strict=True))
    initializers = _merged(graph, module)
    wanted |= initializers
    for value, name in zip(list(graph.outputs), outputs, strict=True):
        if value.producer() is not None and value in wanted:  # it is an output under another name, too
            copy = ir.node("Identity", [value])
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            graph.append(copy)
            wanted[copy.outputs[0]] = name
        elif value.producer() is not None:
            wanted[value] = name
    graph.outputs[:] = [value for value in wanted if value.producer() is not None]
    graph.initializers.clear()
    _rename(model, wanted)
    for value in initializers:
        graph.initializers[wanted[value]] = value
    _name_sizes(graph, _batch_alone(graph) if sizes is None else sizes.symbols)
    for value, names in zip(graph.inputs, sizes.axes if sizes is not None else (), strict=False):
        if value.shape is not None:  # a dimension may be a function of others, and have a name nonetheless
            value.shape = ir.Shape([names.get(axis, one) for axis, one in enumerate(value.shape)])


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
        known = canonical.get(name, name)
        if known in kept:
            value.replace_all_uses_with(kept[known], replace_graph_outputs=True)
        else:
            kept[known] = value
    return {value: user_name(name) if name in canonical else name for name, value in kept.items()}


def _rename(model: ir.Model, wanted: dict[ir.Value, str]) -> None:
    names = Names(model)
    taken = set(wanted.values())
    for node in model.graph:
        for value in node.outputs:
            if value not in wanted and value.name in taken:
                value.name = names.fresh(f"{value.name}_value")
    for value, name in wanted.items():
        value.name = name
        if value.const_value is not None:
            value.const_value.name = name


def _batch_alone(graph: ir.Graph) -> dict[str, str]:
    """The name of PyTorch's symbol for the size of the batch."""
    symbols = [str(one.shape[0].value) for one in graph.inputs if one.shape and not isinstance(one.shape[0], int)]
    symbol = next((one for one in symbols if not one.isdecimal()), None)
    return {} if symbol is None else {symbol: BATCH}


def _name_sizes(graph: ir.Graph, names: Mapping[str, str]) -> None:
    """Renames symbols, which PyTorch numbers, wherever a shape has them.

    A size that was to be dynamic, and that the module fixes, is a symbol whose name is the number.
    """
    whole = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in names) or r"(?!)")
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(one, whole, names) for one in value.shape])


def _renamed(
    dimension: int | ir.SymbolicDim, symbols: re.Pattern[str], names: Mapping[str, str]
) -> int | str | None:
    if isinstance(dimension, int) or dimension.value is None:
        return dimension if isinstance(dimension, int) else None
    name = str(dimension.value)
    return int(name) if name.isdecimal() else symbols.sub(lambda found: names[found[0]], name)
