"""The files of a training step: STEP.onnx, its evaluation graph and its initial state beside it.

=================== ===============================================
file                holds
=================== ===============================================
STEP.onnx           the step
STEP.eval.onnx      the evaluation graph
STEP.safetensors    the initial state, a tensor each
=================== ===============================================
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bngrad.errors import InputError, ModelError
from bngrad.io import files
from bngrad.training.step import Step
from bngrad.training.step_info import KEY, StepInfo, read_step_info

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]


def evaluation_path(step: Path) -> Path:
    """The file of a step's evaluation graph."""
    return step.with_suffix(".eval.onnx")


def state_path(step: Path) -> Path:
    """The file of a step's initial state."""
    return step.with_suffix(".safetensors")


def save_step(step: Step, path: Path) -> list[Path]:
    """Writes the files of a step, each atomically, the step last; returns their paths.

    Raises:
        InputError: A file cannot be written.
    """
    paths = [evaluation_path(path), state_path(path), path]
    files.save(step.evaluation, paths[0])
    write_state(paths[1], step.state, step.info)
    files.save(step.model, paths[2])
    return paths


def load_step(path: Path) -> Step:
    """Reads the files of a step.

    Raises:
        InputError: A file is missing or cannot be read, or the state is not that of the step.
        ModelError: A file is no training step.
    """
    model, evaluation = files.load(path), files.load(evaluation_path(path))
    info = read_step_info(model.metadata_props)
    if read_step_info(evaluation.metadata_props).model != info.model:
        raise ModelError(f"{evaluation_path(path)} belongs to another step than {path}; make both again")
    return Step(model, evaluation, read_state(state_path(path), info)[0], info, [])


def write_state(path: Path, state: Mapping[str, Array], info: StepInfo, **extra: Any) -> None:  # noqa: ANN401
    """Writes a state atomically as safetensors.

    Args:
        path: The file.
        state: The state, a tensor each.
        info: The metadata of the step.
        extra: What the file's metadata have beside the model's fingerprint; anything that JSON can hold.

    Raises:
        InputError: The file cannot be written.
    """
    metadata = {KEY: json.dumps({"model": info.model, **extra})}
    # Scalars and views too: safetensors writes an array's buffer as it is.
    tensors = {name: np.array(array, order="C") for name, array in state.items()}
    with files.replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def read_state(path: str | os.PathLike[str], info: StepInfo) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads a state, and the extra metadata of its file.

    Raises:
        InputError: The file cannot be read, or the state is that of another model.
    """
    file = Path(path)
    try:
        with safe_open(file, framework="numpy") as content:
            metadata = json.loads((content.metadata() or {}).get(KEY, "{}"))
            names = list(content.keys())
            if metadata.get("model", info.model) != info.model:
                raise InputError(f"{file} is the state of another model, or of another optimizer, than the step's")
            state = {name: content.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise InputError(f"{file} does not exist; expected a state in .safetensors format") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is not a state in .safetensors format: {error}") from None
    metadata.pop("model", None)
    return info.require_state(state), metadata
