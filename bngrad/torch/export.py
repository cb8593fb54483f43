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
from bngrad.torch.capture import Captured, capture, clean_up
from bngrad.torch.dynamic_shapes import Dynamic
from bngrad.torch.forward import LOSS, NEW, Forward, Inference
from bngrad.torch.names import name_values
from bngrad.torch.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bngrad.torch.example import Example
    from bngrad.torch.sizes import Sizes


class Exported(NamedTuple):
    """A forward model in training mode."""

    model: ir.Model
    """The trained parameters, and the buffers that the pass changes, are inputs with their values as defaults."""
    info: ForwardInfo
    """Its loss, the parameters that are trained, the buffers, and the sizes for which it is right."""
    sizes: Sizes
    """The names of the symbolic dimensions."""
    warnings: list[str]
    """The warnings about settings that are probably not intended."""


def export_training(
    forward: Forward,
    example: Example,
    trained: Collection[str],
    dynamic: Dynamic,
    *,
    sync: bool = False,
    missing: list[BngradError] | None = None,
) -> Exported:
    """Exports a module with its loss, in the mode that it is in.

    Args:
        forward: The module and its loss. It is not changed.
        example: The arguments.
        trained: The parameters to train, by the user's names.
        dynamic: The dimensions that stay symbolic.
        sync: Whether its batch norms will be synchronized over ranks.
        missing: As `write_onnx` takes it.

    Raises:
        InputError: The loss is not a scalar.
        ModelError: PyTorch cannot trace the module.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX.
    """
    with ExitStack() as stack:
        stack.enter_context(untouched(forward))
        stack.enter_context(cumulative_averages(forward))
        stack.enter_context(torch.enable_grad())
        model, sizes = capture(forward, example, dynamic, missing)
        output_names = list(forward.output_names)
    name_values(model, forward, example, output_names, sizes)
    used, buffers = make_state_inputs(model, forward, trained)
    _refuse_shared_statistics(model, buffers)
    stop_statistics(model.graph)
    define(model)
    info = ForwardInfo(LOSS, used, buffers, sizes.conditions, sizes.in_training)
    write_forward_info(model, info)
    warnings = export_warnings(forward, sizes.fixed, sync=sync)
    return Exported(model, info, sizes, warnings)


def make_state_inputs(
    model: ir.Model, forward: Forward, trained: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """Turns the trained parameters, and the buffers that the pass changes, into inputs with defaults.

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


def export_inference(forward: Forward, example: Example, sizes: Sizes) -> Captured:
    """Exports a module in evaluation mode, with the loss if it has one in that mode.

    Args:
        forward: The module and its loss. It is not changed.
        example: The arguments.
        sizes: The symbolic dimensions of the training graph.

    Returns:
        The model, and the sizes for which it is right, in terms of the same names.

    Raises:
        ModelError: PyTorch cannot trace the module in evaluation mode.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX.
    """
    try:
        return _inference(forward, example, sizes, with_loss=True)
    except BngradError:
        return _inference(forward, example, sizes, with_loss=False)


def _inference(forward: Forward, example: Example, sizes: Sizes, *, with_loss: bool) -> Captured:
    inference = Inference(forward, with_loss=with_loss)
    with untouched(forward), torch.no_grad():
        inference.eval()
        model, own_sizes = capture(inference, example, Dynamic([dict(names) for names in sizes.axes], [], set()))
    name_values(model, forward, example, inference.output_names, own_sizes)
    names = [name for name in forward.tensors() if name in model.graph.initializers]
    _make_inputs(model, names)
    clean_up(model)
    for value in [value for value in model.graph.inputs if value.is_initializer() or not value.uses()]:
        model.graph.inputs.remove(value)
    _remove_unused_inputs(model, names)
    stops_to_identity(model)
    sizes_of = dict(zip(example.names, sizes.axes, strict=True))
    fixed = [["==", sizes_of[name][axis], size] for name, axis, size in own_sizes.fixed]
    return Captured(model, own_sizes._replace(conditions=[*own_sizes.conditions, *fixed]))


def _make_inputs(model: ir.Model, names: Collection[str]) -> dict[str, ir.Value]:
    """Adds initializers to the inputs, so that no optimization changes them; returns them."""
    inputs = {name: model.graph.initializers[name] for name in names if name in model.graph.initializers}
    model.graph.inputs.extend(inputs.values())
    return inputs


def _remove_unused_inputs(model: ir.Model, names: Collection[str]) -> None:
    graph = model.graph
    for name in names:
        for value in [value for value in graph.inputs if value.name == name and not value.uses()]:
            graph.inputs.remove(value)
            graph.initializers.pop(name, None)


def _refuse_shared_statistics(model: ir.Model, buffers: Collection[str]) -> None:
    """Refuses nodes that read a running statistic before the same pass updates it.

    PyTorch updates it in place, so a batch norm in evaluation mode computes its gradient with the updated value.
    And in a training graph, a running statistic has one name before its update, and one reader.
    """
    for node in model.graph:
        if (node.domain, node.op_type) != ("", "BatchNormalization"):
            continue
        for value in [value for value in node.inputs[3:5] if value is not None]:
            readers = [reader for reader, _ in value.uses() if reader is not node]
            if not is_training_batch_norm(node):
                if value.name in buffers or any(map(is_training_batch_norm, readers)):
                    raise UnsupportedNodeError(
                        f"{describe(node)} reads {value.name!r} in evaluation mode before the same pass updates "
                        "it, so that PyTorch computes its gradient with the updated value; call the batch norm in "
                        "training mode first, or use two batch norms"
                    )
            elif value.name in buffers and readers:
                raise UnsupportedNodeError(
                    f"{value.name!r} is updated by {describe(node)} and read by {describe(readers[0])} before, "
                    "which is unsupported; expected a batch norm in training mode to read its statistics first"
                )


def export_warnings(forward: Forward, fixed: Sequence[tuple[str, int, int]], *, sync: bool = False) -> list[str]:
    """The warnings about settings that are probably not intended.

    Args:
        forward: The module and its loss.
        fixed: The dimensions that were to be symbolic and are not: input, index, size.
        sync: Whether its batch norms will be synchronized over ranks.
    """
    warnings = []
    if not any(module.training for module in forward.module.modules()):
        warnings.append(
            "the module is in evaluation mode, so batch norms are frozen and Dropout is off; call module.train()"
        )
    modules = forward.module.named_modules()
    synchronized = [name for name, norm in modules if isinstance(norm, torch.nn.SyncBatchNorm) and norm.training]
    if synchronized and not sync:
        warnings.append(
            f"{listed(synchronized)}: a SyncBatchNorm becomes a batch norm over the batch of one process without "
            "sync=True (--sync)"
        )
    batches = [name for name, axis, _ in fixed if axis == 0]
    if batches:
        warnings.append(
            f"the batch size of {listed(batches)} is fixed at {fixed[0][2]}, because the module computes with it "
            "as a number; feed batches of this size, or pass dynamic_batch=False to silence this warning"
        )
    warnings += [
        f"dimension {axis} of {name!r} is fixed at {size}, because the module computes with it as a number; feed "
        "this size, or leave it out of dynamic_shapes to silence this warning"
        for name, axis, size in fixed
        if axis != 0
    ]
    return warnings
