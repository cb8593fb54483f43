"""`import_joint`: a training graph whose backward pass PyTorch's autograd computes."""

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
from bngrad.torch.source import MAX_ERROR_RATIO, read_arguments, require_equal
from bngrad.training.differentiate import remove_defaults
from bngrad.training.to_inference import random_nodes
from bngrad.validation.report import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx
    import onnx_ir as ir
    import torch

    from bngrad.torch.source import Arguments

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
    """Builds the training graph of a module and its loss, with the backward pass that PyTorch's autograd computes.

    The result has the form of that of `bngrad.torch.differentiate`, whose backward pass this package derives.
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
        recognize: Whether to replace batch norms in primitive ops by ops of ``bngrad``.
        defaults: Whether parameters and buffers keep their current values as defaults of their inputs.
        functions: Whether to embed the definitions of the ops as model-local functions.

    Raises:
        InputError: The example or an argument is invalid, or the loss is not a float scalar.
        ModelError: PyTorch cannot trace the module, or the exported model does not compute the same.
        UnsupportedNodeError: An op of the forward or backward pass cannot be written as ONNX, or a parameter has a
            gradient hook.

    Warns:
        BngradWarning: See `bngrad.torch.export`.
    """
    arguments = read_arguments(module, loss_fn, example, None, input_names, custom_gradients=True)
    joint = joint_graph(arguments.forward, arguments.example, arguments.trained, dynamic_batch=dynamic_batch)
    model, _ = for_target(joint.model, target="stock", functions=functions, recognize=recognize)
    warnings = export_warnings(arguments.forward, joint.fixed)
    warnings += arguments.warnings
    write_training_graph(
        model, loss=LOSS, gradients=joint.gradients, running_statistics=joint.buffers, warnings=warnings
    )
    if check:
        _require_pytorchs(arguments, joint, model, recognize=recognize)
    if not defaults:
        remove_defaults(model.graph, [*joint.gradients, *joint.buffers])
    warn(warnings)
    return to_proto(model)


def _require_pytorchs(arguments: Arguments, joint: JointGraph, model: ir.Model, *, recognize: bool) -> None:
    """Compares a step with PyTorch, without randomness."""
    check = Check("PyTorch", unit="x PyTorch's own error", limit=MAX_ERROR_RATIO, required=True)
    random = bool(random_nodes(joint.model))
    if random:
        quiet = nothing_random(joint.model)
        if left := random_nodes(quiet):
            check.skipped = f"{describe(left[0])} draws other numbers than PyTorch"
            return
        compared, _ = for_target(quiet, target="stock", functions=False, recognize=recognize)
    else:
        compared = model.clone()
    remove_defaults(compared.graph, [*joint.gradients, *joint.buffers])
    run_graph = graph_runner(compared, {name: name for name in joint.outputs})
    with NothingRandom() if random else nullcontext():
        compare_graph(check, arguments.forward, arguments.example, run_graph, arguments.trained, steps=1)
    require_equal(check)
