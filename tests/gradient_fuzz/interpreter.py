"""Runs a forward graph in float64 many times, for central differences.

The ops are those of `bngrad.validation.float64`; the graph is prepared once.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import load_op

from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS
from bngrad.validation.training_ops.control_flow import WITH_BODIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}

_TYPE_ATTRIBUTE = {
    "Cast": "to",
    "EyeLike": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
}
_OURS = dict(zip(FUNCTIONS, OP_RUNS, strict=True))


def wide(array: np.ndarray) -> np.ndarray:
    """Floats as float64, anything else as it is."""
    array = np.asarray(array)
    if array.dtype.kind in "iub":
        return array
    return array.astype(np.float64)


def compiled(
    node: onnx.NodeProto, opset: int, frozen: Collection[str] = (), training: Collection[str] = ()
) -> Callable[..., tuple[np.ndarray, ...]]:
    """Returns a node as a function of its inputs, in float64.

    Args:
        node: The node, of ONNX's domain or com.microsoft.
        opset: The version of ONNX's domain.
        frozen: Names of batch norms that use their running statistics.
        training: Names of those that use the batch's.
    """
    if node.op_type in ("Softmax", "LogSoftmax") and opset < 13:
        return _old_softmax(node)
    if node.op_type == "Bernoulli":
        # Entries use probabilities of 0 and 1 only.
        return lambda p: ((p > 0.5).astype(np.float64),)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "CastLike" or (node.op_type == "Cast" and attributes["to"] in FLOATS):
        return lambda x, *_: (wide(x).astype(np.float64),)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    name = _TYPE_ATTRIBUTE.get(node.op_type)
    if name and attributes.get(name) in FLOATS:
        next(a for a in copy.attribute if a.name == name).i = onnx.TensorProto.DOUBLE
    if node.op_type == "BatchNormalization" and (node.name in frozen or node.name in training):
        kept = [a for a in node.attribute if a.name != "training_mode"]
        del copy.attribute[:]
        copy.attribute.extend([*kept, helper.make_attribute("training_mode", int(node.name in training))])
    if node.op_type == "BatchNormalization":
        return _batch_norm(copy)
    if node.op_type == "BatchNormalizationTraining":
        return _batch_norm_of_ours(copy)
    kind = _OURS.get((node.domain, node.op_type))
    if kind is None:
        kind = load_op(node.domain, node.op_type, opset, evaluator_cls=ReferenceEvaluator)
    op = kind(copy, {"log": _silent, "opsets": {"": opset, "com.microsoft": 1}, "verbose": 0, "new_ops": None})
    return op.run


def _silent(*_: object) -> None:
    pass


def _old_softmax(node: onnx.NodeProto) -> Callable[..., tuple[np.ndarray, ...]]:
    """A softmax below opset 13: of a matrix, whose rows begin at the axis."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)

    def run(x):
        rows = int(np.prod(x.shape[: axis % x.ndim]))
        flat = x.reshape(rows, -1)
        shifted = flat - flat.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return ((logs if node.op_type == "LogSoftmax" else np.exp(logs)).reshape(x.shape),)

    return run


def _batch_norm(node: onnx.NodeProto) -> Callable[..., tuple[np.ndarray, ...]]:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    epsilon = float(np.float32(attributes.get("epsilon", 1e-5)))
    momentum = float(np.float32(attributes.get("momentum", 0.9)))
    training = attributes.get("training_mode", 0)

    def run(x, scale, bias, mean, var):
        over = tuple(axis for axis in range(x.ndim) if axis != 1)
        along = (-1, *[1] * (x.ndim - 2))
        results = [mean, var]
        if training:
            old_mean, old_var = mean, var
            mean, var = x.mean(axis=over), x.var(axis=over)
            results = [old * momentum + new * (1 - momentum) for old, new in ((old_mean, mean), (old_var, var))]
        normal = (x - mean.reshape(along)) / np.sqrt(var.reshape(along) + epsilon)
        return (normal * scale.reshape(along) + bias.reshape(along), *results)

    return run


def _batch_norm_of_ours(node: onnx.NodeProto) -> Callable[..., tuple[np.ndarray, ...]]:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    epsilon, momentum = (float(np.float32(attributes[name])) for name in ("epsilon", "momentum"))

    def run(x, scale, bias, running_mean, running_var, axes):
        over = tuple(int(axis) for axis in axes)
        count = np.prod([x.shape[axis] for axis in over])
        mean, var = x.mean(axis=over), x.var(axis=over)
        bessel = count / max(count - 1, 1) if attributes["unbiased_running_var"] else 1
        inv_std = 1 / np.sqrt(var + epsilon)
        spread = [np.expand_dims(value, over) for value in (mean, inv_std, scale, bias)]
        new = [
            old * momentum + value * (1 - momentum)
            for old, value in ((running_mean, mean), (running_var, var * bessel))
        ]
        return ((x - spread[0]) * spread[1] * spread[2] + spread[3], *new, mean, inv_std)

    return run


class _Graph:
    """A graph or a body, ready to run in float64."""

    def __init__(
        self, graph: onnx.GraphProto, opset: int, frozen: Collection[str], training: Collection[str]
    ) -> None:
        self.input_names = [value.name for value in graph.input]
        self.output_names = [value.name for value in graph.output]
        self.output_types = [value.type for value in graph.output]
        self._constants = {t.name: wide(numpy_helper.to_array(t)) for t in graph.initializer}
        self._steps = []
        for node in graph.node:
            if node.op_type == "Constant":
                (value,) = node.attribute
                array = (
                    numpy_helper.to_array(value.t) if value.HasField("t") else helper.get_attribute_value(value)
                )
                self._constants[node.output[0]] = wide(array)
                continue
            bodies = _bodies(node, opset, frozen, training)
            function = None if bodies else compiled(node, opset, frozen, training)
            self._steps.append((node, function, bodies))

    def run(
        self, values: Mapping[str, np.ndarray], disturbed: Callable[[np.ndarray], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns every value by name, those around the graph among them.

        Args:
            values: The inputs, which take the place of initializers, and the values around the graph.
            disturbed: A function that adds errors to a result of a node.
        """
        values = {**self._constants, **values}
        for node, function, bodies in self._steps:
            inputs = [values[name] if name else None for name in node.input]
            results = function(*inputs) if function else _with_bodies(node, bodies, inputs, values, disturbed)
            for name, result in zip(node.output, results, strict=False):
                if name:
                    array = np.asarray(result)
                    if array.dtype.kind == "f":
                        array = disturbed(wide(array)) if function else wide(array)
                    values[name] = array
        return values


def _bodies(
    node: onnx.NodeProto, opset: int, frozen: Collection[str] = (), training: Collection[str] = ()
) -> dict[str, _Graph]:
    return {a.name: _Graph(a.g, opset, frozen, training) for a in node.attribute if a.HasField("g")}


def with_bodies(
    node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], around: Mapping[str, np.ndarray], opset: int
) -> Sequence[np.ndarray]:
    """Runs an If, Loop or Scan, given the values around it."""
    return _with_bodies(node, _bodies(node, opset), inputs, around, lambda array: array)


def read_names(node: onnx.NodeProto) -> set[str]:
    """Returns the names of the values that a node and its bodies read; those of a body may be its own."""
    names = set(node.input) - {""}
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= read_names(inner)
        names |= {value.name for value in attribute.g.output}
    return names


def _with_bodies(
    node: onnx.NodeProto,
    bodies: Mapping[str, _Graph],
    inputs: Sequence[np.ndarray | None],
    values: Mapping[str, np.ndarray],
    disturbed: Callable[[np.ndarray], np.ndarray],
) -> Sequence[np.ndarray]:
    """Runs an If, Loop or Scan."""

    def run_body(body: _Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        results = body.run({**values, **feeds}, disturbed)
        return [results[name] for name in body.output_names]

    if node.op_type == "If":
        return run_body(bodies["then_branch" if np.all(inputs[0]) else "else_branch"], {})
    op = object.__new__({kind.__name__: kind for kind in WITH_BODIES}[node.op_type])
    op.body = bodies["body"]
    op._run_body = lambda feeds, attributes: run_body(op.body, feeds)  # noqa: ARG005 - as in OpRun
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    return op._run(*inputs, **options)


class Interpreter:
    """A forward graph, ready to run in float64.

    Args:
        model: The model, without functions.
        frozen: Names of batch norms that use their running statistics.
        training: Names of those that use the batch's.
    """

    def __init__(
        self, model: onnx.ModelProto, frozen: Collection[str] = (), training: Collection[str] = ()
    ) -> None:
        opset = next(entry.version for entry in model.opset_import if entry.domain == "")
        self._graph = _Graph(model.graph, opset, frozen, training)

    def run(self, feeds: Mapping[str, np.ndarray], noise: float = 0.0, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns every value of the graph by name.

        Args:
            feeds: Inputs, which take the place of initializers.
            noise: A relative error that is added to every result of a node, like rounding.
            seed: The seed of the errors.
        """
        rng = np.random.default_rng(seed) if noise else None

        def disturbed(array: np.ndarray) -> np.ndarray:
            return array if rng is None else array * (1 + noise * rng.uniform(-1, 1, array.shape))

        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._graph.run({name: wide(array) for name, array in feeds.items()}, disturbed)

    def loss(self, feeds: Mapping[str, np.ndarray], noise: float = 0.0, seed: int = 0) -> float:
        """Returns the number of the graph's value ``loss``."""
        return float(np.squeeze(self.run(feeds, noise, seed)["loss"]))
