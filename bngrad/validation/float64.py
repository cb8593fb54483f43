"""Evaluates models in float64, with onnx's reference evaluator and the ops of `training_ops`.

Two correct graphs agree to about 1e-12 in float64, so a larger difference is an error and not rounding. The
evaluation in NumPy is slow; it is meant for small models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError
from onnx.reference.ops import load_op

from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import captured_values
from bngrad.validation.piecewise_ops import piecewise_ops
from bngrad.validation.seeding import seed_random_ops
from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS, attributes_of
from bngrad.validation.training_ops.control_flow import WITH_BODIES
from bngrad.validation.widening import widened, widened_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray
    from onnx.reference.op_run import OpRun

    Array = NDArray[Any]

_STATIC_INPUT = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}
"""Ops whose output shape is not determined by their inputs, and is taken from the static type of the output."""


class EvaluationError(ModelError):
    """The evaluation of a model failed, although all of its ops are implemented."""


class Evaluator:
    """A model that is converted to float64 once, and can be run for several inputs.

    Args:
        model: A model of ONNX ops, ops of ORT's training dialect, and ops of ``bngrad``. Ops that are defined by
            functions of the model are run as these functions.
        branches: Whether the branches of piecewise ops can be held, see `bngrad.validation.branches`.

    Raises:
        UnsupportedNodeError: An op, or one of its attributes, is not implemented.
    """

    def __init__(self, model: onnx.ModelProto, *, branches: bool = False) -> None:
        wide = widened(model)
        seed_random_ops(wide.graph.all_nodes(), wide.opset_imports.get("", 1))
        for index, node in enumerate(wide.graph.all_nodes()):
            _name_absent_outputs(node, f"bngrad/absent/{index}")
            _add_input_shape(node)
        _require_known_ops(wide)
        self._graph = wide.graph
        self.inputs = frozenset(_name(value) for value in wide.graph.inputs)
        self.outputs = [_name(value) for value in wide.graph.outputs]
        self._last_used = _last_used(wide.graph)
        piecewise = piecewise_ops(wide.graph.all_nodes()) if branches else []
        try:
            # The first class of an op counts.
            self._evaluator = ReferenceEvaluator(ir.to_proto(wide), new_ops=[*piecewise, *OP_RUNS, *WITH_BODIES])
        except Exception as error:
            raise _failed(error) from error

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model; see `evaluate`."""
        names = self.outputs if outputs is None else list(outputs)
        values = dict(self.as_computed(feeds, names))
        return {name: values[name] for name in names}

    def as_computed(self, feeds: Mapping[str, Array], names: Sequence[str]) -> Iterator[tuple[str, Array]]:
        """Yields values with their names in the order in which they are computed; see `evaluate`.

        Each value is freed after its last use, unless the caller keeps it.
        """
        _check_names(self._graph, feeds, names)
        requested = set(names)
        values: dict[str, Any] = {"": None, **self._evaluator.rt_inits_}
        values |= {name: widened_array(array) for name, array in feeds.items()}
        yield from ((name, values[name]) for name in requested.intersection(values))
        for node, last_used in zip(self._evaluator.rt_nodes_, self._last_used, strict=True):
            values.update(zip(node.output, _run(node, values), strict=False))
            yield from ((name, values[name]) for name in requested.intersection(node.output))
            for name in last_used:
                values.pop(name, None)

    def from_any(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model for those feeds that are inputs of the model."""
        return self({name: array for name, array in feeds.items() if name in self.inputs}, outputs)


class KeptEvaluation(Evaluator):
    """An evaluator that keeps its outputs for the first inputs, which several checks evaluate.

    Neither the inputs nor the outputs may be changed.
    """

    _feeds: Mapping[str, Array] | None = None
    _values: Mapping[str, Array]

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model; see `evaluate`."""
        names = self.outputs if outputs is None else list(outputs)
        if not set(names) <= set(self.outputs):
            return super().__call__(feeds, names)
        if self._feeds is None:
            self._values, self._feeds = super().__call__(feeds), dict(feeds)
        if feeds.keys() == self._feeds.keys() and all(feeds[name] is self._feeds[name] for name in feeds):
            return {name: self._values[name] for name in names}
        return super().__call__(feeds, names)


def _run(node: OpRun, values: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the outputs of a node of the evaluator."""
    context = {"context": values} if node.need_context() else {}
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are valid results, as in ONNX Runtime
            outputs: tuple[Any, ...] = node.run(*(values[name] for name in node.input), **context)  # type: ignore[no-untyped-call]
    except UnsupportedNodeError:
        raise
    except Exception as error:
        raise _failed(error) from error
    return outputs


def _failed(error: Exception) -> EvaluationError:
    cause: BaseException = error
    while cause.__cause__ is not None:  # the evaluator wraps the exceptions of its ops
        cause = cause.__cause__
    reason = " ".join(str(cause).split())
    return EvaluationError(f"cannot be evaluated in float64: {type(cause).__name__}: {reason[:300]}")


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Runs a model once in float64; use `Evaluator` to run it several times.

    Random ops give the same numbers in every evaluation.

    Args:
        model: A model as `Evaluator` accepts.
        feeds: All inputs without a default, and any others. Narrower floats are converted to float64.
        outputs: Names of the values to return, which may be intermediate values; None for all graph outputs.

    Returns:
        The values by name.

    Raises:
        UnsupportedNodeError: An op, or one of its attributes, is not implemented.
        EvaluationError: The evaluation failed, for example because shapes do not match.
        InputError: An input is missing, or ``feeds`` or ``outputs`` has an unknown name.
    """
    return Evaluator(model)(feeds, outputs)


def _last_used(graph: ir.Graph) -> list[set[str]]:
    """Returns the values of a graph's nodes that are not used after each node, in order."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph):
        values = (*node.outputs, *(value for value in node.inputs if value is not None), *captured_values(node))
        last |= dict.fromkeys((_name(value) for value in values if value.producer() is not None), index)
    used: list[set[str]] = [set() for _ in range(len(graph))]
    for name, index in last.items():
        used[index].add(name)
    return used


def _name_absent_outputs(node: ir.Node, prefix: str) -> None:
    """Names the omitted outputs of a node: the evaluator would store them as "", the name of all absent inputs."""
    for index, value in enumerate(node.outputs):
        if not value.name:
            value.name = f"{prefix}/{index}"


def _add_input_shape(node: ir.Node) -> None:
    """Adds the attribute ``input_sizes`` to the gradient of a pool, from the static type of its output."""
    if (node.domain, node.op_type) not in _STATIC_INPUT:
        return
    shape = node.outputs[0].shape
    sizes = [] if shape is None else [size for size in shape[2:] if isinstance(size, int)]
    if shape is None or len(sizes) != len(shape) - 2:
        raise UnsupportedNodeError(
            f"{describe(node)}: the spatial dimensions of {node.outputs[0].name!r} are unknown; "
            f"add shape information to the model"
        )
    _set(node, ir.AttrInt64s("input_sizes", sizes))


def _require_known_ops(model: ir.Model) -> None:
    unknown = sorted(set(_unknown_ops(model)))
    if unknown:
        raise UnsupportedNodeError(
            f"cannot be evaluated in float64: there is no implementation of {', '.join(unknown)}"
        )


def _unknown_ops(model: ir.Model) -> Iterator[str]:
    for node in model.graph.all_nodes():
        function = FUNCTIONS.get((node.domain, node.op_type))
        if function is not None:
            for attribute in node.attributes.keys() - attributes_of(function):
                yield f"{node.domain or 'ai.onnx'}.{node.op_type} with {attribute}"
        elif node.domain != "" or not is_in_evaluator(node.op_type, model.opset_imports.get("", 1)):
            yield f"{node.domain or 'ai.onnx'}.{node.op_type}"


def is_in_evaluator(op_type: str, opset: int) -> bool:
    """Returns whether onnx's reference evaluator implements an op of the default domain."""
    try:
        load_op("", op_type, opset, evaluator_cls=ReferenceEvaluator)
    except NotImplementedError:
        return False
    except RuntimeContextError:  # implemented, depending on types that are known at run time
        return True
    return True


def _check_names(graph: ir.Graph, feeds: Mapping[str, Array], outputs: Sequence[str] | None) -> None:
    inputs = [_name(value) for value in graph.inputs]
    if unknown := sorted(feeds.keys() - set(inputs)):
        raise InputError(f"there is no input {', '.join(unknown)}; the model's inputs are {', '.join(inputs)}")
    if missing := [name for name in inputs if name not in feeds and name not in graph.initializers]:
        raise InputError(f"inputs without a value: {', '.join(missing)}")
    names = {*inputs, *graph.initializers, *(value.name for node in graph for value in node.outputs)}
    if unknown := sorted(set(outputs or ()) - names):
        raise InputError(f"there is no value {', '.join(unknown)} in the model")


def _set(node: ir.Node, attribute: ir.Attr) -> None:
    node.attributes[attribute.name] = attribute


def _name(value: ir.Value) -> str:
    return str(value.name)
