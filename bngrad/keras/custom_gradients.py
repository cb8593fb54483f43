"""Takes over gradients that a model defines itself, by ``tf.custom_gradient`` or ``keras.ops.custom_gradient``.

A function with the result r of x and the gradient dx = A dr is traced as

    stop(r) + transpose(A) (x - stop(x))

where stop is StopGradient: the value is r, and the gradient is A dr. A is found by differentiating the function's
gradient with respect to dr. A gradient that is not linear in dr, such as a clipped one, is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bngrad.errors import BngradError, UnsupportedNodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bngrad.keras.marks import Marks

_TRUE = {
    "tensorflow.python.ops.custom_gradient.recompute_grad.<locals>.inner",
    "tensorflow.python.ops.nn_impl.swish.<locals>.swish_impl",
}
"""Functions of TensorFlow's whose own gradient is the derivative; it saves memory."""
_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"}
"""Ops that depend only on the shape of their input."""
_SUMS = {"Add", "AddV2", "AddN", "Sub", "BiasAdd", "Select", "SelectV2", "ConcatV2", "Pack"}
"""Ops that are linear in one input only if the others are 0."""


@contextmanager
def taking_over_gradients(tf: Any, marks: Marks, weights: Sequence[Any]) -> Iterator[None]:  # noqa: ANN401
    """Traces functions with a gradient of their own so that the gradient stays.

    Args:
        tf: The module.
        marks: The record of refusals.
        weights: The tensors of the weights that are traced.

    Raises:
        UnsupportedNodeError: A gradient cannot be taken over; the message names the function.
    """
    module = import_module("tensorflow.python.ops.custom_gradient")
    decorator = getattr(module, "_graph_mode_decorator", None)
    if decorator is None:  # another TensorFlow: `refusals` refuses such functions
        yield
        return

    def call(function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:  # noqa: ANN401
        with marks.noting_refusals():
            return _call(tf, function, arguments, keywords, weights)

    module._graph_mode_decorator = call  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        yield
    finally:
        module._graph_mode_decorator = decorator  # type: ignore[attr-defined]  # noqa: SLF001


def _call(
    tf: Any,  # noqa: ANN401
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: dict[str, Any],
    weights: Sequence[Any],
) -> Any:  # noqa: ANN401
    name = f"{function.__module__}.{function.__qualname__}"
    if name in _TRUE:
        return function(*arguments, **keywords)[0]
    converted = tf.nest.map_structure(lambda x: tf.identity(tf.convert_to_tensor(x)), list(arguments))
    result, gradient = function(*converted, **keywords)
    xs, rs = tf.nest.flatten(converted), tf.nest.flatten(result)
    if _depends(rs, weights, stop_at=xs):
        raise _refusal(name, "and reads weights that are not among its arguments")
    drs = [tf.ones_like(r) for r in rs]
    dxs = _gradient(tf, name, gradient, drs)
    if len(dxs) != len(xs):
        raise _refusal(name, f"which returns {len(dxs)} values; expected {len(xs)}, one for each argument")
    values = [tf.stop_gradient(r) for r in rs]
    for x, dx in zip(xs, dxs, strict=True):
        if dx is not None and x.dtype.is_floating and not _is_zero(tf, dx):
            _require_linear(tf, name, dx, drs)
            products = _transposed(tf, name, dx, drs, x - tf.stop_gradient(x))
            for number, product in products.items():
                values[number] += tf.ensure_shape(tf.cast(product, rs[number].dtype), rs[number].shape)
    return tf.nest.pack_sequence_as(result, values)


def _gradient(tf: Any, name: str, gradient: Callable[..., Any], drs: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    try:
        return [None if dx is None else tf.convert_to_tensor(dx) for dx in tf.nest.flatten(gradient(*drs))]
    except BngradError:
        raise
    except Exception as error:
        raise _refusal(name, f"which cannot be called: {' '.join(str(error).split())}") from error


def _transposed(tf: Any, name: str, dx: Any, drs: Sequence[Any], difference: Any) -> dict[int, Any]:  # noqa: ANN401
    """Applies the transpose of a gradient, a linear map of each ``dr``, to a value."""
    products = {}
    for number, dr in enumerate(drs):
        (product,) = tf.gradients(dx, dr, grad_ys=difference)
        if product is None:
            if _depends([dx], [dr]):
                raise _refusal(name, "which is not differentiable")
            continue
        if _depends([product], drs):
            raise _refusal(name, "which is not linear in the gradient of the result")
        products[number] = product
    return products


def _refusal(name: str, why: str) -> UnsupportedNodeError:
    return UnsupportedNodeError(
        f"{name} has a gradient of its own (custom_gradient), {why}; expected one that is linear in the gradient "
        "of the result: write the function with ops that have this gradient, and with stop_gradient"
    )


def _require_linear(tf: Any, name: str, dx: Any, drs: Sequence[Any]) -> None:  # noqa: ANN401
    """Refuses a gradient with a part that does not depend on the gradient of the result."""
    ops = _depending(dx, drs)
    if dx.op.name not in ops:
        raise _refusal(name, "which does not depend on the gradient of the result")
    for op in ops.values():
        if op.type not in _SUMS or any(op is dr.op for dr in drs):
            continue
        summands = list(op.inputs)[1 if op.type.startswith("Select") else 0 :]
        summands = summands[:-1] if op.type == "ConcatV2" else summands
        if not all(summand.op.name in ops or _is_zero(tf, summand) for summand in summands):
            raise _refusal(name, "which has a part that does not depend on the gradient of the result")


def _depends(values: Sequence[Any], starts: Sequence[Any], stop_at: Sequence[Any] = ()) -> bool:
    """Tests whether one of some tensors is computed from others, by more than their shapes."""
    return any(value.op.name in _depending(value, starts, stop_at) for value in values)


def _depending(value: Any, starts: Sequence[Any], stop_at: Sequence[Any] = ()) -> dict[str, Any]:  # noqa: ANN401
    """Returns the ops on the paths from some tensors to a value by name, with the producers of the tensors."""
    ends, borders = {tensor.op.name for tensor in starts}, {tensor.op.name for tensor in stop_at}
    ops: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = [(value.op, False)]
    while waiting:
        op, inputs_done = waiting.pop()
        inputs = () if op.type in _SHAPES or op.name in ends | borders else op.inputs
        if inputs_done:
            if op.name in ends or any(tensor.op.name in ops for tensor in inputs):
                ops[op.name] = op
        elif op.name not in seen:
            seen.add(op.name)
            waiting += [(op, True), *((tensor.op, False) for tensor in inputs)]
    return ops


def _is_zero(tf: Any, value: Any) -> bool:  # noqa: ANN401
    if value.op.type == "ZerosLike":
        return True
    if value.op.type in ("BroadcastTo", "Fill", "Reshape"):
        return _is_zero(tf, value.op.inputs[1 if value.op.type == "Fill" else 0])
    constant = tf.get_static_value(value)
    return constant is not None and not constant.any()
