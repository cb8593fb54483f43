"""`load_into`: a trained state back into the module, and into its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from bngrad.errors import InputError, warn
from bngrad.graph.name_messages import listed
from bngrad.opset.known_shapes import shape_text
from bngrad.torch.forward import Forward, dtype_name
from bngrad.torch.optimizers import into_torch
from bngrad.training.trainer import Trainer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def load_into(
    module: torch.nn.Module,
    state: Trainer | Mapping[str, Array],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: torch.nn.Module | None = None,
) -> None:
    """Writes trained parameters and buffers into a module, in place; all of them or none.

    Args:
        module: The module that the training step was built from, or one with the same parameters and buffers.
            Those that are not trained keep their values.
        state: A trainer, or the state of a training step: arrays by name, as `bngrad.Trainer.state_dict` and
            `safetensors.numpy.load_file` return them.
        optimizer: An optimizer of `torch.optim` with these parameters, which gets the optimizer's state, so that
            training can continue in PyTorch. ``state`` must be a trainer then.
        loss_fn: The loss function, if it is a module with parameters of its own.

    Raises:
        InputError: A tensor is missing in the module, or has another shape or type; the state leaves a running
            statistic untouched; or the optimizer is not that of the training step.

    Warns:
        BngradWarning: Arrays without a trainer lack a parameter that requires a gradient.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module is a {type(module).__name__}; expected a torch.nn.Module")
    if not isinstance(state, Trainer | Mapping):
        raise InputError(
            f"state is a {type(state).__name__}; expected a bngrad.Trainer, or arrays by name, such as "
            "safetensors.numpy.load_file returns"
        )
    trainer = state if isinstance(state, Trainer) else None
    arrays = trainer.state_dict() if trainer is not None else dict(state)  # type: ignore[arg-type]
    tensors = Forward(module, loss_fn).tensors()
    values = _of_module(arrays, tensors, trainer)
    _require_fit(values, tensors)
    _require_statistics(module, values, tensors, all_of_them=trainer is None)
    left = [name for name, tensor in tensors.items() if tensor.requires_grad and name not in values]
    if left and trainer is None:  # a trainer has all that is trained
        warn([f"the state lacks {listed(left)}, which the module trains; they keep their values"])
    if optimizer is not None:
        if trainer is None:
            raise InputError("an optimizer needs a trainer, which has the hyperparameters; got only arrays")
        into_torch(arrays, trainer.info, optimizer, tensors)
    with torch.no_grad():
        for name, array in values.items():
            tensors[name].copy_(torch.from_numpy(np.array(array)))


def _of_module(
    arrays: Mapping[str, Array], tensors: Mapping[str, torch.Tensor], trainer: Trainer | None
) -> dict[str, Array]:
    """The arrays of parameters and buffers."""
    if trainer is not None:
        names = trainer.info.names("weight", "running_statistic")
        unknown = [name for name in names if name not in tensors]
        if unknown:
            raise InputError(
                f"the trainer's state has {listed(unknown)}, which the module lacks; expected the module that the "
                "training step was built from"
            )
        return {name: arrays[name] for name in names}
    values = {name: array for name, array in arrays.items() if name in tensors}
    unknown = [name for name in arrays if name.endswith(("running_mean", "running_var")) and name not in tensors]
    if values and unknown:
        raise InputError(
            f"the state has the running statistics {listed(unknown)}, which the module lacks; expected the state "
            "of a training step of this module, in which calls of one batch norm share its statistics"
        )
    if not values:
        raise InputError(
            f"the state has {listed(list(arrays)) if arrays else 'no arrays'}, none of which is a parameter or "
            "buffer of the module; expected the state of a training step of this module"
        )
    return values


def _require_statistics(
    module: torch.nn.Module,
    values: Mapping[str, Array],
    tensors: Mapping[str, torch.Tensor],
    *,
    all_of_them: bool,
) -> None:
    """Checks that no running statistic stays as it is where others of its layer, or the weights, are replaced.

    Args:
        module: The module.
        values: The arrays that it gets.
        tensors: Its parameters and buffers.
        all_of_them: Whether a layer in training mode has to get its statistics.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    for place, layer in module.named_modules():
        if not isinstance(layer, _NormBase) or layer.running_mean is None or layer.running_var is None:
            continue
        needed = [layer.running_mean, layer.running_var]
        if layer.momentum is None and isinstance(layer, _BatchNorm) and layer.num_batches_tracked is not None:
            needed.append(layer.num_batches_tracked)
        missing = [names[id(statistic)] for statistic in needed if names[id(statistic)] not in values]
        if missing and (len(missing) < len(needed) or (all_of_them and layer.training)):
            raise InputError(
                f"the state lacks {listed(missing)}, so that {place!r} would keep old running statistics; "
                "expected those of all layers in training mode: call eval() on one that the step does not train"
            )


def _require_fit(values: Mapping[str, Array], tensors: Mapping[str, torch.Tensor]) -> None:
    for name, array in values.items():
        tensor = tensors[name]
        if tuple(array.shape) != tuple(tensor.shape):
            raise InputError(
                f"{name!r} has shape {shape_text(array.shape)}; the module's has {shape_text(tuple(tensor.shape))}"
            )
        if np.issubdtype(array.dtype, np.floating) != tensor.is_floating_point():
            raise InputError(f"{name!r} is {array.dtype}; the module's is {dtype_name(tensor)}")
