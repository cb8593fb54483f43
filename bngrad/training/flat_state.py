"""The flat layout of a training step: one vector in, one vector out, instead of a tensor each."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd, nodes_at_start
from bngrad.training.optim.joint import join_updates
from bngrad.training.step_info import FlatState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.graph.builder import NodeMaker
    from bngrad.training.optim.joint import Joint, Updates
    from bngrad.training.step_info import StateTensor, StepInfo

_INPUT, _OUTPUT = "state", "state_new"
_ZERO_IS_A_SIZE = {"allowzero": 1}
"""Attributes of a Reshape to an empty tensor."""


def flatten_state(info: StepInfo, step: ir.Model, evaluation: ir.Model, updates: Updates | None) -> StepInfo:
    """Converts a step and its evaluation graph to the flat layout, and returns their metadata.

    The vector is double if a tensor of the state is, else float; the counters are elements of it. A float counts
    exactly to 16,777,216 updates and stays there. Tensors that are updated together come first.

    Args:
        info: The metadata of the named layout.
        step: The step; it is changed.
        evaluation: The evaluation graph; it is changed.
        updates: The updates of the step that may be joined.
    """
    new = {name: str(entry.new) for name, entry in info.state.items()}
    dtype = "float64" if any(spec.dtype == "float64" for spec in info.state.values()) else "float32"
    joints = [] if updates is None else join_updates(updates, dtype)
    info = _flat_info(info, dtype, joints, step, evaluation)
    _return_vector(step, info, new, joints)
    _take_vector(step, info, joints)
    _take_vector(evaluation, info, [])
    return info


def _flat_info(info: StepInfo, dtype: str, joints: Sequence[Joint], *models: ir.Model) -> StepInfo:
    """The metadata of the flat layout, in which the tensors of a joint follow each other."""
    names, offset = Names(*models), 0
    state: dict[str, StateTensor] = {}
    for name in dict.fromkeys([*(name for joint in joints for name in joint.names), *info.state]):
        state[name] = replace(info.state[name], new=None, offset=offset)
        offset += prod(info.state[name].shape)
    flat = FlatState(names.fresh(_INPUT), names.fresh(_OUTPUT), dtype, offset)
    return replace(info, layout="flat", state=state, flat=flat)


def _take_vector(model: ir.Model, info: StepInfo, joints: Sequence[Joint]) -> None:
    """Replaces the inputs of a model that are tensors of the state, or joints of them, by parts of the vector."""
    graph, flat = model.graph, _flat(info)
    inputs = {str(value.name): value for value in graph.inputs}
    dtype = ir.DataType.from_numpy(np.dtype(flat.dtype))
    vector = ir.val(flat.input, dtype, [flat.size])
    make = nodes_at_start(graph, Names(model), flat.input)
    first = {str(joint.old.name): replace(info.state[joint.names[0]], shape=joint.shape) for joint in joints}
    for name, spec in {**info.state, **first}.items():
        if name in inputs:
            old, start = inputs[name], int(spec.offset or 0)
            end = start + prod(spec.shape)
            # Not a Split of all: a shader of WebGPU has ten buffers at most.
            part = make.op("Slice", vector, make.int64([start]), make.int64([end]))
            part.dtype, part.shape = dtype, ir.Shape([end - start])
            if len(spec.shape) != 1:
                zeros = _ZERO_IS_A_SIZE if 0 in spec.shape else {}
                part = make.op("Reshape", part, make.int64(spec.shape), **zeros)
                part.dtype, part.shape = dtype, ir.Shape(spec.shape)
            _take_place(make, old, make.cast(part, ir.DataType.from_numpy(np.dtype(spec.dtype))))
            graph.inputs.remove(old)
    graph.inputs.append(vector)


def _return_vector(model: ir.Model, info: StepInfo, new: Mapping[str, str], joints: Sequence[Joint]) -> None:
    """Replaces the outputs of a step that are the next state, by the names of the state, by the next vector."""
    graph, flat = model.graph, _flat(info)
    outputs = {str(value.name): value for value in graph.outputs}
    dtype = ir.DataType.from_numpy(np.dtype(flat.dtype))
    make = NodesAtEnd(graph, Names(model), flat.output)
    flattened = make.int64([-1])
    joint = {name: joint.new for joint in joints for name in joint.names}
    parts = dict.fromkeys(
        joint[name] if name in joint else make.op("Reshape", make.cast(outputs[new[name]], dtype), flattened)
        for name in info.state
    )
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
