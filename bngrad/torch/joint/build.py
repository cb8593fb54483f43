"""From a traced step to a training graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onnx_ir.tensor_adapters import TorchTensor

from bngrad.opset.gradient_names import gradient_name
from bngrad.torch.capture import write_onnx
from bngrad.torch.dynamic_shapes import read_dynamic
from bngrad.torch.export import make_state_inputs
from bngrad.torch.forward import LOSS
from bngrad.torch.joint.trace import trace_joint
from bngrad.torch.joint.translations import joint_translations, to_ort_dialect
from bngrad.torch.names import name_values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir as ir
    import torch

    from bngrad.torch.example import Example
    from bngrad.torch.forward import Forward


class JointGraph(NamedTuple):
    """The forward and backward pass of a module."""

    model: ir.Model
    """Parameters and changed buffers are inputs with their values as defaults."""
    gradients: dict[str, str]
    """The output with the gradient with respect to a parameter, by its name."""
    buffers: dict[str, str]
    """The output with the next value of a buffer, by its name."""
    fixed: list[tuple[str, int, int]]
    """The inputs whose first dimension is fixed although it was to be symbolic, with 0 and its size."""

    @property
    def outputs(self) -> list[str]:
        """The loss, the gradients and the next values."""
        return [LOSS, *self.gradients.values(), *self.buffers.values()]


def joint_graph(
    forward: Forward, example: Example, trained: Collection[str], *, dynamic_batch: bool
) -> JointGraph:
    """Writes the forward and backward pass of a module as ONNX, with ops of ONNX Runtime's gradient builder.

    Args:
        forward: The module and its loss. It is not changed.
        example: The arguments.
        trained: The parameters to differentiate with respect to, by the user's names.
        dynamic_batch: Whether the size of the batch stays symbolic.

    Raises:
        InputError: The size of the batch cannot be symbolic, or the loss is not a scalar.
        ModelError: PyTorch cannot trace the module.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX.
    """
    joint = trace_joint(forward, example, trained, dynamic_batch=dynamic_batch)
    model = write_onnx(joint.program, joint_translations())
    to_ort_dialect(model)
    _bind(model.graph, joint.tensors)
    _skip_copies(model.graph)
    name_values(model, forward, example, joint.outputs)
    _, buffers = make_state_inputs(model, forward, trained)
    output_names = {str(value.name) for value in model.graph.outputs}
    gradients = {name: output for name in trained if (output := gradient_name(name)) in output_names}
    shapes = {str(value.name): value.shape for value in model.graph.inputs}
    symbolic_axes = read_dynamic(example, None, dynamic_batch=dynamic_batch).axes
    fixed = [
        (name, 0, int(shape[0]))
        for name, axes in zip(example.names, symbolic_axes, strict=True)
        if axes and (shape := shapes[name]) is not None and isinstance(shape[0], int)
    ]
    return JointGraph(model, gradients, buffers, fixed)


def _bind(graph: ir.Graph, tensors: Mapping[str, torch.Tensor]) -> None:
    """Turns the inputs for parameters and buffers into initializers."""
    inputs = graph.inputs[: len(tensors)]
    del graph.inputs[: len(tensors)]
    for value, (name, tensor) in zip(inputs, tensors.items(), strict=True):
        value.name = name
        value.const_value = TorchTensor(tensor.cpu().clone(), name=name)
        graph.initializers[name] = value


def _skip_copies(graph: ir.Graph) -> None:
    """Replaces outputs that are copies by their sources, so that an unchanged buffer is recognized."""
    for index, value in enumerate(graph.outputs):
        source = value
        while (node := source.producer()) is not None and node.op_type == "Identity" and node.inputs[0]:
            source = node.inputs[0]
        if source is not value:
            graph.outputs[index] = source
