"""Checks of a rewritten model: the recognized batch norms, the ops that are left, and the results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx

import bngrad

BATCH_NORM_OPS = ("Pow", "Reciprocal", "ReduceMean", "ReduceSum", "ReduceSumSquare", "Sqrt", "Tile")
"""The ops of which a batch norm in primitives has some, and of which few others have any."""


def live_nodes(model):
    """The nodes that the outputs of a model depend on; exporters leave others in it."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    live, names = {}, [value.name for value in model.graph.output]
    while names:
        node = makers.get(names.pop())
        if node is not None and id(node) not in live:
            live[id(node)] = node
            names += node.input
    return list(live.values())


def primitives(model):
    """The number of live nodes of each op that a batch norm may consist of."""
    return dict(sorted(Counter(n.op_type for n in live_nodes(model) if n.op_type in BATCH_NORM_OPS).items()))


def batch_norms(model):
    """The numbers of batch norms that are ops of ``bngrad``: forward, backward, and those whose dX is read."""
    nodes = live_nodes(model)
    read_names = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    gradients = [n for n in nodes if n.domain == "bngrad" and n.op_type.endswith("Grad")]
    forwards = sum(n.op_type == "BatchNormalizationTraining" for n in nodes)
    return forwards, len(gradients), sum(node.output[0] in read_names for node in gradients)


def outputs(model, values):
    """The results of ONNX Runtime, by the names of the outputs."""
    session = bngrad.session(model)
    feeds = {value.name: values[value.name] for value in session.get_inputs() if value.name in values}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


def require_close(got, want, tolerance, names=None):
    """Compares outputs relative to the largest element of each, or to 0.1 if that is less.

    Gradients of the bias before a batch norm are 0 except for rounding.
    """
    names = names or {name: name for name in got}
    for name, expected in names.items():
        scale = max(float(np.abs(want[expected]).max(initial=0)), 0.1)
        error = np.abs(got[name].astype(np.float64) - want[expected]).max(initial=0)
        assert error <= tolerance * scale, f"{name}: {error:.2e} of {scale:.2e}"


def load(path):
    """A model, and the arrays that were recorded with it."""
    with np.load(path.with_suffix(".npz")) as recorded:
        return onnx.load(path), dict(recorded)
