"""Exports a JAX function with jax2onnx, if the file has all of its gradients.

jax2onnx exports what a function computes. It records `jax.lax.stop_gradient` in the name of a value, which
`bngrad` reads, and drops `jax.custom_vjp` and `jax.custom_jvp` without a trace. It writes
`jax.lax.reduce_precision` as ops that round, with gradient 0, where JAX's is the cotangent in that precision.
`to_onnx` refuses those, and records in the model that there are none. Indices beyond the end are those of JAX.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax2onnx
from index_limits import limit_indices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

_OWN = {"relu", "relu6", "logaddexp"}
"""Functions of JAX whose custom derivative is that of what they compute, also where they bend."""
_PACKAGE = Path(jax.__file__).parent


def to_onnx(function: Callable[..., Any], inputs: Sequence[Any], **options: Any) -> onnx.ModelProto:  # noqa: ANN401
    """Returns what `jax2onnx.to_onnx` does, for a function without custom gradients.

    Args:
        function: The function.
        inputs: The shape and type of each input.
        options: Other arguments of `jax2onnx.to_onnx`.

    Raises:
        ValueError: The function has a gradient that the file would not have.
    """
    stops: list[Any] = []

    def checked(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        # In here the functions are those that jax2onnx sees: it replaces some of JAX's own by ops.
        for equation in _equations(jax.make_jaxpr(function)(*arguments, **keywords).jaxpr):
            _require_known(equation)
            if equation.primitive.name == "stop_gradient":
                stops.append(equation)
        return function(*arguments, **keywords)

    model = jax2onnx.to_onnx(checked, inputs, **options)
    if stops and "stop_out_" not in str(model.graph) + str(model.functions):
        raise ValueError(
            "jax.lax.stop_gradient is lost: jax2onnx merged it with a copy of its argument, or its result is an "
            "output of the function; remove the copy or the output"
        )
    limit_indices(model)
    entry = model.metadata_props.add()
    entry.key, entry.value = "bngrad.custom_gradients", "none"
    return model


def _require_known(equation: Any) -> None:  # noqa: ANN401
    name = equation.primitive.name
    if name == "reduce_precision" and _reduces(equation):
        raise ValueError(
            "jax.lax.reduce_precision: jax2onnx writes it as ops that round, whose gradient is 0; JAX's is the "
            "cotangent in that precision: cast to jnp.bfloat16 or jnp.float16 and back instead"
        )
    if not name.startswith("custom_"):
        return
    body = equation.params.get("call_jaxpr")
    source = "" if body is None else body.jaxpr.debug_info.func_src_info
    function, _, place = source.partition(" at ")
    if name == "custom_jvp_call" and function in _OWN and Path(place).is_relative_to(_PACKAGE):
        return
    raise ValueError(
        f"{name} of {source or 'a function of JAX'}: jax2onnx drops gradients that are defined by hand; write the "
        "function with ops that have this gradient, and with jax.lax.stop_gradient"
    )


def _reduces(equation: Any) -> bool:  # noqa: ANN401
    """Returns whether a reduce_precision has fewer bits than its type; else it is the identity, as in the file."""
    whole, kept = jnp.finfo(equation.invars[0].aval.dtype), equation.params
    return bool(kept["exponent_bits"] < whole.nexp or kept["mantissa_bits"] < whole.nmant)


def _equations(jaxpr: Any) -> Iterator[Any]:  # noqa: ANN401
    """The primitives of a function, also those of the functions that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
