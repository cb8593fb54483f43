"""Parameters of blocks to and from checkpoint files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from bngrad.ort_training.checkpoint_file import Checkpoint, read_checkpoint, write_checkpoint
from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Writes parameters to a checkpoint file.

    Args:
        parameters: The trainable and the frozen parameters, as `TrainingBlock.parameters` returns them.
        path_to_checkpoint: The file.
        nominal_checkpoint: Whether to write their names only.

    Raises:
        OrtTrainingError: There are no parameters, or the file cannot be written.
    """
    if parameters is None:
        raise OrtTrainingError("there are no parameters; pass the result of TrainingBlock.parameters()")
    trainable, frozen = (
        {
            tensor.name: np.empty(0, np.float32) if nominal_checkpoint else onnx.numpy_helper.to_array(tensor)
            for tensor in tensors
        }
        for tensors in parameters
    )
    write_checkpoint(Checkpoint(trainable, frozen, nominal=nominal_checkpoint), path_to_checkpoint)


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Replaces the initializers of a model by the parameters of their names in a checkpoint file.

    Args:
        path_to_checkpoint: The file.
        model: The model, which is changed. Its other initializers stay.

    Raises:
        OrtTrainingError: The file is not a checkpoint, has no values, or has a parameter of another shape or type.
    """
    checkpoint = read_checkpoint(path_to_checkpoint)
    if checkpoint.nominal:
        raise OrtTrainingError(
            f"{path_to_checkpoint} is a nominal checkpoint, which has no values; load a complete one"
        )
    values = checkpoint.trainable | checkpoint.frozen
    loaded = {}
    for tensor in model.graph.initializer:
        if tensor.name not in values:
            continue
        new = loaded[tensor.name] = onnx.numpy_helper.from_array(values[tensor.name], tensor.name)
        if (new.data_type, list(new.dims)) != (tensor.data_type, list(tensor.dims)):
            raise OrtTrainingError(
                f"parameter {tensor.name!r} is {_described(new)} in {path_to_checkpoint}, but "
                f"{_described(tensor)} in the model; load the checkpoint into the model that it is from"
            )
    for tensor in model.graph.initializer:
        if tensor.name in loaded:
            tensor.CopyFrom(loaded[tensor.name])


def _described(tensor: onnx.TensorProto) -> str:
    return f"{onnx.TensorProto.DataType.Name(tensor.data_type).lower()} {list(tensor.dims)}"
