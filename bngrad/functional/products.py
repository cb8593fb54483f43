"""Products of vectors with the derivatives of a model.

With the Jacobian J of the outputs y with respect to x::

    vjp:  x_grad = J^T y_seed        one backward pass
    jvp:  y_tangent = J x_tangent    the product of x_tangent with the derivative of x_grad with respect to y_seed
    hvp:  x_hvp = H x_vector         the product of x_vector with the derivative of x_grad, where y is a loss

A jvp is two backward passes, of which only the second remains: x_grad is linear in y_seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.loss_and_wrt import IndependentError, is_new_statistic, reaching_values
from bngrad.autodiff.metadata import KEY
from bngrad.autodiff.prepare_forward import inlined
from bngrad.autodiff.running_statistics import is_statistic
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.node_makers import NodesAfter, NodesAtEnd, nodes_at_start
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.nodes import PRODUCT
from bngrad.graph.same_values import readers
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.gradient_names import gradient_name
from bngrad.opset.known_shapes import type_text
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.training.differentiate import differentiate
from bngrad.training.losses import in_shape_of
from bngrad.training.options import DifferentiateOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_INNER = "bngrad_inner_product"


def vjp(
    model: ir.Model,
    outputs: Sequence[str] | None,
    wrt: Sequence[str] | None,
    options: DifferentiateOptions,
    *,
    independent: Sequence[str] = (),
) -> tuple[ir.Model, dict[str, str], dict[str, str]]:
    """Returns a model with the product of a vector and the Jacobian.

    It is the gradient of the inner product of the outputs and the seeds, which is then removed.

    Args:
        model: The model; it is not changed.
        outputs: The outputs to differentiate; by default all floats that are not running statistics.
        wrt: The values to differentiate with respect to; by default the float inputs without a default value.
        options: Options of `differentiate`.
        independent: Inputs that the outputs need not depend on; the product is 0 then.

    Returns:
        The model, its inputs for the seeds by the names of the outputs, and its outputs with the products by the
        names in ``wrt``.

    Raises:
        ModelError: A name is not in the model or is taken, or an output does not depend on ``wrt``.
        UnsupportedNodeError: A node between them has no gradient.
    """
    forward = RaiseOpsetPass()(inlined(model)).model
    InferTypesPass()(forward)
    values = _chosen_outputs(forward, outputs)
    names = Names(forward)
    make = NodesAtEnd(forward.graph, names, _INNER)
    wide = ir.DataType.DOUBLE if any(y.dtype == ir.DataType.DOUBLE for y in values) else ir.DataType.FLOAT
    seeds, parts = {}, []
    for y in values:
        seed = ir.Value(name=free_name(names, f"{y.name}_seed"), type=y.type, shape=y.shape)
        forward.graph.inputs.append(seed)
        seeds[str(y.name)] = str(seed.name)
        product = make.typed("Mul", y, in_shape_of(make, seed, y))
        parts.append(_sum(make, product, wide))
    sources = [x for x in forward.graph.inputs if x.name in independent and not _is_statistic(x)]
    products = [make.typed("Mul", x, make.constant(0, dtype_of(x))) for x in sources]
    parts += [_sum(make, product, wide) for product in products]
    loss = make.op("Sum", *parts)
    loss.type, loss.shape = ir.TensorType(wide), ir.Shape([])
    forward.graph.outputs.append(loss)
    if wrt is None:
        reaching = reaching_values(loss)
        inputs = [x for x in forward.graph.inputs if x.name not in forward.graph.initializers and _is_float(x)]
        wrt = [str(x.name) for x in inputs if x in reaching and x.name not in seeds.values()]
        if not wrt:
            raise ModelError("no float input of the model has a path to its outputs; name weights with wrt=")
    zero: list[str] = []
    while True:
        left = [name for name in wrt if name not in zero]
        try:
            result = differentiate(forward, replace(options, loss=str(loss.name), wrt=left))
        except IndependentError as error:
            if not {*error.names} <= {*independent} or {*error.names} >= {*left}:
                raise
            zero += error.names
        else:
            break
    gradients = result.gradients | {name: _zero_gradient(result.model, name) for name in zero}
    _remove_outputs(result.model, [result.loss])
    mark(result.model, "vjp")
    return result.model, seeds, {name: gradients[name] for name in wrt}


def _is_statistic(value: ir.Value) -> bool:
    """Returns whether batch norms read a value as a running statistic, which nothing else may read then."""
    return any(is_statistic(*reader) for reader in readers(value))


def _zero_gradient(model: ir.Model, name: str) -> str:
    """Adds an output of zeros, the gradient with respect to an input, and returns its name."""
    names = Names(model)
    make = NodesAtEnd(model.graph, names, _INNER)
    x = next(value for value in model.graph.inputs if value.name == name)
    gradient = zeros(make, shape_of(make, x), dtype_of(x))
    gradient.name, gradient.shape = free_name(names, gradient_name(name)), x.shape
    model.graph.outputs.append(gradient)
    return str(gradient.name)


def _sum(make: NodesAtEnd, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    part = make.op("ReduceSum", value, keepdims=0)
    part.type, part.shape = value.type, ir.Shape([])
    return make.cast(part, dtype)


def jvp(
    model: ir.Model, outputs: Sequence[str] | None, wrt: Sequence[str] | None, options: DifferentiateOptions
) -> ir.Model:
    """Returns a model with the product of the Jacobian and a vector; see `vjp`."""
    first, seeds, gradients = vjp(model, outputs, wrt, replace(options, functions=False))
    result, tangents, products = vjp(first, list(gradients.values()), list(seeds.values()), _again(first, options))
    _rename(result, {tangents[gradients[x]]: f"{x}_tangent" for x in gradients})
    _rename(result, {products[seeds[y]]: f"{y}_tangent" for y in seeds})
    _remove_outputs(result, gradients.values())
    mark(result, "jvp")
    _remove_seeds(result, seeds)
    return result


def hvp(model: ir.Model, loss: str | None, wrt: Sequence[str] | None, options: DifferentiateOptions) -> ir.Model:
    """Returns a model with the gradients of a loss, and the product of its Hessian and a vector.

    Args:
        model: The forward model; it is not changed.
        loss: The loss; see `differentiate`.
        wrt: The values to differentiate with respect to; by default the weights.
        options: Options of `differentiate`.

    Raises:
        ModelError: As `differentiate`.
        UnsupportedNodeError: As `differentiate`.
    """
    first = differentiate(model, replace(options, loss=loss, wrt=wrt, functions=False))
    mark(first.model, "hvp")
    renamed = {x: f"{gradient}_of_loss" for x, gradient in first.gradients.items()}
    _rename(first.model, {first.gradients[x]: name for x, name in renamed.items()})
    names, again = list(renamed), _again(first.model, options)
    result, vectors, products = vjp(first.model, list(renamed.values()), names, again, independent=names)
    _rename(result, {vectors[name]: f"{x}_vector" for x, name in renamed.items()})
    _rename(result, {products[x]: f"{x}_hvp" for x in renamed})
    _rename(result, {name: gradient_name(x) for x, name in renamed.items()})
    mark(result, "hvp")
    return result


def _again(first: ir.Model, options: DifferentiateOptions) -> DifferentiateOptions:
    """Returns the options of a second differentiation, which leaves the batch norms in the modes of the first."""
    frozen = [str(node.name) for node in first.graph if (node.domain, node.op_type) == ("", "BatchNormalization")]
    return DifferentiateOptions(functions=options.functions, frozen=frozen)


def _chosen_outputs(model: ir.Model, names: Sequence[str] | None) -> list[ir.Value]:
    outputs = {str(value.name): value for value in model.graph.outputs}
    if names is None:
        chosen = [value for value in outputs.values() if _is_float(value) and not is_new_statistic(value)]
        if not chosen:
            raise ModelError("the model has no float output to differentiate")
        return chosen
    for name in names:
        if name not in outputs:
            raise ModelError(unknown_name(name, outputs, "an output"))
        if not _is_float(outputs[name]):
            value = outputs[name]
            raise ModelError(f"output {name!r} ({type_text(value)}) has no derivative; expected a float")
    return [outputs[name] for name in names]


def _is_float(value: ir.Value) -> bool:
    return value.dtype in SUPPORTED_DTYPES


def free_name(names: Names, name: str) -> str:
    """Returns a name, which callers rely on; refuses one that is taken."""
    if names.fresh(name) != name:
        raise ModelError(f"the model has a value or node {name!r} already, the name of an input to add; rename it")
    return name


def _rename(model: ir.Model, names: Mapping[str, str]) -> None:
    """Renames inputs and outputs of a graph."""
    values = {str(value.name): value for value in (*model.graph.inputs, *model.graph.outputs)}
    taken = Names(model)
    for old, new in names.items():
        if new != old:
            values[old].name = free_name(taken, new)


def _remove_outputs(model: ir.Model, names: Iterable[str]) -> None:
    outputs, removed = model.graph.outputs, set(names)
    kept = [value for value in outputs if value.name not in removed]
    outputs.clear()
    outputs.extend(kept)
    remove_unused_nodes(model)


def _remove_seeds(model: ir.Model, seeds: Mapping[str, str]) -> None:
    """Removes inputs for seeds: nothing depends on them, but ops may take them that compute more than is read."""
    values = {str(value.name): value for value in (*model.graph.inputs, *model.graph.outputs)}
    for name, seed_name in seeds.items():
        seed, y = values[seed_name], values[name]
        if seed.uses():
            names, producer = Names(model), y.producer()
            start = nodes_at_start(model.graph, names, _INNER)
            make = start if producer is None else NodesAfter(producer, names, _INNER)
            seed.replace_all_uses_with(zeros(make, shape_of(make, y), dtype_of(y)))
            model.graph.sort()  # what read the input may come before y
        model.graph.inputs.remove(seed)


def mark(model: ir.Model, product: str) -> None:
    """Records that a model may be differentiated again; it is no training graph."""
    model.metadata_props.pop(KEY, None)
    model.metadata_props[PRODUCT] = product
