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
from known_gradients import to_onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray


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
        ValueError: jax2onnx would silently export another batch norm or another gradient, or a statistic would not
            be updated.
    """
    modules = dict(nnx.iter_graph(model))
    batch_norms = {_name(path): module for path, module in modules.items() if isinstance(module, nnx.BatchNorm)}
    values = {name: np.asarray(variable[...]) for name, variable in variables(model).items()}
    _require_supported(batch_norms, [n for n, v in variables(model).items() if isinstance(v, nnx.BatchStat)])

    def function(*arrays: jax.Array) -> Any:  # noqa: ANN401 - what the model returns
        copy = nnx.clone(model)
        for variable, array in zip(variables(copy).values(), arrays[len(inputs) :], strict=True):
            variable.set_value(array)
        return (call or type(copy).__call__)(copy, *arrays[: len(inputs)])

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


def _set_mode(node: onnx.NodeProto, batch_norms: Mapping[str, nnx.BatchNorm], calls: Counter[str]) -> None:
    """Names a batch norm after its module, and puts it in training mode unless it is frozen."""
    module = node.input[3].rpartition(".")[0]
    node.name = f"{module}_{calls[module]}" if calls[module] else module
    calls[module] += 1
    if not batch_norms[module].use_running_average:
        node.attribute.append(helper.make_attribute("training_mode", 1))
        node.output.extend(f"{node.name}.{statistic}_new" for statistic in ("mean", "var"))
