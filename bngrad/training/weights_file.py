"""Trained weights in a file: arrays by name, or the state of a training step."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import InputError
from bngrad.io.arrays import load_arrays
from bngrad.io.documents import from_json
from bngrad.io.reading import require_file
from bngrad.io.tensor_files import read_tensors
from bngrad.passes.quantize.quantization import Quantization
from bngrad.training.step_files import state_metadata

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

_TRAINED = ("weight", "running_statistic")


class Weights(NamedTuple):
    """Weights and running statistics by name."""

    arrays: dict[str, Array]
    is_state: bool
    """True if they are from the state of a training step, which has 16-bit weights as float."""
    quantization: Quantization | None = None
    """The values that the step rounds to 8 bits; None for none."""


def load_weights(path: str | os.PathLike[str]) -> Weights:
    """Reads an .npz or a .safetensors file. The optimizer state and counters of a state are left out.

    Averages, of a step with ``ema`` or ``swa``, take the place of weights and running statistics.

    Raises:
        InputError: The file cannot be read, or is of another format.
    """
    file = Path(path)
    require_file(file, "an .npz or a .safetensors file of arrays by name")
    if file.suffix == ".npz" or zipfile.is_zipfile(file):
        return Weights(load_arrays(file), is_state=False)
    arrays, metadata = read_tensors(file)
    document = state_metadata(file, metadata)
    roles = document.get("roles")
    if roles is None:
        return Weights(arrays, is_state=False)
    if not isinstance(roles, dict) or set(roles) != set(arrays):
        raise InputError(
            f"{file} does not record the role of each of its tensors; expected a state as bngrad writes it"
        )
    averages = document.get("averages") or {}
    if not isinstance(averages, dict) or not set(averages.values()) <= set(arrays):
        raise InputError(
            f"{file} does not have the averages that it records; expected a state as bngrad writes it"
        )
    trained = [name for name in arrays if roles[name] in _TRAINED]
    weights = {name: arrays[averages.get(name, name)] for name in trained}
    return Weights(weights, is_state=True, quantization=_quantization(file, document, weights))


def _quantization(file: Path, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Quantization | None:
    recorded = document.get("quantization")
    if recorded is None:
        return None
    try:
        quantization = from_json(Quantization, recorded)
        ranges = [arrays[name] for name in quantization.ranges.values()]
        scales = [arrays[name] for name in quantization.scales.values()]
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{file} does not record its quantization ({error}); expected a state as bngrad writes it"
        ) from error
    if any(array.dtype != np.float32 or array.shape != (2,) for array in ranges):
        raise InputError(f"{file} has a range that is not 2 float32 numbers; expected a state as bngrad writes it")
    if any(array.dtype != np.float32 or array.shape for array in scales):
        raise InputError(f"{file} has a scale that is not a float32 number; expected a state as bngrad writes it")
    return quantization
