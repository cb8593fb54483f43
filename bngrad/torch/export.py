"""From a module to forward models: in training mode, and in evaluation mode."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir
import torch

from bngrad.autodiff.forward_info import ForwardInfo, write_forward_info
from bngrad.autodiff.stop_gradient import define, stops_to_identity
from bngrad.errors import BngradError, UnsupportedNodeError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.constant_value import new_initializer
from bngrad.graph.name_messages import listed
from bngrad.graph.nodes import describe
from bngrad.torch.batch_norm import cumulative_averages, stop_statistics
from bngrad.torch.capture import capture, clean_up
from bngrad.torch.forward import LOSS, NEW, Forward, Inference
from bngrad.torch.names import name_values
from bngrad.torch.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Collection

    from bngrad.torch.example import Example


class Exported(NamedTuple):
    """A forward model in training mode."""

    model: ir.Model
    """The trained parameters, and the buffers that the pass changes, are inputs with their values as defaults."""
    info: ForwardInfo
    """Its loss, the parameters that are trained, and the buffers."""
    warnings: list[str]
    """What is probably not intended."""


def export_training(
    forward: Forward,
    example: Example,
    trained: Collection[str],
    *,
    dynamic_batch: bool = True,
    sync: bool = False,
) -> Exported:
    """Exports a module with its loss, in the mode that it is in.

    Args:
        forward: The module and its loss. It is not changed.
        example: The arguments.
        trained: The parameters to train, by the user's names.
        dynamic_batch: Whether the size of the batch stays symbolic.
        sync: Whether its batch norms will be synchronized over ranks.

    Raises:
        InputError: The size of the batch cannot be symbolic, or the loss is not a scalar.
        ModelError: PyTorch cannot trace the module.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX, or a gradient is not its own.
    """
    shapes = example.dynamic_shapes(batch=dynamic_batch)
    with ExitStack() as stack:
        stack.enter_context(untouched(forward))
        stack.enter_context(cumulative_averages(forward))
        stack.enter_context(torch.enable_grad())
        model = capture(forward, example, shapes)
        output_names = list(forward.output_names)
    name_values(model, forward, example, output_names)
    used, buffers = make_state_inputs(model, forward, trained)
    _refuse_shared_statistics(model, buffers)
    stop_statistics(model.graph)
    define(model)
    info = ForwardInfo(LOSS, used, buffers)
    write_forward_info(model, info)
    warnings = export_warnings(model, forward, example, dynamic_batch=dynamic_batch, sync=sync)
    return Exported(model, info, warnings)


def make_state_inputs(
    model: ir.Model, forward: Forward, trained: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """Makes inputs with defaults of the trained parameters and of the buffers that the pass changes.

    Args:
        model: The exported model, with its names; it is changed, and constants are computed.
        forward: The module and its loss.
        trained: The parameters to train, by the user's names.

    Returns:
        The parameters that the model uses, and the output with the next value of each buffer.
    """
    new = {f"{name}{NEW}": name for name in forward.untrained()}
    buffers = {new[name]: name for value in model.graph.outputs if (name := str(value.name)) in new}
    for name in buffers:
        if name not in model.graph.initializers:  # the pass writes to it without reading it
            value = forward.tensors()[name].detach().cpu().numpy()
            new_initializer(model.graph, name, ir.tensor(value))
    kept = _make_inputs(model, [*trained, *buffers])
    clean_up(model)
    for name in buffers:
        model.graph.initializers.setdefault(name, kept[name])
    used = [name for name in trained if name in model.graph.initializers and model.graph.initializers[name].uses()]
    _remove_unused_inputs(model, trained)
    return used, buffers


def export_inference(forward: Forward, example: Example, *, dynamic_batch: bool = True) -> ir.Model:
    """Exports a module in evaluation mode, with the loss if its outputs have one there.

    Args:
        forward: See `export_training`; so are the other arguments.
        example: See `export_training`.
        dynamic_batch: See `export_training`.

    Raises:
        ModelError: PyTorch cannot trace the module in evaluation mode.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX.
    """
    try:
        return _inference(forward, example, with_loss=True, dynamic_batch=dynamic_batch)
    except BngradError:
        return _inference(forward, example, with_loss=False, dynamic_batch=dynamic_batch)


def _inference(forward: Forward, example: Example, *, with_loss: bool, dynamic_batch: bool) -> ir.Model:
    shapes = example.dynamic_shapes(batch=dynamic_batch)
    inference = Inference(forward, with_loss=with_loss)
    with untouched(forward), torch.no_grad():
        inference.eval()
        model = capture(inference, example, shapes)
    name_values(model, forward, example, inference.output_names)
    names = [name for name in forward.tensors() if name in model.graph.initializers]
    _make_inputs(model, names)
    clean_up(model)
    for value in [value for value in model.graph.inputs if value.is_initializer() or not value.uses()]:
        model.graph.inputs.remove(value)
    _remove_unused_inputs(model, names)
    stops_to_identity(model)
    return model


def _make_inputs(model: ir.Model, names: Collection[str]) -> dict[str, ir.Value]:
    """Makes initializers inputs as well, which no optimization touches; returns them."""
    made = {name: model.graph.initializers[name] for name in names if name in model.graph.initializers}
    model.graph.inputs.extend(made.values())
    return made


def _remove_unused_inputs(model: ir.Model, names: Collection[str]) -> None:
    graph = model.graph
    for name in names:
        for value in [one for one in graph.inputs if one.name == name and not one.uses()]:
            graph.inputs.remove(value)
            graph.initializers.pop(name, None)


def _refuse_shared_statistics(model: ir.Model, buffers: Collection[str]) -> None:
    """A training graph has one name for a running statistic before its update, and one reader."""
    for node in model.graph:
        if is_training_batch_norm(node):
            for value in node.inputs[3:5]:
                if value is not None and value.name in buffers and len(value.uses()) > 1:
                    raise UnsupportedNodeError(
                        f"{value.name!r} is updated by {describe(node)} and read by other nodes before, which is "
                        "unsupported; expected a batch norm in training mode to read its statistics first"
                    )


def export_warnings(
    model: ir.Model, forward: Forward, example: Example, *, dynamic_batch: bool, sync: bool = False
) -> list[str]:
    """What is probably not intended."""
    found = []
    if not any(one.training for one in forward.module.modules()):
        found.append(
            "the module is in evaluation mode, so batch norms are frozen and Dropout is off; call module.train()"
        )
    modules = forward.module.named_modules()
    synchronized = [name for name, one in modules if isinstance(one, torch.nn.SyncBatchNorm) and one.training]
    if synchronized and not sync:
        found.append(
            f"{listed(synchronized)}: a SyncBatchNorm becomes a batch norm over the batch of one process without "
            "sync=True (--sync)"
        )
    fixed = _fixed(model, example) if dynamic_batch else []
    if fixed:
        found.append(
            f"the batch size of {listed(fixed)} is fixed at {example.batch}, because the module computes with it "
            "as a number; feed batches of this size, or pass dynamic_batch=False to silence this warning"
        )
    return found


def _fixed(model: ir.Model, example: Example) -> list[str]:
    """The inputs of the size of the batch whose first dimension is a number nonetheless."""
    shapes = {str(value.name): value.shape for value in model.graph.inputs}
    named = zip(example.names, example.flat, strict=True)
    follows = [name for name, tensor in named if tensor.ndim and tensor.shape[0] == example.batch]
    return [name for name in follows if (shape := shapes[name]) is not None and isinstance(shape[0], int)]
