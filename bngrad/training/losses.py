"""Appends a loss to a forward model that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.loss_and_wrt import is_new_statistic
from bngrad.autodiff.prepare_forward import inlined
from bngrad.errors import InputError, ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.nodes import describe, refuse_training_graph
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from bngrad.training.loss.base import typed
from bngrad.training.loss.nodes import LossNodes
from bngrad.training.loss_functions import LOSS_FUNCTIONS, LossFunction, loss_function

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker
    from bngrad.opset.known_shapes import KnownShape


class AppendedLoss(NamedTuple):
    """A forward model with a loss."""

    model: ir.Model
    loss: str
    """The new output, a scalar of shape []."""
    target: str
    """The new input: labels, or a target of the prediction's type and shape."""
    warnings: list[str]
    """Properties of the model that are probably not intended."""


def append_loss(model: ir.Model, loss_fn: str | LossFunction, *, prediction: str | None = None) -> AppendedLoss:
    """Returns a copy of a forward model with a loss of one of its outputs, in standard ONNX ops.

    The target is a new graph input, ``labels`` or ``target``, and the loss a new graph output, ``loss``; each gets
    a number if the model has that name already. A prediction in float16 or bfloat16 is cast to float, as under
    PyTorch's autocast, and the loss is float. A model below opset 15 is raised to 15.

    Args:
        model: The forward model; it is not changed.
        loss_fn: The loss function, or a name of `LOSS_FUNCTIONS`.
        prediction: The name of a value of the main graph; by default the only float output that is not a running
            statistic.

    Raises:
        InputError: The loss function is unknown, or its weights do not fit the prediction.
        ModelError: The prediction does not exist, is not unique, or does not fit the loss function; the model is a
            training graph, or is invalid.
    """
    loss_fn = loss_function(loss_fn) if isinstance(loss_fn, str) else loss_fn
    if not isinstance(loss_fn, LossFunction):
        raise InputError(
            f"loss_fn has type {type(loss_fn).__name__}; expected a loss function, or one of "
            f"{', '.join(LOSS_FUNCTIONS)}"
        )
    refuse_training_graph(model)
    result = RaiseOpsetPass()(model).model
    InferTypesPass()(result)
    x = find_prediction(result, prediction)
    shape = known_shape(x)
    if not shape:
        raise ModelError(_unsuitable(x, shape))
    names = Names(result)
    target_shape = ir.Shape(loss_fn.target_shape(x, shape))
    name, target_type = "target", x.type
    if loss_fn.takes_labels:
        name, target_type = "labels", ir.TensorType(ir.DataType.INT64)
    target = ir.Value(name=names.fresh(name), type=target_type, shape=target_shape)
    result.graph.inputs.append(target)
    computed = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    make = LossNodes(result.graph, names, computed)
    fed = target if loss_fn.takes_labels else make.cast(in_shape_of(make, target, x), computed)
    loss = make.name(loss_fn.append(make, make.cast(x, computed), fed), names.fresh("loss"))
    loss.type, loss.shape = ir.TensorType(computed), ir.Shape([])
    result.graph.outputs.append(loss)
    return AppendedLoss(result, str(loss.name), str(target.name), _normalized_twice(model, x, loss_fn))


def find_prediction(model: ir.Model, name: str | None) -> ir.Value:
    """Returns the prediction that a loss function takes.

    Args:
        model: The forward model, with types.
        name: The name of a float value of the main graph; by default the only one of `predictions`.

    Raises:
        ModelError: There is no such value, or no unique default.
    """
    values = {str(value.name): value for node in model.graph for value in node.outputs if value.name}
    if name is not None:
        if name not in values:
            raise ModelError(unknown_name(name, values, "a value"))
        if not _is_float(values[name]):
            raise ModelError(f"prediction {typed(values[name])} has no loss; expected a float tensor")
        return values[name]
    outputs = predictions(model)
    if not outputs:
        raise ModelError(
            f"the model has no float outputs (its outputs are {', '.join(map(typed, model.graph.outputs))}); name "
            "the value that the loss takes with --prediction (prediction=)"
        )
    if len(outputs) > 1:
        raise ModelError(
            f"the model has {len(outputs)} float outputs; name the prediction with --prediction (prediction=) "
            f"(its float outputs are {', '.join(map(typed, outputs))})"
        )
    return outputs[0]


def predictions(model: ir.Model) -> list[ir.Value]:
    """Returns the float outputs of a model, with types, that are not running statistics."""
    return [value for value in model.graph.outputs if _is_float(value) and not is_new_statistic(value)]


def _unsuitable(x: ir.Value, shape: KnownShape | None) -> str:
    if shape is None:
        return f"prediction {typed(x)} has unknown rank; expected a shape: add shape information to the model"
    return (
        f"prediction {typed(x)} is a scalar, as a loss is; if it is the loss, leave out the loss function, else "
        "name the prediction with --prediction (prediction=)"
    )


def in_shape_of(make: NodeMaker, target: ir.Value, x: ir.Value) -> ir.Value:
    """Returns a target in the shape of a prediction: a target of another size fails, instead of broadcasting."""
    if x.shape is not None and x.shape.is_static():
        return target
    result = make.op("Reshape", target, make.op("Shape", x), allowzero=1)
    result.type, result.shape = target.type, x.shape
    return result


def _normalized_twice(model: ir.Model, x: ir.Value, loss_fn: LossFunction) -> list[str]:
    """A warning if a model ends in a softmax or sigmoid that the loss function applies itself."""
    matches = (value for node in inlined(model).graph for value in node.outputs if value.name == x.name)
    node = origin(next(matches, x), SAME_VALUES).producer()
    if node is None or node.op_type not in loss_fn.normalizes or node.domain not in ("", "ai.onnx"):
        return []
    warning = (
        f"prediction {x.name!r} is the output of {describe(node)}, but {loss_fn.name} expects logits and "
        f"normalizes them itself; name the input of that node with --prediction (prediction=), or remove the node"
    )
    return [warning]


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in SUPPORTED_DTYPES
