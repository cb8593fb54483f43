"""Exports a JAX function that computes gradients, such as that of `jax.value_and_grad`, with jax2onnx.

jax2onnx has no rule for the convolutions of a gradient, and writes the gradient of a matrix product wrong.
`export` traces the function without jax2onnx, and passes it the same computation with convolutions and products in
layouts that it exports right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from index_limits import limit_indices
from jax.extend import core
from jax2onnx import to_onnx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

_CALLS = {"jit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"}
"""Primitives that call a function."""


def export(function: Callable[..., Any], *arguments: Any) -> onnx.ModelProto:  # noqa: ANN401
    """Returns the ONNX model of a function of dicts of arrays that returns a dict of arrays.

    Args:
        function: The function. Nested dicts are allowed; inputs and outputs of the model are named by their keys,
            joined by dots.
        arguments: For each argument of the function a dict of arrays or `jax.ShapeDtypeStruct`.
    """
    jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    leaves = [leaf for argument in arguments for leaf in jax.tree_util.tree_leaves_with_path(argument)]
    model = to_onnx(
        lambda *arrays: _evaluate(jaxpr.jaxpr, jaxpr.consts, arrays),
        [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for _, leaf in leaves],
        input_names=[_name(path) for path, _ in leaves],
        output_names=[_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(result)],
    )
    limit_indices(model)
    return model


def _name(path: Any) -> str:  # noqa: ANN401
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _evaluate(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Calls the primitives of a function one by one, and what jax2onnx does not export in another form."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def value(atom: Any) -> Any:  # noqa: ANN401
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        primitive, parameters = equation.primitive, equation.params
        if primitive.name in _CALLS:
            body = parameters["jaxpr" if "jaxpr" in parameters else "call_jaxpr"]
            results = _evaluate(getattr(body, "jaxpr", body), getattr(body, "consts", ()), inputs)
        elif primitive.name == "conv_general_dilated":
            results = [_convolution(*inputs, **parameters)]
        elif primitive.name == "dot_general" and _is_transposed(*inputs, **parameters):
            results = [_product(*inputs, **parameters)]
        elif primitive.name == "rev":
            results = [_reversed(*inputs, **parameters)]
        else:
            results = primitive.bind(*inputs, **primitive.get_bind_params(parameters))
            results = results if primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _is_transposed(left: Any, right: Any, *, dimension_numbers: Any, **_: Any) -> bool:  # noqa: ANN401
    """Returns whether a product of matrices has its first one transposed, which jax2onnx would ignore."""
    return left.ndim == right.ndim == 2 and dimension_numbers[0][0] == (0,)


def _product(left: Any, right: Any, *, dimension_numbers: Any, **parameters: Any) -> Any:  # noqa: ANN401
    (_, summed), batch = dimension_numbers
    return jax.lax.dot_general_p.bind(left.T, right, dimension_numbers=(((1,), summed), batch), **parameters)


def _reversed(x: Any, *, dimensions: Sequence[int]) -> Any:  # noqa: ANN401
    """Elements in reverse order, by constant indices: of jax2onnx's Range no reader knows the size."""
    for axis in dimensions:
        x = jnp.take(x, np.arange(x.shape[axis])[::-1], axis=axis)
    return x


def _convolution(  # the parameters of conv_general_dilated_p
    x: Any,  # noqa: ANN401
    kernel: Any,  # noqa: ANN401
    *,
    dimension_numbers: Any,  # noqa: ANN401
    batch_group_count: int,
    feature_group_count: int,
    lhs_dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **parameters: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """A convolution in the layouts NCHW, OIHW and NCHW, with groups of features instead of groups of the batch."""
    x, kernel = jnp.transpose(x, dimension_numbers.lhs_spec), jnp.transpose(kernel, dimension_numbers.rhs_spec)
    if batch_group_count > 1:
        groups = x.reshape(batch_group_count, -1, *x.shape[1:])
        x = jnp.swapaxes(groups, 0, 1).reshape(groups.shape[1], -1, *x.shape[2:])
    if max(lhs_dilation) == 1:  # negative padding, of a strided convolution's gradient, crops
        ends = [size + min(after, 0) for size, (_, after) in zip(x.shape[2:], padding, strict=True)]
        x = x[(..., *(slice(max(-before, 0), end) for end, (before, _) in zip(ends, padding, strict=True)))]
        padding = [(max(before, 0), max(after, 0)) for before, after in padding]
    y = jax.lax.conv_general_dilated_p.bind(
        x,
        kernel,
        dimension_numbers=jax.lax.conv_dimension_numbers(x.shape, kernel.shape, None),
        batch_group_count=1,
        feature_group_count=batch_group_count * feature_group_count,
        lhs_dilation=tuple(lhs_dilation),
        padding=tuple(padding),
        **parameters,
    )
    return jnp.transpose(y, np.argsort(dimension_numbers.out_spec))
