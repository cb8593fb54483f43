"""`import_joint`: a training graph whose backward pass PyTorch's autograd made."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from bngrad.autodiff.metadata import write_training_graph
from bngrad.errors import warn
from bngrad.graph.nodes import describe
from bngrad.io.files import to_proto
from bngrad.passes.pipeline import for_target
from bngrad.torch.compare import compare_graph, graph_runner
from bngrad.torch.export import export_warnings
from bngrad.torch.forward import LOSS
from bngrad.torch.joint.build import JointGraph, joint_graph
from bngrad.torch.randomness import NothingRandom, nothing_random
from bngrad.torch.source import WRONG, read_arguments, require_equal
from bngrad.training.differentiate import remove_defaults
from bngrad.training.to_inference import random_nodes
from bngrad.validation.report import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx
    import onnx_ir as ir
    import torch

    from bngrad.torch.source import Read

    Loss = Callable[..., torch.Tensor]


def import_joint(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    *,
    dynamic_batch: bool = True,
    input_names: Sequence[str] | None = None,
    check: bool = True,
    recognize: bool = True,
    defaults: bool = True,
    functions: bool = True,
) -> onnx.ModelProto:
    """Builds the training graph of a module and its loss, with the backward pass that PyTorch's autograd makes.

    The result has the form of that of `bngrad.torch.differentiate`, whose backward pass this package makes.
    Gradients that the module defines are part of it: those of a `torch.autograd.Function`, of
    ``Tensor.register_hook`` in forward, and of backward hooks of modules. Batch norms are in primitive ops, as
    PyTorch decomposes them.

    Args:
        module: See `bngrad.torch.export`; so are the following arguments.
        loss_fn: See `bngrad.torch.export`.
        example: See `bngrad.torch.export`.
        dynamic_batch: See `bngrad.torch.export`.
        input_names: See `bngrad.torch.export`.
        check: See `bngrad.torch.export`.
        recognize: Whether to make ops of ``bngrad`` of batch norms in primitive ops.
        defaults: Whether parameters and buffers keep their current values as defaults of their inputs.
        functions: Whether to embed the definitions of the ops as model-local functions.

    Raises:
        InputError: The example or an argument is invalid, or the loss is not a float scalar.
        ModelError: PyTorch cannot trace the module, or what its exporter wrote does not compute the same.
        UnsupportedNodeError: An op of the forward or backward pass cannot be written as ONNX, or a parameter has a
            gradient hook.

    Warns:
        BngradWarning: See `bngrad.torch.export`.
    """
    read = read_arguments(module, loss_fn, example, None, input_names, custom_gradients=True)
    joint = joint_graph(read.forward, read.example, read.trained, dynamic_batch=dynamic_batch)
    made, _ = for_target(joint.model, target="stock", functions=functions, recognize=recognize)
    warnings = export_warnings(read.forward, joint.fixed)
    warnings += read.warnings
    write_training_graph(
        made, loss=LOSS, gradients=joint.gradients, running_statistics=joint.buffers, warnings=warnings
    )
    if check:
        _require_pytorchs(read, joint, made, recognize=recognize)
    if not defaults:
        remove_defaults(made.graph, [*joint.gradients, *joint.buffers])
    warn(warnings)
    return to_proto(made)


def _require_pytorchs(read: Read, joint: JointGraph, made: ir.Model, *, recognize: bool) -> None:
    """Compares a step with PyTorch, in which nothing is random."""
    check = Check("PyTorch", unit="x PyTorch's own error", limit=WRONG, required=True)
    random = bool(random_nodes(joint.model))
    if random:
        quiet = nothing_random(joint.model)
        if left := random_nodes(quiet):
            check.skipped = f"{describe(left[0])} draws other numbers than PyTorch"
            return
        model, _ = for_target(quiet, target="stock", functions=False, recognize=recognize)
    else:
        model = made.clone()
    remove_defaults(model.graph, [*joint.gradients, *joint.buffers])
    run_graph = graph_runner(model, {name: name for name in joint.outputs})
    with NothingRandom() if random else nullcontext():
        compare_graph(check, read.forward, read.example, run_graph, read.trained, steps=1)
    require_equal(check)
