"""Batch norms for layers that have none, such as those that an exporter folded batch norms into.

::

    y = Conv(x, W, B)
    =>  h = Conv(x, W)
        y = BatchNormalization(h, scale, bias, mean, var)

with mean and var of h over data, scale = sqrt(var + epsilon) and bias = mean + B: in inference mode the function
is the same, up to rounding. A batch norm subtracts the mean, so the layer keeps no bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.batch_norm_modes import matching
from bngrad.autodiff.control_flow.prepare import fold_branches
from bngrad.autodiff.forward_info import update_forward_info
from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.errors import InputError, ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.constant_value import constant_tensor, new_initializer
from bngrad.graph.fresh_names import Names, node_names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import describe, owner
from bngrad.graph.torch_records import hand_over_folded
from bngrad.inspection.model_warnings import folded_layers
from bngrad.passes.check import check
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.device import CPU, Device
from bngrad.training.data_inputs import data_inputs, require_data, require_known
from bngrad.training.estimate_statistics import add_batches, evaluation_with_names
from bngrad.training.finalize import inlined_copy
from bngrad.training.fold_batch_norm import FOLDED
from bngrad.training.moments import variance
from bngrad.training.moments_graph import moments_of_layers
from bngrad.training.reestimated import Moments, Normalized, in_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from bngrad.training.batch_norm_options import RestoreOptions

    Array = NDArray[Any]

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


class Restored(NamedTuple):
    """A forward model with new batch norms."""

    model: ir.Model
    batch_norms: dict[str, str]
    """The name of the new batch norm, by that of its layer."""
    batches: int
    """The number of batches."""


class Restoration:
    """Batch norms for layers of a forward model.

    Args:
        model: The forward model; it is not changed.
        options: See `bngrad.restore_batch_norms`.

    Raises:
        InputError: The epsilon is not a finite number above 0.
        ModelError: There is no such layer; a layer has a batch norm, or no fixed number of channels or type; or
            the model is not a forward model.
    """

    def __init__(self, model: ir.Model, options: RestoreOptions) -> None:
        self._source, self._epsilon = model, epsilon_in_float32(options.epsilon)
        self._model = inlined_copy(model)
        fold_branches(self._model)
        InferTypesPass()(self._model)
        self._names = node_names(self._model)
        numbers = {node: number for number, node in enumerate(self._model.graph)}
        self._layers = {f"bngrad_layer_{numbers[node]}": node for node in self._chosen(options.layers)}
        keys = {numbers[node]: key for key, node in self._layers.items()}
        evaluation = evaluation_with_names(self._model, keys)
        axes = {key: _axes(node) for key, node in self._layers.items()}
        self.graph, self._outputs = moments_of_layers(evaluation, axes, model)
        self.inputs = [str(value.name) for value in self.graph.graph.inputs]
        """The data inputs that the layers depend on."""
        self._data = data_inputs(model)

    def _chosen(self, patterns: Sequence[str] | None) -> list[ir.Node]:
        graph = self._model.graph
        if patterns is None:
            folded = {*folded_layers(self._model), *(node for node in graph if FOLDED in node.metadata_props)}
            nodes = [node for node in graph if node in folded and not _reason(node)]
            if not nodes:
                raise ModelError(
                    "the file does not record layers that PyTorch's exporter or bngrad batchnorm folded batch "
                    "norms into; name the layers with --layer (layers=), such as --layer '*' for all"
                )
            return nodes
        names = {node: self._names[node] for node in graph if node.op_type in _LAYERS and node.domain == ""}
        selected: set[ir.Node] = set()
        for pattern in patterns:
            matches = matching(names, pattern)
            if not matches:
                raise ModelError(unknown_name(pattern, names.values(), "a Conv, ConvTranspose or Gemm"))
            possible = {node for node in matches if not _reason(node)}
            if not possible:
                node = next(node for node in names if node in matches)
                raise ModelError(f"{describe(node)} cannot get a batch norm: {_reason(node)}")
            selected |= possible
        return [node for node in names if node in selected]

    def run(self, batches: Iterable[Mapping[str, ArrayLike]]) -> Restored:
        """Returns the model with batch norms that have the statistics of the data.

        Args:
            batches: Batches: an array for each data input; those that the layers do not depend on need no
                array.

        Raises:
            InputError: An array is missing, unknown, or of another type or shape; ONNX Runtime refuses the data,
                what the model computes is not finite, there is no batch, a layer has one value for each channel in
                all batches, or a statistic does not fit into its type.
        """
        norms = [Normalized(key, self._names[node], self._epsilon, "", "") for key, node in self._layers.items()]
        moments = Moments(norms, of="layer")
        add_batches(moments, self.graph, self._outputs, map(self._checked, batches))
        missing = [node for key, node in self._layers.items() if key not in moments.totals]
        if missing:
            raise ModelError(f"no output of the model depends on {describe(missing[0])}; choose other layers")
        names, result = Names(self._model), {}
        for key, node in self._layers.items():
            result[self._names[node]] = self._insert(node, moments.totals[key], names)
        update_forward_info(self._model, new_weights=True)
        check(self._model, self._source)
        return Restored(self._model, result, moments.batches)

    def _checked(self, batch: Mapping[str, ArrayLike]) -> Mapping[str, Any]:
        """Returns the arrays of a batch that the layers depend on."""
        for name in batch:
            require_known(name, self._data)
        arrays = {name: batch[name] for name in self.inputs if name in batch}
        return require_data(arrays, {name: self._data[name] for name in self.inputs}, (), Device.of(CPU))

    def _insert(self, node: ir.Node, moments: Array, names: Names) -> str:
        """Inserts the batch norm of a layer; returns its name."""
        graph, output, called = self._model.graph, node.outputs[0], self._names[node]
        assert output.dtype is not None, "others are refused"  # noqa: S101
        bias, var = _drop_bias(node, moments.shape[1]), variance(moments)
        scale = np.sqrt(var + self._epsilon)
        values = {"scale": scale, "bias": moments[1], "running_mean": moments[1] - bias, "running_var": var}
        like = np.empty(len(var), output.dtype.numpy())
        parameters = [
            new_initializer(graph, names.fresh(f"{called}/{word}"), ir.tensor(in_type(value, like, called)))
            for word, value in values.items()
        ]
        name, shape, type_ = str(output.name), output.shape, output.type
        output.name = names.fresh(f"{name}/before_batch_norm")
        batch_norm = ir.node(
            "BatchNormalization",
            [output, *parameters],
            {"epsilon": self._epsilon},
            name=names.fresh(f"{called}/batch_norm"),
        )
        new = batch_norm.outputs[0]
        new.name, new.shape, new.type = name, shape, type_
        output.replace_all_uses_with(new, replace_graph_outputs=True)
        batch_norm.replace_input_with(0, output)
        graph.insert_after(node, batch_norm)
        node.metadata_props.pop(FOLDED, None)
        hand_over_folded(node, batch_norm)
        weight = node.inputs[1]
        if weight is not None and weight.is_initializer() and node in folded_layers(self._model):
            self._rename(weight, names.fresh(f"{called}/weight"))
        return str(batch_norm.name)

    def _rename(self, weight: ir.Value, name: str) -> None:
        """Renames a weight by whose name PyTorch's older exporter shows that it is folded."""
        tensor = constant_tensor(weight)
        if tensor is None or weight.is_graph_input():
            return
        new = new_initializer(self._model.graph, name, tensor)
        weight.replace_all_uses_with(new, replace_graph_outputs=True)
        self._model.graph.initializers.pop(str(weight.name))


def epsilon_in_float32(epsilon: float) -> float:
    """Returns an epsilon as ONNX stores it.

    Raises:
        InputError: It is not a finite number above 0.
    """
    with np.errstate(over="ignore"):
        rounded = float(np.float32(epsilon))
    if not 0 < rounded < np.inf:
        raise InputError(f"epsilon is {epsilon}; expected a finite number above 0 in float32")
    return rounded


def _reason(node: ir.Node) -> str | None:
    """Returns the reason why a layer cannot get a batch norm; None if it can."""
    output, weight = node.outputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if any(is_of_onnx(reader) for reader in output.consumers()):
        return "a batch norm reads its output"
    if weight is None or weight.shape is None:
        return "the shape of its weight is unknown"
    if output.dtype not in SUPPORTED_DTYPES:
        return "the type of its output is unknown, or no float"
    return None


def _axes(node: ir.Node) -> list[int]:
    weight = node.inputs[1]
    assert weight is not None, "others are refused"  # noqa: S101
    assert weight.shape is not None, "others are refused"  # noqa: S101
    rank = len(weight.shape)
    return [axis for axis in range(rank) if axis != 1]


def _drop_bias(node: ir.Node, channels: int) -> Array:
    """Removes the bias of a layer, and returns what it adds to each channel; 0 if it cannot be removed."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = None if bias is None else constant_tensor(bias)
    none = np.zeros(channels)
    if tensor is None:
        return none
    array = tensor.numpy().astype(np.float64)
    if node.op_type == "Gemm":
        array = read_attribute(node, "beta", 1.0) * array
    if array.size > 1 and array.shape[-1] != array.size:
        return none  # not one number for each channel
    node.resize_inputs(2)
    if bias is not None and bias.is_initializer() and not bias.uses() and not bias.is_graph_output():
        if bias.is_graph_input():
            owner(node).inputs.remove(bias)
        owner(node).initializers.pop(str(bias.name))
    return np.broadcast_to(array.reshape(-1), channels)
