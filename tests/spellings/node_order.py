"""The order of a graph's nodes, and the names of its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    import onnx


def named_outputs(
    nodes: Sequence[onnx.NodeProto], outputs: Collection[str], rng: random.Random
) -> list[onnx.NodeProto]:
    """The nodes without most Identity nodes at the end: the node that computes a graph output takes its name."""
    nodes = list(nodes)
    makers = {node.output[0]: node for node in nodes}
    for node in list(nodes):
        maker = makers.get(node.input[0]) if node.op_type == "Identity" and node.output[0] in outputs else None
        if maker is None or maker.output[0] in outputs or rng.random() < 0.1:
            continue
        old, new = maker.output[0], node.output[0]
        nodes.remove(node)
        for other in nodes:
            for i, name in enumerate(other.input):
                if name == old:
                    other.input[i] = new
        maker.output[0] = new
    return nodes


def shuffled(
    nodes: Sequence[onnx.NodeProto], outputs: Collection[str], rng: random.Random
) -> list[onnx.NodeProto]:
    """The nodes in a random topological order, without those that nothing reads."""
    makers = {node.output[0]: node for node in nodes}
    kept, waiting, stack = {}, {}, [node for node in nodes if node.output[0] in outputs]
    while stack:
        node = stack.pop()
        if node.output[0] not in kept:
            kept[node.output[0]] = node
            stack.extend(makers[name] for name in node.input if name in makers)
    readers: dict[str, list[str]] = {}
    for output, node in kept.items():
        needed = {name for name in node.input if name in makers}
        waiting[output] = len(needed)
        for name in needed:
            readers.setdefault(name, []).append(output)
    ready = sorted(output for output, number in waiting.items() if not number)
    ordered = []
    while ready:
        output = ready.pop(rng.randrange(len(ready)))
        ordered.append(kept[output])
        for reader in readers.get(output, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    assert len(ordered) == len(kept)
    return ordered
