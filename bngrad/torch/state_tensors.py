"""`state_tensors`: the state of a trainer on a GPU as tensors on its memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnxruntime
import torch

from bngrad.errors import InputError, VersionError
from bngrad.runtime.device import CPU, WEBGPU

if TYPE_CHECKING:
    from bngrad.training.trainer import Trainer


def state_tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Returns the state of a trainer as tensors on the trainer's GPU, without a copy.

    They are on the memory of the buffers that have the present state. The next step goes on to other buffers, and
    the step after it writes to these: read or copy them before that. Counters of the flat layout are copies.

    Args:
        trainer: A trainer on a GPU.

    Returns:
        A tensor for each name of `Trainer.state_dict`.

    Raises:
        InputError: The trainer is on the CPU, or on WebGPU.
        VersionError: This ONNX Runtime has no DLPack.
    """
    if trainer.device.kind == CPU:
        raise InputError("the trainer is on the CPU, where tensors would not keep its memory; use state_dict()")
    if trainer.device.kind == WEBGPU:
        raise InputError("the trainer is on WebGPU, whose memory PyTorch does not take; use state_dict()")
    if not hasattr(onnxruntime.OrtValue, "__dlpack__"):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} gives no arrays by DLPack; update onnxruntime-gpu"
        )
    info, values = trainer.info, trainer.state_values()
    tensors = {name: torch.from_dlpack(value) for name, value in values.items()}
    if info.flat is None:
        return tensors
    vector, result = tensors[info.flat.input], {}
    for name, entry in info.state.items():
        start = entry.offset or 0
        part = vector[start : start + math.prod(entry.shape)].reshape(entry.shape)
        result[name] = part.to(getattr(torch, entry.dtype))
    return result
