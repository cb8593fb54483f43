"""Exports a flax.nnx model with jax2onnx for training, and loads the trained state back.

jax2onnx writes the parameters of a model as constants without names, and convolution kernels in another layout.
`export` turns them into arguments of the exported function. Each becomes an input of the graph with its value as
the default, its shape in flax, and its path in the model as its name, such as ``conv1.kernel``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend import core
from known_gradients import to_onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

_CALLS = {"jit", "closed_call", "checkpoint", "remat2"}
"""Primitives that call a function, as nnx.jit and nnx.remat do, which write all variables."""


def variables(model: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """Returns the parameters and the statistics of batch norms, by their paths."""
    return {_name(path): v for path, v in nnx.iter_graph(model) if isinstance(v, nnx.Param | nnx.BatchStat)}


def export(
    model: nnx.Module,
    *,
    outputs: Sequence[str],
    call: Callable[..., Any] | None = None,
    **inputs: jax.ShapeDtypeStruct,
) -> onnx.ModelProto:
    """Returns the ONNX model of a flax.nnx model, with every batch norm in the mode of its module.

    Args:
        model: The model. It is not modified.
        outputs: The names of the outputs.
        call: The exported function of the model and the inputs; by default the model's own call.
        inputs: The shape and type of each input, in the order of the arguments.

    Raises:
        ValueError: jax2onnx would silently export another batch norm or another gradient, or a variable would not
            be updated.
    """
    modules = dict(nnx.iter_graph(model))
    batch_norms = {_name(path): module for path, module in modules.items() if isinstance(module, nnx.BatchNorm)}
    values = {name: np.asarray(variable[...]) for name, variable in variables(model).items()}
    _require_supported(batch_norms, [n for n, v in variables(model).items() if isinstance(v, nnx.BatchStat)])

    def run(*arrays: jax.Array) -> tuple[Any, nnx.Module]:
        copy = nnx.clone(model)
        for variable, array in zip(variables(copy).values(), arrays[len(inputs) :], strict=True):
            variable.set_value(array)
        return (call or type(copy).__call__)(copy, *arrays[: len(inputs)]), copy

    def function(*arrays: jax.Array) -> Any:  # noqa: ANN401 - what the model returns
        new = jax.make_jaxpr(lambda *values: [leaf for _, leaf in _unwritten(run(*values)[1])])(*arrays)
        _require_unwritten(model, new, dict(zip(values, new.jaxpr.invars[len(inputs) :], strict=True)))
        return run(*arrays)[0]

    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values.values()]
    result = to_onnx(
        function, [*inputs.values(), *shapes], input_names=[*inputs, *values], output_names=list(outputs)
    )
    graph = result.graph
    # The remaining initializers are constants, which must not be trained.
    nodes = [
        helper.make_node("Constant", [], [tensor.name], tensor.name, value=tensor) for tensor in graph.initializer
    ]
    nodes += graph.node
    calls: Counter[str] = Counter()
    for node in nodes:
        if node.op_type == "BatchNormalization":
            _set_mode(node, batch_norms, calls)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return result


def load_into(model: nnx.Module, state: Mapping[str, NDArray[Any]]) -> None:
    """Copies the weights and running statistics of a state, such as `trainer.state_dict()`, into the model.

    Parameters that were not trained are not in the state, and stay.
    """
    for name, variable in variables(model).items():
        if name in state:
            variable.set_value(jnp.asarray(state[name], variable.dtype))


def _name(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def _require_supported(batch_norms: Mapping[str, nnx.BatchNorm], statistics: Sequence[str]) -> None:
    for name, module in batch_norms.items():
        if module.axis != -1 or module.axis_name is not None:
            raise ValueError(
                f"{name}: BatchNorm has axis={module.axis} and axis_name={module.axis_name}; expected -1 and None "
                "(jax2onnx ignores both)"
            )
    for name in statistics:
        if name.rpartition(".")[0] not in batch_norms:
            raise ValueError(f"{name} is a BatchStat, but not of a BatchNorm; training would not update it")


def _unwritten(model: nnx.Module) -> list[tuple[str, Any]]:
    """Returns the paths and values of the variables that a call must not write."""
    others = nnx.BatchStat | nnx.RngState | nnx.Intermediate
    kept = [
        (path, v) for path, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable) and not isinstance(v, others)
    ]
    return [(_name(path), leaf) for path, v in kept for leaf in jax.tree.leaves(v.get_value())]


def _require_unwritten(model: nnx.Module, new: core.ClosedJaxpr, inputs: Mapping[str, core.Var]) -> None:
    """Refuses a model whose call writes a variable.

    Args:
        model: The model.
        new: The function that computes the variables after the call.
        inputs: Its inputs, by the variables that are some.
    """
    for (name, old), atom in zip(_unwritten(model), new.jaxpr.outvars, strict=True):
        origin = _origin(new, atom)
        kept = origin is inputs[name] if name in inputs else np.array_equal(origin, old)
        if not kept:
            raise ValueError(
                f"{name}: the call writes this variable, which a training step would not do; compute the value "
                "without storing it (nnx.WeightNorm stores its kernels)"
            )


def _origin(function: core.ClosedJaxpr, atom: Any) -> Any:  # noqa: ANN401
    """Returns the input or the constant that a value of a function is; None if the function computes it."""
    if isinstance(atom, core.Literal):
        return atom.val
    constants = dict(zip(function.jaxpr.constvars, function.consts, strict=True))
    equation = next((equation for equation in function.jaxpr.eqns if atom in equation.outvars), None)
    if equation is None:
        return constants.get(atom, atom)
    if equation.primitive.name not in _CALLS:
        return None
    body = equation.params["jaxpr"]
    body = body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())
    origin = _origin(body, body.jaxpr.outvars[equation.outvars.index(atom)])
    arguments = dict(zip(body.jaxpr.invars, equation.invars, strict=True))
    return _origin(function, arguments[origin]) if isinstance(origin, core.Var) else origin


def _set_mode(node: onnx.NodeProto, batch_norms: Mapping[str, nnx.BatchNorm], calls: Counter[str]) -> None:
    """Names a batch norm after its module, and puts it in training mode unless it is frozen."""
    module = node.input[3].rpartition(".")[0]
    node.name = f"{module}_{calls[module]}" if calls[module] else module
    calls[module] += 1
    if not batch_norms[module].use_running_average:
        node.attribute.append(helper.make_attribute("training_mode", 1))
        node.output.extend(f"{node.name}.{statistic}_new" for statistic in ("mean", "var"))
