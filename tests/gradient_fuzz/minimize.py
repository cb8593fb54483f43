"""Makes a case smaller while it has the same fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from gradient_fuzz.interpreter import Interpreter
from gradient_fuzz.judge import judge
from gradient_fuzz.sketch import numpy_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradient_fuzz.cases import Case

ROUNDS = 40


def minimized(case: Case) -> Case | None:
    """Returns the smallest variant of a case with its first fault; None if it has none."""
    expected = _what(case)
    if expected is None:
        return None
    for _ in range(ROUNDS):
        smaller = next((candidate for candidate in _smaller(case) if _what(candidate) == expected), None)
        if smaller is None:
            break
        case = smaller
    return case


def _what(case: Case) -> str | None:
    try:
        finds = judge(case, range(4)).finds
    except Exception:  # noqa: BLE001 - a model that cannot be judged is not a smaller case
        return None
    return finds[0].what if finds else None


def _smaller(case: Case) -> Iterator[Case]:  # noqa: C901 - one way after the other
    graph = case.model.graph
    if len(case.wrt) > 1:
        for name in case.wrt:
            yield replace(case, wrt=(name,))
    if len(graph.output) > 1:
        model = _copy(case.model)
        keep = [value for value in graph.output if value.name == "loss"]
        del model.graph.output[:]
        model.graph.output.extend(keep)
        yield replace(case, model=model)
    values = Interpreter(case.model, case.frozen, case.training).run(case.feeds)
    # A node's output becomes an input: the nodes before it are removed.
    for node in reversed(graph.node[:-1]):
        names = [name for name in node.output if name]
        if node.op_type != "Constant" and all(values[name].dtype.kind == "f" for name in names):
            yield _cut(case, names, values)
    # A sum becomes one of its summands.
    for node in graph.node:
        if node.op_type == "Add" and all(values[name].shape == () for name in node.input):
            for name in node.input:
                yield _without(case, node, name)
        elif len(node.output) == 1 and node.op_type not in ("Constant", "Identity", "Cast"):
            for name in node.input:
                if name and values[name].dtype.kind == "f" and values[name].shape == values[node.output[0]].shape:
                    yield _without(case, node, name)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def _cut(case: Case, names: list[str], values: dict[str, np.ndarray]) -> Case:
    model = _copy(case.model)
    element = case.element
    nodes = [node for node in model.graph.node if not set(names) & set(node.output)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    feeds = dict(case.feeds)
    for name in names:
        feeds[name] = np.asarray(values[name]).astype(numpy_type(element))
        model.graph.input.append(helper.make_tensor_value_info(name, element, list(values[name].shape)))
    return _pruned(replace(case, model=model, feeds=feeds, wrt=(*case.wrt, *names)))


def _without(case: Case, node: onnx.NodeProto, name: str) -> Case:
    model = _copy(case.model)
    nodes = [other for other in model.graph.node if other.output[0] != node.output[0]]
    for other in nodes:
        for index, operand in enumerate(other.input):
            if operand == node.output[0]:
                other.input[index] = name
    kept = [onnx.NodeProto.FromString(other.SerializeToString()) for other in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return _pruned(replace(case, model=model))


def _pruned(case: Case) -> Case:
    """A case without the nodes and values that the loss does not depend on."""
    graph = case.model.graph
    needed = {"loss"}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(name for name in node.input if name)
            nodes.insert(0, onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)
    computed = {name for node in nodes for name in node.output}
    for field in (graph.input, graph.initializer, graph.output):
        kept = [
            value
            for value in field
            if value.name in needed and (field is not graph.output or value.name in computed)
        ]
        del field[:]
        field.extend(kept)
    names = {node.name for node in nodes}
    return replace(
        case,
        feeds={name: array for name, array in case.feeds.items() if name in needed},
        wrt=tuple(name for name in case.wrt if name in needed),
        frozen=tuple(name for name in case.frozen if name in names),
        training=tuple(name for name in case.training if name in names),
    )
