"""Named tensors in a ``.safetensors`` file, which every language can read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import InputError
from bngrad.io.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import onnx_ir as ir
    from numpy.typing import NDArray


@contextlib.contextmanager
def saving_tensors(tensors: Mapping[str, ir.TensorProtocol], path: Path) -> Iterator[None]:
    """Writes tensors to a ``.safetensors`` file, which replaces ``path`` when the block ends without an exception.

    Raises:
        InputError: The file cannot be written, or external data cannot be read.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 - rarely needed
    from safetensors.numpy import save_file  # noqa: PLC0415

    try:
        arrays = {name: _contiguous(tensor) for name, tensor in tensors.items()}
    except (OSError, ValueError) as error:
        raise InputError(f"the model's external data cannot be read: {error}") from None
    with replacing(path) as temporary:
        try:
            save_file(arrays, temporary)
        except SafetensorError as error:
            raise InputError(f"{path} cannot be written: {error}") from None
        yield


def _contiguous(tensor: ir.TensorProtocol) -> NDArray[np.generic]:
    array = tensor.numpy()
    return np.ascontiguousarray(array).reshape(array.shape)  # it makes a vector of a scalar
