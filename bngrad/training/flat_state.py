"""The flat layout of a training step: one vector in, one vector out, instead of a tensor each."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd, nodes_at_start
from bngrad.training.step_info import FlatState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.graph.builder import NodeMaker
    from bngrad.training.step_info import StateTensor, StepInfo

_INPUT, _OUTPUT = "state", "state_new"
_ZERO_IS_A_SIZE = {"allowzero": 1}
"""Attributes of a Reshape to an empty tensor."""


def flat_layout(info: StepInfo, *models: ir.Model) -> StepInfo:
    """Returns the metadata of a step of the named layout in the flat layout.

    The vector is double if a tensor of the state is, else float; the counters are elements of it. A float counts
    exactly to 16,777,216 updates and stays there.

    Args:
        info: The metadata of the named layout.
        models: The models that take the state; none has the names of the vectors.
    """
    names, offset = Names(*models), 0
    state: dict[str, StateTensor] = {}
    for name, spec in info.state.items():
        state[name] = replace(spec, new=None, offset=offset)
        offset += prod(spec.shape)
    double = any(spec.dtype == "float64" for spec in state.values())
    flat = FlatState(names.fresh(_INPUT), names.fresh(_OUTPUT), "float64" if double else "float32", offset)
    return replace(info, layout="flat", state=state, flat=flat)


def take_flat_state(model: ir.Model, info: StepInfo) -> None:
    """Replaces the inputs of a model that are tensors of the state by parts of one input vector.

    Args:
        model: A model of the named layout, which may lack some of these inputs; it is changed.
        info: The metadata of the flat layout.
    """
    graph, flat = model.graph, _flat(info)
    inputs = {str(value.name): value for value in graph.inputs}
    dtype = ir.DataType.from_numpy(np.dtype(flat.dtype))
    vector = ir.val(flat.input, dtype, [flat.size])
    make = nodes_at_start(graph, Names(model), flat.input)
    for name, spec in info.state.items():
        if name in inputs:
            old, start = inputs[name], int(spec.offset or 0)
            end = start + prod(spec.shape)
            # Not a Split of all: a shader of WebGPU has ten buffers at most.
            part = make.op("Slice", vector, make.int64([start]), make.int64([end]))
            part.dtype, part.shape = dtype, ir.Shape([end - start])
            tensor = make.op("Reshape", part, make.int64(spec.shape), **_ZERO_IS_A_SIZE if 0 in spec.shape else {})
            tensor.dtype, tensor.shape = dtype, ir.Shape(spec.shape)
            _take_place(make, old, make.cast(tensor, ir.DataType.from_numpy(np.dtype(spec.dtype))))
            graph.inputs.remove(old)
    graph.inputs.append(vector)


def return_flat_state(model: ir.Model, info: StepInfo, new: Mapping[str, str]) -> None:
    """Replaces the outputs of a step that are the next state by one output vector.

    Args:
        model: The step; it is changed.
        info: The metadata of the flat layout.
        new: The outputs with the next state of the named layout, by the names of the state.
    """
    graph, flat = model.graph, _flat(info)
    outputs = {str(value.name): value for value in graph.outputs}
    dtype = ir.DataType.from_numpy(np.dtype(flat.dtype))
    make = NodesAtEnd(graph, Names(model), flat.output)
    flattened = make.int64([-1])
    parts = [make.op("Reshape", make.cast(outputs[new[name]], dtype), flattened) for name in info.state]
    vector = make.name(make.op("Concat", *parts, axis=0), flat.output)
    vector.dtype, vector.shape = dtype, ir.Shape([flat.size])
    kept = [value for value in graph.outputs if value.name not in set(new.values()) - set(info.outputs)]
    graph.outputs.clear()
    graph.outputs.extend([*kept, vector])


def _take_place(make: NodeMaker, old: ir.Value, new: ir.Value) -> None:
    """Has a new value take the name and all uses of an input."""
    name, old.name = str(old.name), None
    new = make.name(new, name)
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _flat(info: StepInfo) -> FlatState:
    assert info.flat is not None, "the layout is flat"  # noqa: S101
    return info.flat
