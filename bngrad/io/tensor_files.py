"""Reading and writing tensors by name, in the format of safetensors."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bngrad.errors import InputError
from bngrad.io.reading import require_file
from bngrad.io.writing import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SYSTEM_ERROR = re.compile(r"(?:I/O error: )?(?P<reason>[^:]+) \(os error (?P<number>\d+)\)")
"""The library's message for an error of the operating system."""


def arrays_of(tensors: Mapping[str, ir.TensorProtocol]) -> dict[str, Array]:
    """Returns the values of a model's tensors.

    Raises:
        InputError: External data cannot be read.
    """
    try:
        return {name: tensor.numpy() for name, tensor in tensors.items()}
    except (OSError, ValueError) as error:
        raise InputError(f"the model's external data cannot be read: {error}") from None


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a .safetensors file atomically: after a crash, ``path`` has the old content or the new one.

    Args:
        path: The file.
        tensors: Arrays by name.
        metadata: Text by key.

    Raises:
        InputError: The file cannot be written.
    """
    with writing_tensors(path, tensors, metadata):
        pass


@contextlib.contextmanager
def writing_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[None]:
    """Does what `write_tensors` does; ``path`` is replaced when the block ends without an exception."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    with replacing(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file(arrays, temporary, dict(metadata))
        except SafetensorError as error:
            raise _as_os_error(error) from None
        temporary.chmod(mode)  # the library lets only the owner read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        yield


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Reads the tensors and the metadata of a .safetensors file.

    Raises:
        InputError: The file cannot be read, is not of this format, or has a type that NumPy lacks.
    """
    file = Path(path)
    require_file(file, "a .safetensors file")
    try:
        with safe_open(file, framework="numpy") as opened:
            names = list(opened.keys())
            return {name: np.array(opened.get_tensor(name)) for name in names}, opened.metadata() or {}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{file} has a tensor of a type that NumPy lacks: {error}") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise InputError(f"{file} is not a .safetensors file, or is damaged: {error}") from None


def _as_os_error(error: SafetensorError) -> OSError:
    match = _SYSTEM_ERROR.search(str(error))
    return OSError(int(match["number"]), match["reason"].strip()) if match else OSError(str(error))
