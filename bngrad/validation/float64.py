"""Runs a small model in float64, with onnx's reference evaluator and the ops of `training_ops`.

In float64 two correct graphs agree to about 1e-12, so what is left between an original and its rewrite is a
mistake and not rounding. It is NumPy: for models of the digits network's size, not for ResNet-50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError
from onnx.reference.ops import load_op

from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.validation.seeding import seed_random_ops
from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS, attributes_of
from bngrad.validation.widening import widened, widened_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    Array = NDArray[Any]

_STATIC_INPUT = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}
"""Ops that read their output's extents from its static type."""


class EvaluationError(ModelError):
    """The evaluator has every op of a model, and yet fails on it."""


class Evaluator:
    """A model that is widened once, and run for several inputs.

    Args:
        model: A model of ONNX ops, of ops that ORT's gradient builder writes, of ops of ``bngrad``, and of ops
            whose functions it carries; those are run as their functions.

    Raises:
        UnsupportedNodeError: An op, or one of its attributes, that has no implementation here.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        wide = widened(model)
        seed_random_ops(wide.graph.all_nodes(), wide.opset_imports.get("", 1))
        for index, node in enumerate(wide.graph.all_nodes()):
            _name_absent_outputs(node, f"bngrad/absent/{index}")
            _make_input_extent_explicit(node)
        _refuse_unknown_ops(wide)
        self._graph = wide.graph
        self.inputs = frozenset(_name(value) for value in wide.graph.inputs)
        self.outputs = [_name(value) for value in wide.graph.outputs]
        try:
            self._evaluator = ReferenceEvaluator(ir.to_proto(wide), new_ops=OP_RUNS)
        except Exception as error:
            raise _failed(error) from error

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model; see `evaluate`."""
        _check_names(self._graph, feeds, outputs)
        names = self.outputs if outputs is None else list(outputs)
        given = {name: widened_array(array) for name, array in feeds.items()}
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are results, as they are in ONNX Runtime
                results = self._evaluator.run(names, given)
        except UnsupportedNodeError:
            raise
        except Exception as error:
            raise _failed(error) from error
        return dict(zip(names, results, strict=True))

    def from_any(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model for those feeds that are inputs of it."""
        return self({name: array for name, array in feeds.items() if name in self.inputs}, outputs)


def _failed(error: Exception) -> EvaluationError:
    cause: BaseException = error
    while cause.__cause__ is not None:  # the evaluator wraps what its ops raise
        cause = cause.__cause__
    what = " ".join(str(cause).split())
    return EvaluationError(f"cannot be evaluated in float64: {type(cause).__name__}: {what[:300]}")


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Runs a model in float64 once; `Evaluator` has what a model may be, and runs it more than once.

    Random ops draw the same numbers every time.

    Args:
        model: The model.
        feeds: The inputs that have no default, and any of the others; narrower floats are widened.
        outputs: Names of the values to return, inner ones too; all graph outputs if None.

    Returns:
        The values by name.

    Raises:
        UnsupportedNodeError: An op, or one of its attributes, that has no implementation here.
        EvaluationError: The evaluation fails: shapes that do not fit, for one.
        InputError: ``feeds`` lacks an input or has one too many, or there is no such output.
    """
    return Evaluator(model)(feeds, outputs)


def _name_absent_outputs(node: ir.Node, prefix: str) -> None:
    """Names what a node leaves out: the evaluator would store it under "", the name of every absent input."""
    for index, value in enumerate(node.outputs):
        if not value.name:
            value.name = f"{prefix}/{index}"


def _make_input_extent_explicit(node: ir.Node) -> None:
    """Adds the attribute ``input_extent`` to a pool's gradient, from the static type of its output."""
    if (node.domain, node.op_type) not in _STATIC_INPUT:
        return
    shape = node.outputs[0].shape
    extent = [] if shape is None else [size for size in shape[2:] if isinstance(size, int)]
    if shape is None or len(extent) != len(shape) - 2:
        raise UnsupportedNodeError(
            f"{node.op_type} node {node.name!r}: the spatial extents of {node.outputs[0].name!r} are not in the "
            f"model, and the node's inputs do not tell them; add a value_info with static spatial dimensions"
        )
    _set(node, ir.AttrInt64s("input_extent", extent))


def _refuse_unknown_ops(model: ir.Model) -> None:
    unknown = sorted(set(_unknown_ops(model)))
    if unknown:
        raise UnsupportedNodeError(f"cannot evaluate in float64: no implementation of {', '.join(unknown)}")


def _unknown_ops(model: ir.Model) -> Iterator[str]:
    for node in model.graph.all_nodes():
        function = FUNCTIONS.get((node.domain, node.op_type))
        if function is not None:
            for attribute in node.attributes.keys() - attributes_of(function):
                yield f"{node.domain or 'ai.onnx'}.{node.op_type} with {attribute}"
        elif node.domain != "" or not _is_in_evaluator(node.op_type, model.opset_imports.get("", 1)):
            yield f"{node.domain or 'ai.onnx'}.{node.op_type}"


def _is_in_evaluator(op_type: str, opset: int) -> bool:
    try:
        load_op("", op_type, opset, evaluator_cls=ReferenceEvaluator)
    except NotImplementedError:
        return False
    except RuntimeContextError:  # there is one, for types that are known later
        return True
    return True


def _check_names(graph: ir.Graph, feeds: Mapping[str, Array], outputs: Sequence[str] | None) -> None:
    inputs = [_name(value) for value in graph.inputs]
    if unknown := sorted(feeds.keys() - set(inputs)):
        raise InputError(f"no graph input is named {', '.join(unknown)}; expected among {', '.join(inputs)}")
    if missing := [name for name in inputs if name not in feeds and name not in graph.initializers]:
        raise InputError(f"inputs without a value: {', '.join(missing)}")
    known = {*inputs, *graph.initializers, *(value.name for node in graph for value in node.outputs)}
    if unknown := sorted(set(outputs or ()) - known):
        raise InputError(f"no value in the model is named {', '.join(unknown)}")


def _set(node: ir.Node, attribute: ir.Attr) -> None:
    node.attributes[attribute.name] = attribute


def _name(value: ir.Value) -> str:
    return str(value.name)
